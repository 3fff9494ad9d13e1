"""A toy environment breaks each environment invariant once, and the contract detects it."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from evorl.envs import AutoresetMode, Box, EnvState
from evorl.envs.vector import VECTOR_ENVS, VectorEnv
from evorl.envs.wrappers.clock import EpisodeWrapper
from evorl.ops import collectives
from evorl.types import Action, Key
from tests.conformance.env import NUM_ENVS, EnvContract, VectorEnvContract
from tests.support.toy_envs import ToyEnv, toy_state

LONGEST, LIMIT = 6, 4


class Fuse(ToyEnv):
    """Counts down from a random length; observations are the remaining length and a marker of the episode."""

    obs_space = Box(0.0, float(LONGEST), (2,))

    def reset(self, key: Key) -> EnvState:
        length_key, mark_key = jax.random.split(key)
        length = jax.random.randint(length_key, (), 1, LONGEST + 1).astype(jnp.float32)
        return self._state(jnp.stack([length, jax.random.uniform(mark_key)]), jnp.zeros(()))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return self._state(env_state.env_state - jnp.array([1.0, 0.0]), 1.0 + action[0])

    def _state(self, left: jax.Array, reward: jax.Array) -> EnvState:
        return toy_state(left, left, reward, left[0] <= 0)


@jax.custom_batching.custom_vmap
def _one_at_a_time(x: jax.Array) -> jax.Array:
    return x


@_one_at_a_time.def_vmap
def _(_: int, __: Any, x: jax.Array) -> tuple[jax.Array, bool]:
    return 0.0 * x, True


OTHER_MODES = {
    "one start": (AutoresetMode.NORMAL, AutoresetMode.FAST),
    "the first start": (AutoresetMode.NORMAL, AutoresetMode.FAST),
    "new starts": (AutoresetMode.FAST, AutoresetMode.NORMAL),
    "no reset step": (AutoresetMode.ENVPOOL, AutoresetMode.NORMAL),
}


def _after_reset(fault: str, state: EnvState, key: Key) -> EnvState:
    if fault == "counts from one":
        return state.replace(info=state.info.replace(steps=state.info.steps + 1))
    if fault == "legacy keys differ" and not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return state.replace(obs=state.obs + 0.1)
    return state


def _after_step(fault: str, state: EnvState) -> EnvState:
    info = state.info
    changes = {
        "types change": lambda: {"reward": state.reward.astype(jnp.bfloat16)},
        "leaves its space": lambda: {"obs": state.obs + 100.0},
        "returns too much": lambda: {"info": info.replace(episode_return=info.episode_return + 1.0)},
        "a limit is a termination": lambda: {"info": info.replace(termination=state.done, truncation=state.done)},
        "a successor of its own": lambda: {"info": info.replace(next_obs=info.next_obs + 0.1)},
        "pays for nothing": lambda: {"reward": state.reward + 1.0},
        "rows mix": lambda: {"reward": state.reward + jnp.cumsum(state.reward)},
        "seeds mix": lambda: {"obs": _one_at_a_time(state.obs)},
        "devices show": lambda: {"reward": state.reward * collectives.num_shards()},
        "short starts": lambda: {"obs": jnp.where(state.done[:, None], jnp.minimum(state.obs, 2.0), state.obs)},
    }
    return state.replace(**changes[fault]()) if fault in changes else state


@functools.cache
def _faulty(fault: str, mode: AutoresetMode, parallel: int) -> VectorEnv:
    faulty_mode, instead = OTHER_MODES.get(fault, (None, mode))

    class Faulty(VECTOR_ENVS[instead if faulty_mode == mode else mode]):
        def reset(self, key: Key) -> EnvState:
            return _after_reset(fault, super().reset(key), key)

        def step(self, env_state: EnvState, action: Action) -> EnvState:
            return _after_step(fault, super().step(env_state, action))

        def partial_reset(self, env_state: EnvState, mask: jax.Array, key: Key) -> EnvState:
            return super().partial_reset(env_state, mask | (fault == "resets all"), key)

        def starts_of(self, keys: jax.Array, episode: jax.Array) -> EnvState:
            is_other = fault == "starts of every step differ" and self.starts == "every_step"
            return super().starts_of(keys, episode + is_other)

        def _identity(self) -> Any:
            return super()._identity(), fault, mode

    return Faulty(EpisodeWrapper(Fuse(), LIMIT), parallel)


FAULTS = {
    "types change": "test_step_keeps_the_types_of_reset",
    "leaves its space": "test_spaces_match",
    "counts from one": "test_info_is_complete",
    "returns too much": "test_counts_and_returns",
    "a limit is a termination": "test_ends_are_told_apart",
    "a successor of its own": "test_next_obs_is_the_successor",
    "one start": "test_starts_of_successive_episodes_differ",
    "the first start": "test_every_episode_starts_from_a_fresh_reset",
    "pays for nothing": "test_disabled_freezes",
    "new starts": "test_fast_reuses_the_first_start",
    "no reset step": "test_envpool_has_reset_steps",
    "starts of every step differ": "test_when_starts_are_computed_does_not_show",
    "rows mix": "test_no_block_no_seed_and_no_device_shows",
    "seeds mix": "test_no_block_no_seed_and_no_device_shows",
    "devices show": "test_no_block_no_seed_and_no_device_shows",
    "resets all": "test_partial_reset",
    "legacy keys differ": "test_legacy_keys_are_keys",
    "short starts": "test_starts_are_distributed_like_resets",
}


class Toy(VectorEnvContract):
    """Contract of the fuse, which holds unless a fault is injected."""

    fault = ""

    @classmethod
    def make(cls, parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        return _faulty(cls.fault, autoreset_mode, parallel)


@functools.cache
def _contract(fault: str) -> Toy:
    return type("Contract", (Toy,), {"fault": fault})()


@functools.cache
def _rolled(fault: str) -> Any:
    return _contract(fault).roll(_faulty(fault, AutoresetMode.NORMAL, NUM_ENVS))


def _check(fault: str, test: str) -> None:
    """Run one test of the contract on the toy, with its fixtures."""
    contract, env = _contract(fault), _faulty(fault, AutoresetMode.NORMAL, NUM_ENVS)
    makers = {
        "env": lambda: env,
        "rolled": lambda: _rolled(fault),
        "start": lambda: _rolled(fault)[0],
        "records": lambda: jax.tree.map(lambda x: x[: contract.num_steps], _rolled(fault)[2]),
        "resets": lambda: contract.reset_anew(env, makers["start"](), makers["records"]()),
    }
    bound = getattr(contract, test)
    bound(**{name: makers[name]() for name in inspect.signature(bound).parameters})


@pytest.mark.parametrize(("fault", "test"), FAULTS.items())
def test_a_fault_is_seen(fault: str, test: str) -> None:
    with pytest.raises((AssertionError, TypeError)):
        _check(fault, test)


@pytest.mark.parametrize("test", dict.fromkeys(FAULTS.values()))
def test_what_is_sound_passes(test: str) -> None:
    _check("", test)


def test_every_invariant_is_broken_once() -> None:
    tests = {name for suite in (EnvContract, VectorEnvContract) for name in vars(suite) if name.startswith("test_")}
    assert tests == set(FAULTS.values())

"""Rollouts record the transitions, independent of blocks and the number of environments."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.envs import EnvState
from evorl.envs.vector import EnvPoolVmapAutoResetWrapper, FastVmapAutoResetWrapper, VectorEnv
from evorl.envs.wrappers import VmapAutoResetWrapper
from evorl.ops.trees import flatten_leading_axes
from evorl.padded_batch import padded_batch, split_episodes
from evorl.rollout import act_again, block_size, rollout
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.toy_envs import LONGEST, Countdown

LENGTH, NUM_ENVS = 15, 4
KEY = jax.random.key(3)


def _act(agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[jax.Array, PyTreeDict]:
    """Return a random action around the agent's only parameter; ``key`` is one per row, or a single one."""
    sample = Countdown().action_space.sample
    noise = sample(key) if key.ndim == 0 else jax.vmap(sample)(key)
    return agent_state.params + 0.1 * noise, PyTreeDict(seen=batch.obs * 2)


@functools.cache
def _run(num_envs: int = NUM_ENVS, env_chunk: int | None = None) -> tuple[EnvState, SampleBatch, EnvState]:
    """Return the initial state, the trajectory and the last state."""
    env = VmapAutoResetWrapper(Countdown(), num_envs)

    @jax.jit
    def run(key: jax.Array, parameter: jax.Array) -> Any:
        start, fields = env.reset(key), ("termination", "is_reset_step")
        options = {"env_extra_fields": fields, "env_chunk": env_chunk}
        return start, *rollout(env.step, _act, start, AgentState(parameter), key, LENGTH, **options)

    return run(KEY, jnp.float32(0.5))


def _assert_equal(actual: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_transitions_are_those_of_the_environment() -> None:
    start, batch, last = _run()
    batch_obs = np.asarray(batch.obs)
    assert batch_obs.shape == (LENGTH, NUM_ENVS, 1)
    _assert_equal(batch_obs[0], start.obs)
    np.testing.assert_allclose(batch.rewards, (batch_obs + batch.actions)[..., 0], rtol=1e-6)
    _assert_equal(batch.next_obs, batch_obs - 1)  # the true next observation, also at the end of an episode
    _assert_equal(batch.dones, np.asarray(batch.next_obs)[..., 0] == 0)
    follows = np.concatenate([batch_obs[1:], last.obs[None]])
    goes_on = ~np.asarray(batch.dones)
    _assert_equal(follows[goes_on], np.asarray(batch.next_obs)[goes_on])
    assert (follows[~goes_on] >= 1).all()  # a new episode
    assert (~goes_on).sum() >= NUM_ENVS * (LENGTH // LONGEST)


def test_what_was_asked_for_is_remembered() -> None:
    _, batch, _ = _run()
    assert sorted(batch.extras) == ["env_extras", "policy_extras"]
    assert sorted(batch.extras.env_extras) == ["is_reset_step", "termination"]
    _assert_equal(batch.extras.env_extras.termination, batch.dones)
    assert batch.extras.env_extras.is_reset_step.dtype == jnp.bool_
    _assert_equal(batch.extras.policy_extras.seen, batch.obs * 2)


def test_every_environment_and_step_draws_its_own_noise() -> None:
    actions = np.asarray(_run()[1].actions)
    assert len(np.unique(actions)) == actions.size
    assert (np.abs(actions - 0.5) <= 0.1).all()


def test_blocks_of_environments_do_not_show() -> None:
    _, batch, last = _run(env_chunk=3)  # two blocks of two
    _, expected, expected_last = _run()
    _assert_equal(batch, expected)
    _assert_equal((last.obs, last.info), (expected_last.obs, expected_last.info))


def test_environments_do_not_know_how_many_they_are() -> None:
    few, many = _run()[1], _run(num_envs=2 * NUM_ENVS)[1]
    _assert_equal(few, jax.tree.map(lambda x: x[:, :NUM_ENVS], many))


def test_a_single_environment_is_rolled_out_too() -> None:
    env = Countdown()
    start = env.reset(KEY)
    batch, last = rollout(env.step, _act, start, AgentState(jnp.float32(0.0)), KEY, 3)
    left = float(start.obs[0])
    _assert_equal(batch.obs[:, 0], [left, left - 1, left - 2])
    _assert_equal(last.obs, [left - 3])
    assert batch.dones.shape == (3,)


def test_a_field_that_is_not_there_is_refused() -> None:
    env = VmapAutoResetWrapper(Countdown(), 1)
    state = jax.eval_shape(env.reset, KEY)
    with raises_naming(ValueError, "'terminated'", "is_reset_step, ", "'termination'"):
        rollout(env.step, _act, state, AgentState(jnp.float32(0.0)), KEY, 1, env_extra_fields=("terminated",))


@pytest.mark.parametrize(
    ("num_envs", "env_chunk", "expected"), [(8, None, 8), (8, 16, 8), (8, 8, 8), (12, 5, 4), (7, 3, 1), (6, 0, 1)]
)
def test_blocks_are_the_largest_even_ones(num_envs: int, env_chunk: int | None, expected: int) -> None:
    assert block_size(num_envs, env_chunk) == expected


def _counting(agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[jax.Array, PyTreeDict]:
    """Policy that remembers the number of steps of the episode, and its first observation."""
    recurrent_state = batch.extras.recurrent_state
    first = jnp.where(recurrent_state.steps[..., None] == 0, batch.obs, recurrent_state.first)
    actions, _ = _act(agent_state, batch, key)
    return actions, PyTreeDict(recurrent_state=PyTreeDict(steps=recurrent_state.steps + 1, first=first))


@pytest.mark.parametrize("env_chunk", [None, 2])
@pytest.mark.parametrize("wrapper", [VmapAutoResetWrapper, FastVmapAutoResetWrapper, EnvPoolVmapAutoResetWrapper])
def test_memory_is_threaded_stored_and_gone_where_an_episode_starts(
    wrapper: type[VectorEnv], env_chunk: int | None
) -> None:
    env = wrapper(Countdown(), NUM_ENVS)
    zeros = PyTreeDict(steps=jnp.zeros((), jnp.int32), first=jnp.zeros(env.obs_space.shape))
    agent_state = AgentState(jnp.float32(0.5), recurrent_state=zeros)

    def run(start: EnvState) -> tuple[SampleBatch, EnvState]:
        options: Any = {"env_extra_fields": ("is_reset_step",), "env_chunk": env_chunk}
        return rollout(env.step, _counting, start, agent_state, KEY, LENGTH, **options)

    batch, last = jax.jit(run)(env.reset(KEY))
    again, _ = jax.jit(run)(last)
    assert "recurrent" not in batch.extras.policy_extras
    ends = np.concatenate([x.dones | x.extras.env_extras.is_reset_step for x in (batch, again)])
    obs = np.concatenate([batch.obs, again.obs])
    steps, first = (
        np.concatenate([batch.extras.recurrent_state[k], again.extras.recurrent_state[k]]) for k in ("steps", "first")
    )
    assert ends.any(axis=0).all()
    assert steps.max() > 1
    for env_id in range(NUM_ENVS):
        seen, start = 0, 0
        for t in range(2 * LENGTH):
            assert steps[t, env_id] == seen
            np.testing.assert_array_equal(first[t, env_id], obs[start, env_id] if seen else 0.0)
            seen += 1
            if ends[t, env_id]:
                seen, start = 0, t + 1


def _recalling(agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[jax.Array, PyTreeDict]:
    """Policy that depends on all observations of the episode."""
    total = batch.extras.recurrent_state + batch.obs + 1
    return jnp.tanh(agent_state.params * total), PyTreeDict(recurrent_state=total, total=total)


@pytest.mark.parametrize("wrapper", [VmapAutoResetWrapper, EnvPoolVmapAutoResetWrapper])
def test_an_agent_acts_again_as_it_did(wrapper: type[VectorEnv]) -> None:
    """Replayed actions equal the recorded ones for windows with episode ends, slices with their state, and episodes."""
    env = wrapper(Countdown(), NUM_ENVS)
    agent_state = AgentState(jnp.float32(0.1), recurrent_state=jnp.zeros(1))
    options: Any = {"env_extra_fields": ("is_reset_step",)}
    _, last = rollout(env.step, _recalling, env.reset(KEY), agent_state, KEY, 2)
    run = jax.jit(lambda state: rollout(env.step, _recalling, state, agent_state, KEY, LENGTH, **options))
    trajectory, _ = run(last)
    trajectory = trajectory.replace(dones=trajectory.dones | trajectory.extras.env_extras.is_reset_step)
    assert np.asarray(trajectory.extras.recurrent_state[0]).any()
    window = padded_batch(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), trajectory))
    window = window.replace(info=PyTreeDict(recurrent_state=window.data.extras.recurrent_state[:, 0]))
    again, extras = jax.jit(act_again, static_argnums=0)(_recalling, agent_state, window, KEY)
    np.testing.assert_allclose(again, window.data.actions, rtol=1e-6)
    np.testing.assert_allclose(extras.total, window.data.extras.policy_extras.total, rtol=1e-6)

    episodes = split_episodes(trajectory, trajectory.dones)
    episodes = episodes[episodes.info.starts > 0]
    again, _ = act_again(_recalling, agent_state, episodes, KEY)
    mask = np.asarray(episodes.mask)
    assert 0 < mask.sum() < mask.size
    np.testing.assert_allclose(again[mask], episodes.data.actions[mask], rtol=1e-6)


def test_gradients_go_through_what_is_acted_again() -> None:
    obs = jnp.array([[[1.0], [2.0]]])
    batch = padded_batch(SampleBatch(obs=obs))

    def total(params: jax.Array) -> jax.Array:
        actions, _ = act_again(_recalling, AgentState(params, recurrent_state=jnp.zeros(1)), batch, KEY)
        return actions.sum()

    slope = 2 / jnp.cosh(0.2) ** 2 + 5 / jnp.cosh(0.5) ** 2
    np.testing.assert_allclose(jax.grad(total)(jnp.float32(0.1)), slope, rtol=1e-5)


def test_an_agent_without_recurrent_state_acts_again_too() -> None:
    batch = padded_batch(SampleBatch(obs=jnp.arange(6.0).reshape(2, 3, 1)))
    actions, extras = act_again(_act, AgentState(jnp.float32(0.5)), batch, KEY)
    np.testing.assert_array_equal(extras.seen, 2 * batch.data.obs)
    assert len(np.unique(flatten_leading_axes(actions))) == 6

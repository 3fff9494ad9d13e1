"""Contract of all environments. The test of an adapter provides an environment and inherits the rest.

``EnvContract`` needs one compiled rollout. ``VectorEnvContract`` adds the guarantees of all autoreset modes and every
way of splitting the batch, and is meant for environments that compile quickly.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, EnvState
from evorl.envs.wrappers import VectorEnv
from evorl.ops.collectives import DATA_AXIS, over_agents
from evorl.types import PyTreeDict
from tests.support.small_workflows import arrays, assert_close
from tests.support.toy_envs import with_starts

NUM_ENVS, MANY_KEYS = 4, 2000
Rolled = tuple[EnvState, EnvState, dict[str, Any]]  # see ``EnvContract.roll``
INFO_DTYPES = {
    "termination": np.bool_,
    "truncation": np.bool_,
    "is_reset_step": np.bool_,
    "steps": np.int32,
    "episode_length": np.int32,
    "episode_return": np.float32,
}


def random_actions(env: VectorEnv, env_state: EnvState, t: jax.Array) -> jax.Array:
    """Sample actions ``[B]`` that depend only on the environment's number and the step."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(jax.random.key(7), i), t))(
        env_state._internal.env_id
    )
    return jax.vmap(env.action_space.sample)(keys)


def record(state: EnvState) -> PyTreeDict:
    """Return the parts of a state that the tests check."""
    return PyTreeDict(obs=state.obs, reward=state.reward, done=state.done, **state.info)


def play(env: VectorEnv, state: EnvState, num_steps: int, first: Any = 0) -> tuple[EnvState, PyTreeDict]:
    """Play random actions for ``num_steps``, counting steps from ``first``; return the last state and records ``[T, B,
    ...]``.
    """

    def step(state: EnvState, t: jax.Array) -> tuple[EnvState, PyTreeDict]:
        state = traced_step(env, state, random_actions(env, state, t))
        return state, record(state)

    return jax.lax.scan(step, state, first + jnp.arange(num_steps))


@functools.partial(jax.jit, static_argnums=0)
def traced_reset(env: VectorEnv, key: jax.Array) -> EnvState:
    """Reset the environment; traced once for all programs of an environment."""
    return env.reset(key)


@functools.partial(jax.jit, static_argnums=0)
def traced_step(env: VectorEnv, state: EnvState, action: jax.Array) -> EnvState:
    """Step the environment; traced once for all programs of an environment."""
    return env.step(state, action)


_play = jax.jit(play, static_argnums=(0, 2))


def compiled_play(env: VectorEnv, state: EnvState, num_steps: int, first: int = 0) -> tuple[EnvState, PyTreeDict]:
    """Run ``play`` in one program for all starts of an environment."""
    return _play(env, state, num_steps, np.int32(first))


@functools.partial(jax.jit, static_argnums=(0, 2))
def rollout(env: VectorEnv, key: jax.Array, num_steps: int) -> tuple[EnvState, EnvState, PyTreeDict]:
    """Reset and ``play`` in one program; return the reset's state, then the results of ``play``."""
    start = traced_reset(env, key)
    return start, *play(env, start, num_steps)


def _words(x: Any) -> Any:
    is_key = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def joined(obs: Any, num_axes: int) -> np.ndarray:
    """Concatenate the leaves of observations with ``num_axes`` leading axes to vectors ``[..., features]``."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(obs)]
    return np.concatenate([x.reshape(*x.shape[:num_axes], -1) for x in leaves], axis=-1)


def kolmogorov_smirnov(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples, in units of its standard scale."""
    points = np.unique(np.concatenate([a, b]))
    shares = [np.searchsorted(np.sort(x), points, side="right") / len(x) for x in (a, b)]
    distance = np.abs(shares[0] - shares[1]).max()
    return float(distance * np.sqrt(len(a) * len(b) / (len(a) + len(b))))


class EnvContract:
    """Inherit and define ``make``; set the attributes where the defaults do not fit."""

    num_steps = 64  # steps of the rollout: several episodes
    can_terminate = True
    can_truncate = True
    tolerance = 1e-5  # between programs that round differently

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build the environment under test, with several episodes in ``num_steps``."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls) -> VectorEnv:
        """Build the environment with autoreset mode NORMAL."""
        return cls.make(NUM_ENVS, AutoresetMode.NORMAL)

    @pytest.fixture(scope="class")
    @classmethod
    def rolled(cls, env: VectorEnv) -> Rolled:
        """Return the results of ``roll``."""
        return cls.roll(env)

    @classmethod
    def roll(cls, env: VectorEnv) -> Rolled:
        """Play random actions from a reset; return the first state, the last, and records ``[T, B, ...]``."""
        start, last, records = rollout(env, jax.random.key(3), cls.steps_to_play())
        return start, last, jax.tree.map(np.asarray, records)

    @classmethod
    def steps_to_play(cls) -> int:
        """Return the number of steps to play; most tests check the first ``num_steps``."""
        return cls.num_steps

    @pytest.fixture(scope="class")
    @classmethod
    def start(cls, rolled: Rolled) -> EnvState:
        """Return the state after a reset."""
        return rolled[0]

    @pytest.fixture(scope="class")
    @classmethod
    def records(cls, rolled: Rolled) -> dict[str, Any]:
        """Return records ``[T, B, ...]`` of random play."""
        return jax.tree.map(lambda x: x[: cls.num_steps], rolled[2])

    def test_step_keeps_the_types_of_reset(self, env: VectorEnv) -> None:
        before = traced_reset.eval_shape(env, jax.random.key(3))
        after = traced_step.eval_shape(env, before, jax.eval_shape(lambda: env.action_space.zeros((NUM_ENVS,))))
        assert jax.tree.structure(before) == jax.tree.structure(after)
        for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert x.shape[0] == NUM_ENVS
            assert not y.weak_type

    def test_spaces_match(self, env: VectorEnv, start: EnvState, records: dict[str, Any]) -> None:
        for obs, spec in zip(jax.tree.leaves(start.obs), jax.tree.leaves(env.obs_space.spec), strict=True):
            assert (obs.shape[1:], obs.dtype) == (spec.shape, spec.dtype)
        assert env.obs_space.contains(start.obs).all()
        assert env.obs_space.contains(records["obs"]).all()
        assert env.obs_space.contains(records["next_obs"]).all()
        assert env.action_space.contains(random_actions(env, start, jnp.asarray(0))).all()

    def test_info_is_complete(self, start: EnvState) -> None:
        assert start.reward.dtype == jnp.float32
        assert start.done.dtype == jnp.bool_
        for name, dtype in INFO_DTYPES.items():
            assert start.info[name].dtype == dtype, name
            assert not start.info[name].any(), name
        assert isinstance(start.info.metrics, PyTreeDict)

    def test_counts_and_returns(self, records: dict[str, Any]) -> None:
        steps, total = np.zeros(NUM_ENVS, np.int64), np.zeros(NUM_ENVS)
        for t in range(self.num_steps):
            steps, total = steps + 1, total + records["reward"][t]
            np.testing.assert_array_equal(records["steps"][t], steps)
            np.testing.assert_array_equal(records["episode_length"][t], steps)
            np.testing.assert_allclose(records["episode_return"][t], total, rtol=1e-4, atol=1e-4)
            steps, total = (np.where(records["done"][t], 0, x) for x in (steps, total))

    def test_ends_are_told_apart(self, env: VectorEnv, records: dict[str, Any]) -> None:
        termination, truncation = records["termination"], records["truncation"]
        np.testing.assert_array_equal(records["done"], termination | truncation)
        assert not (termination & truncation).any()
        assert termination.any() == self.can_terminate
        assert truncation.any() == self.can_truncate
        limit = env.max_episode_steps
        assert limit is None or records["steps"].max() <= limit
        assert (records["steps"][truncation] == limit).all()
        assert (termination | truncation)[records["steps"] == limit].all()

    def test_next_obs_is_the_successor(self, records: dict[str, Any]) -> None:
        done = records["done"]
        for obs, next_obs in zip(jax.tree.leaves(records["obs"]), jax.tree.leaves(records["next_obs"]), strict=True):
            np.testing.assert_array_equal(obs[~done], next_obs[~done])
        assert not np.array_equal(joined(records["obs"], 2)[done], joined(records["next_obs"], 2)[done])

    def test_starts_of_successive_episodes_differ(self, start: EnvState, records: dict[str, Any]) -> None:
        for i in range(NUM_ENVS):
            starts = joined(records["obs"], 2)[records["done"][:, i], i]
            assert len(np.unique(starts, axis=0)) == len(starts)

    def test_when_starts_are_computed_does_not_show(self, env: VectorEnv, start: EnvState, records: dict) -> None:
        """The policy of accelerators for cheap resets gives the same starts, bit by bit, and the same episodes.

        A step is compiled in another program, and may round differently.
        """
        other_start, _, others = rollout(with_starts(env, "every_step"), jax.random.key(3), self.num_steps)
        others = jax.tree.map(np.asarray, others)
        np.testing.assert_array_equal(others["done"], records["done"])
        starts, other_starts = (jax.tree.map(lambda x: x[records["done"]], x["obs"]) for x in (records, others))
        ours, theirs = arrays((start, starts)), arrays((other_start, other_starts))
        for (name, x), y in zip(ours.items(), theirs.values(), strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)
        assert_close(others, PyTreeDict(records), self.tolerance)


class VectorEnvContract(EnvContract):
    """All autoreset modes, blocks of environments, seeds, partial resets, and the distribution of starts."""

    many_steps = 1024  # enough episodes for a statistical test

    @classmethod
    def steps_to_play(cls) -> int:
        """Return enough steps for the distribution of starts."""
        return cls.many_steps

    def played(self, mode: AutoresetMode) -> tuple[EnvState, Any]:
        """Play another mode with the keys of NORMAL; return the start and the records ``[T, B, ...]``."""
        start, _, records = rollout(self.make(NUM_ENVS, mode), jax.random.key(3), self.num_steps)
        return start, jax.tree.map(np.asarray, records)

    @pytest.fixture(scope="class")
    @classmethod
    def resets(cls, env: VectorEnv, start: EnvState, records: dict[str, Any]) -> tuple[Any, Any]:
        """Return the results of ``reset_anew``."""
        return cls.reset_anew(env, start, records)

    @staticmethod
    def reset_anew(env: VectorEnv, start: EnvState, records: dict[str, Any]) -> tuple[Any, Any]:
        """Return observations of resets in one program: for the keys with which the records' episodes must start, in
        their order, and for ``MANY_KEYS`` others.
        """
        t, row = np.nonzero(records["done"])
        episodes = np.cumsum(records["done"], axis=0)[t, row]

        @jax.jit
        def reset(keys: jax.Array) -> Any:
            keys = jax.vmap(jax.random.fold_in)(keys[row], episodes)
            keys = jnp.concatenate([keys, jax.random.split(jax.random.key(9), MANY_KEYS)])
            return over_agents(env.env.reset, env.num_agents)(keys).obs

        obs = jax.tree.map(np.asarray, reset(start._internal.key))
        return jax.tree.map(lambda x: x[: len(t)], obs), jax.tree.map(lambda x: x[len(t) :], obs)

    def test_every_episode_starts_from_a_fresh_reset(self, records: dict[str, Any], resets: tuple[Any, Any]) -> None:
        """Start n of environment i equals ``reset(fold_in(key_i, n))``."""
        assert records["done"].sum() >= 4
        starts = jax.tree.map(lambda x: x[records["done"]], records["obs"])
        assert_close(starts, resets[0], self.tolerance)

    def test_disabled_freezes(self, records: dict[str, Any]) -> None:
        _, frozen = self.played(AutoresetMode.DISABLED)
        ended = np.cumsum(records["done"], axis=0)
        first = (ended == 0) | ((ended == 1) & records["done"])
        assert_close(
            jax.tree.map(lambda x: x[first], {k: frozen[k] for k in ("reward", "done", "next_obs", "steps")}),
            jax.tree.map(lambda x: x[first], {k: records[k] for k in ("reward", "done", "next_obs", "steps")}),
            self.tolerance,
        )
        assert not frozen["reward"][~first].any()
        assert frozen["done"][~first].all()
        last, obs = frozen["done"].argmax(axis=0), joined(frozen["obs"], 2)
        for i in range(NUM_ENVS):
            assert (obs[last[i] :, i] == obs[last[i], i]).all()
            assert (frozen["episode_return"][last[i] :, i] == frozen["episode_return"][last[i], i]).all()

    def test_fast_reuses_the_first_start(self) -> None:
        start, records = self.played(AutoresetMode.FAST)
        for i in range(NUM_ENVS):
            starts = joined(records["obs"], 2)[records["done"][:, i], i]
            np.testing.assert_array_equal(starts, np.broadcast_to(joined(start.obs, 1)[i], starts.shape))

    def test_envpool_has_reset_steps(self, records: dict[str, Any]) -> None:
        _, envpool = self.played(AutoresetMode.ENVPOOL)
        flagged = envpool["is_reset_step"]
        np.testing.assert_array_equal(flagged[1:], envpool["done"][:-1])
        assert flagged.any()
        for name in ("reward", "done", "steps", "episode_return", "termination", "truncation"):
            assert not envpool[name][flagged].any(), name
        obs = joined(envpool["obs"], 2)
        np.testing.assert_array_equal(obs, joined(envpool["next_obs"], 2))
        i = int(flagged.any(axis=0).argmax())
        starts = joined(records["obs"], 2)[records["done"][:, i], i]
        np.testing.assert_allclose(obs[flagged[:, i], i][0], starts[0], atol=self.tolerance)

    def test_no_block_no_seed_and_no_device_shows(self, env: VectorEnv, records: dict[str, Any]) -> None:
        """Two seeds under ``vmap``, sharded over two devices and played in blocks, equal each seed alone."""
        mesh = jax.make_mesh((2,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
        run = jax.shard_map(
            jax.vmap(lambda key: self.played_in_blocks(env, traced_reset(env, key))),
            mesh=mesh,
            in_specs=jax.sharding.PartitionSpec(),
            out_specs=jax.sharding.PartitionSpec(None, None, DATA_AXIS),
            check_vma=False,
        )
        seeds = jax.tree.map(np.asarray, jax.jit(run)(jnp.stack([jax.random.key(3), jax.random.key(4)])))
        assert_close(jax.tree.map(lambda x: x[0], seeds), PyTreeDict(records), self.tolerance)

    def played_in_blocks(self, env: VectorEnv, start: EnvState) -> PyTreeDict:
        """Play one block of a device (an environment, or a copy of several agents) after another; return records."""
        rows = (-1, env.num_agents)
        blocks = jax.tree.map(lambda x: x.reshape(*rows, *x.shape[1:]), start)
        records = jax.lax.map(lambda block: play(env, block, self.num_steps)[1], blocks)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), records)

    def test_partial_reset(self, env: VectorEnv, rolled: Rolled) -> None:
        mask = np.arange(NUM_ENVS) // env.num_agents % 2 == 1

        @jax.jit
        def resets(state: EnvState, key: jax.Array) -> Any:
            none = jnp.zeros(NUM_ENVS, bool)
            after = [env.partial_reset(state, mask, key), env.partial_reset(state, none, key), env.reset(key)]
            return jax.tree.map(_words, [state, *after])

        state, after, same, fresh = jax.tree.map(np.asarray, resets(rolled[1], jax.random.key(11)))
        assert_close(jax.tree.map(lambda x: x[mask], after), jax.tree.map(lambda x: x[mask], fresh))
        assert_close(jax.tree.map(lambda x: x[~mask], after), jax.tree.map(lambda x: x[~mask], state))
        assert_close(same, state)

    def test_legacy_keys_are_keys(self, env: VectorEnv) -> None:
        legacy, new = jax.jit(lambda *keys: [env.reset(key) for key in keys])(jax.random.PRNGKey(5), jax.random.key(5))
        assert_close(legacy, new)

    def test_starts_are_distributed_like_resets(self, rolled: Rolled, resets: tuple[Any, Any]) -> None:
        records = rolled[2]
        later, resets = joined(records["obs"], 2)[records["done"]], joined(resets[1], 1)
        assert len(later) >= 100
        for feature in range(later.shape[1]):
            # Equal distributions exceed 2.2 with probability 1e-4.
            assert kolmogorov_smirnov(later[:, feature], resets[:, feature]) < 2.2

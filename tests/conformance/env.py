"""What every environment promises, stated once; each adapter's test supplies an environment and inherits the rest.

``EnvContract`` needs one compiled rollout. ``VectorEnvContract`` adds what all autoreset modes and every way of
splitting the batch promise, and is meant for environments that compile fast.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, EnvState
from evorl.envs.wrappers import VectorEnv
from evorl.ops.collectives import DATA_AXIS, over_agents
from evorl.types import PyTreeDict

NUM_ENVS = 4
INFO_DTYPES = {
    "termination": np.bool_,
    "truncation": np.bool_,
    "is_reset_step": np.bool_,
    "steps": np.int32,
    "episode_length": np.int32,
    "episode_return": np.float32,
}


def random_actions(env: VectorEnv, env_state: EnvState, t: jax.Array) -> jax.Array:
    """Random actions that depend on the number of the environment and the step only, ``[B]``."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(jax.random.key(7), i), t))(
        env_state._internal.env_id
    )
    return jax.vmap(env.action_space.sample)(keys)


def record(state: EnvState) -> PyTreeDict:
    """What the tests look at."""
    return PyTreeDict(obs=state.obs, reward=state.reward, done=state.done, **state.info)


def play(env: VectorEnv, state: EnvState, num_steps: int) -> tuple[EnvState, PyTreeDict]:
    """Random actions for ``num_steps``: the last state and the records ``[T, B, ...]``."""

    def step(state: EnvState, t: jax.Array) -> tuple[EnvState, PyTreeDict]:
        state = env.step(state, random_actions(env, state, t))
        return state, record(state)

    return jax.lax.scan(step, state, jnp.arange(num_steps))


compiled_play = jax.jit(play, static_argnums=(0, 2))


def assert_trees_equal(a: Any, b: Any, tolerance: float = 0.0) -> None:
    """Same structure and, leaf by leaf, equal (or close) values; keys are compared by their words."""

    def compare(x: Any, y: Any) -> None:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=tolerance, atol=tolerance)

    jax.tree.map(compare, a, b)


def joined(obs: Any, num_axes: int) -> np.ndarray:
    """Observations with so many leading axes as vectors of all their parts, ``[..., features]``."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(obs)]
    return np.concatenate([x.reshape(*x.shape[:num_axes], -1) for x in leaves], axis=-1)


def kolmogorov_smirnov(a: np.ndarray, b: np.ndarray) -> float:
    """The largest distance of two empirical distributions, in units of its standard scale."""
    points = np.concatenate([a, b])
    distance = np.abs((a[:, None] <= points).mean(0) - (b[:, None] <= points).mean(0)).max()
    return float(distance * np.sqrt(len(a) * len(b) / (len(a) + len(b))))


class EnvContract:
    """Inherit, and define ``make``; set the attributes where the defaults do not fit."""

    num_steps = 64  # of the rollout: several episodes
    can_terminate = True
    can_truncate = True
    tolerance = 1e-5  # between programs that round differently

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """The environment under test, with episodes short enough for several in ``num_steps``."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls) -> VectorEnv:
        """The environment, autoreset NORMAL."""
        return cls.make(NUM_ENVS, AutoresetMode.NORMAL)

    @pytest.fixture(scope="class")
    @classmethod
    def start(cls, env: VectorEnv) -> EnvState:
        """The state after a reset."""
        return env.reset(jax.random.key(3))

    @pytest.fixture(scope="class")
    @classmethod
    def records(cls, env: VectorEnv, start: EnvState) -> dict[str, Any]:
        """Records ``[T, B, ...]`` of random play."""
        return jax.tree.map(np.asarray, compiled_play(env, start, cls.num_steps)[1])

    def test_step_keeps_the_types_of_reset(self, env: VectorEnv, start: EnvState) -> None:
        action = jax.eval_shape(lambda: env.action_space.zeros((NUM_ENVS,)))
        before, after = jax.eval_shape(lambda s: s, start), jax.eval_shape(env.step, start, action)
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


class VectorEnvContract(EnvContract):
    """All autoreset modes, blocks of rows, seeds, partial resets, and the distribution of starts."""

    many_steps = 1024  # enough episodes for a statistical test

    def played(self, mode: AutoresetMode) -> tuple[EnvState, Any]:
        """The start and the records ``[T, B, ...]`` of another mode, with the keys of the NORMAL one."""
        env = self.make(NUM_ENVS, mode)
        start = env.reset(jax.random.key(3))
        return start, jax.tree.map(np.asarray, compiled_play(env, start, self.num_steps)[1])

    def test_every_episode_starts_from_a_fresh_reset(
        self, env: VectorEnv, start: EnvState, records: dict[str, Any]
    ) -> None:
        """Start n of environment i is ``reset(fold_in(key_i, n))``."""
        keys, episodes = start._internal.key, np.cumsum(records["done"], axis=0)
        t, row = np.nonzero(records["done"])
        assert len(t) >= 4
        reset = jax.jit(over_agents(env.env.reset, env.num_agents))
        expected = reset(jax.vmap(jax.random.fold_in)(keys[row], episodes[t, row]))
        assert_trees_equal(jax.tree.map(lambda x: x[t, row], records["obs"]), expected.obs, self.tolerance)

    def test_disabled_freezes(self, records: dict[str, Any]) -> None:
        _, frozen = self.played(AutoresetMode.DISABLED)
        ended = np.cumsum(records["done"], axis=0)
        first = (ended == 0) | ((ended == 1) & records["done"])
        assert_trees_equal(
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

    def test_rows_do_not_depend_on_their_block(self, env: VectorEnv, start: EnvState, records: dict[str, Any]) -> None:
        halves = jax.tree.map(lambda x: x.reshape(2, NUM_ENVS // 2, *x.shape[1:]), start)
        _, blocks = jax.jit(lambda s: jax.lax.map(lambda half: play(env, half, self.num_steps), s))(halves)
        joined = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(self.num_steps, NUM_ENVS, *x.shape[3:]), blocks)
        assert_trees_equal(joined, PyTreeDict(records), self.tolerance)

    def test_seeds_under_vmap_equal_solo_runs(self, env: VectorEnv, records: dict[str, Any]) -> None:
        keys = jax.random.split(jax.random.key(0), 2)
        keys = jnp.stack([jax.random.key(3), keys[1]])
        _, batched = jax.jit(jax.vmap(lambda key: play(env, env.reset(key), self.num_steps)))(keys)
        assert_trees_equal(jax.tree.map(lambda x: x[0], batched), PyTreeDict(records), self.tolerance)

    def test_devices_do_not_show(self, env: VectorEnv, records: dict[str, Any]) -> None:
        if len(jax.devices()) < 2:
            pytest.skip("needs two devices")
        mesh = jax.make_mesh((2,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
        batch = jax.sharding.PartitionSpec(DATA_AXIS)
        time_batch = jax.sharding.PartitionSpec(None, DATA_AXIS)
        run = jax.shard_map(
            lambda key: play(env, env.reset(key), self.num_steps),
            mesh=mesh,
            in_specs=jax.sharding.PartitionSpec(),
            out_specs=(batch, time_batch),
            check_vma=False,
        )
        assert_trees_equal(jax.jit(run)(jax.random.key(3))[1], PyTreeDict(records), self.tolerance)

    def test_partial_reset(self, env: VectorEnv, start: EnvState) -> None:
        state, _ = compiled_play(env, start, self.num_steps)
        key, mask = jax.random.key(11), np.arange(NUM_ENVS) // env.num_agents % 2 == 1
        after, fresh = env.partial_reset(state, mask, key), env.reset(key)
        assert_trees_equal(jax.tree.map(lambda x: x[mask], after), jax.tree.map(lambda x: x[mask], fresh))
        assert_trees_equal(jax.tree.map(lambda x: x[~mask], after), jax.tree.map(lambda x: x[~mask], state))
        assert_trees_equal(env.partial_reset(state, jnp.zeros(NUM_ENVS, bool), key), state)

    def test_legacy_keys_are_keys(self, env: VectorEnv) -> None:
        assert_trees_equal(env.reset(jax.random.PRNGKey(5)), env.reset(jax.random.key(5)))

    def test_starts_are_distributed_like_resets(self, env: VectorEnv, start: EnvState) -> None:
        records = jax.tree.map(np.asarray, compiled_play(env, start, self.many_steps)[1])
        later = joined(records["obs"], 2)[records["done"]]
        reset = jax.jit(over_agents(env.env.reset, env.num_agents))
        resets = reset(jax.random.split(jax.random.key(9), 2000)).obs
        resets = joined(resets, 1)
        assert len(later) >= 100
        for feature in range(later.shape[1]):
            # 2.2 is exceeded with probability 1e-4 by equal distributions.
            assert kolmogorov_smirnov(later[:, feature], resets[:, feature]) < 2.2

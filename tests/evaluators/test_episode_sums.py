"""The episode loop: sums, recorded data, and its end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.envs import AutoresetMode, EnvState
from evorl.envs.wrappers import VECTOR_ENVS
from evorl.evaluators.episodes import EpisodeOutcomes, episode_keys, play_episodes
from evorl.ops.normalization import add_groups, init_statistics, update_statistics
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.toy_envs import LONGEST, Countdown

NUM_EPISODES = 12
WANTED = np.arange(NUM_EPISODES) != 5
FIELDS = ("metrics.left", "metrics.place.corner")


class Measured(Countdown):
    """The countdown with two metrics: the remaining steps, and twice their number."""

    def _state(self, left: jax.Array, reward: jax.Array) -> EnvState:
        state = super()._state(left, reward)
        number = left.astype(jnp.float32)
        metrics = PyTreeDict(left=left, place=PyTreeDict(corner=jnp.stack([number, 2 * number])))
        return state.replace(info=state.info.replace(metrics=metrics))


def _act(agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[jax.Array, PyTreeDict]:
    return jnp.zeros_like(batch.obs), PyTreeDict()


def _play(
    mode: AutoresetMode = AutoresetMode.DISABLED, action_fn: Any = _act, limit: int = 100, **options: Any
) -> EpisodeOutcomes:
    env = VECTOR_ENVS[mode](Measured(), NUM_EPISODES)
    statistics = init_statistics(env.obs_space.zeros()).replace(mean=jnp.array([2.0]))
    agent_state = AgentState(PyTreeDict(), obs_preprocessor_state=statistics)
    keys = episode_keys(jax.random.key(5), jnp.arange(NUM_EPISODES))
    return jax.jit(lambda wanted: play_episodes(env, action_fn, agent_state, keys, wanted, limit, **options))(
        jnp.asarray(WANTED)
    )


@pytest.fixture(scope="module", params=[AutoresetMode.DISABLED, AutoresetMode.NORMAL])
def outcomes(request: pytest.FixtureRequest) -> EpisodeOutcomes:
    return _play(request.param, env_fields=FIELDS, observe=True)


def test_sums_and_last_values_are_those_of_one_episode(outcomes: EpisodeOutcomes) -> None:
    lengths = np.asarray(outcomes.lengths)
    assert lengths[WANTED].min() >= 1
    assert len(np.unique(lengths[WANTED])) > 2
    np.testing.assert_array_equal(outcomes.returns, lengths * (lengths + 1) / 2)
    left = lengths * (lengths - 1) / 2  # after each step
    np.testing.assert_array_equal(outcomes.totals["metrics.left"], left)
    np.testing.assert_array_equal(outcomes.totals["metrics.place.corner"], np.stack([left, 2 * left], axis=1))
    np.testing.assert_array_equal(outcomes.last["metrics.left"], 0.0)


def test_episodes_that_are_not_wanted_leave_nothing(outcomes: EpisodeOutcomes) -> None:
    nothing = jax.tree.map(lambda x: x[5], outcomes)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(nothing))


def test_statistics_are_those_of_all_observations_acted_on(outcomes: EpisodeOutcomes) -> None:
    lengths = np.asarray(outcomes.lengths)
    seen = np.concatenate([np.arange(n, 0, -1.0) for n in lengths])[:, None].astype(np.float32)
    np.testing.assert_array_equal(outcomes.observed.count, lengths)
    before = update_statistics(init_statistics(jnp.zeros(1)), jnp.array([[1.0], [7.0]]))
    expected = update_statistics(before, seen)
    actual = add_groups(before, outcomes.observed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), actual, expected)


def test_an_episode_that_runs_still_counts_as_it_stands() -> None:
    whole, cut = _play(), _play(limit=2, env_fields=("metrics.left",), discount=0.5)
    lengths = np.asarray(whole.lengths)
    played = np.minimum(lengths, 2)
    np.testing.assert_array_equal(cut.lengths, played)
    np.testing.assert_array_equal(cut.last["metrics.left"], np.where(WANTED, lengths - played, 0))
    second = np.where(played > 1, 0.5 * (lengths - 1), 0.0)
    np.testing.assert_allclose(cut.returns, lengths + second, rtol=1e-6)


def test_stepping_stops_when_all_wanted_episodes_have_ended() -> None:
    steps: list[int] = []

    def counting(agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        jax.debug.callback(lambda: steps.append(1))
        return _act(agent_state, batch, key)

    longest = int(_play(action_fn=counting).lengths.max())
    jax.effects_barrier()
    assert len(steps) == longest <= LONGEST


def test_a_field_that_is_not_there_is_answered_with_those_that_are() -> None:
    with raises_naming(ValueError, "'metrics.lift'", "'metrics.left'", "termination"):
        _play(env_fields=("metrics.lift",))

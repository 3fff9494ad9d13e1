"""Populations are evaluated exactly, for any chunk size and number of devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.agent import Agent, AgentState
from evorl.envs import AutoresetMode
from evorl.envs.space import Space
from evorl.envs.wrappers import VECTOR_ENVS
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.evaluators.population_evaluator import PopulationEvaluator
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.normalization import RunningStatistics, add_groups, init_statistics, update_statistics
from evorl.ops.random import draw
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close, assert_identical
from tests.support.toy_envs import Countdown

POP_SIZE, NUM_EPISODES = 5, 3
STATISTICS = init_statistics(jnp.zeros(1))
BONUSES = 0.25 * jnp.arange(8.0)  # added to each reward per individual; more than the evaluated individuals


class Generous(Agent):
    """Agent whose action is its policy's bonus plus noise."""

    noise: float = 0.0

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(PyTreeDict(policy=jnp.zeros(())), obs_preprocessor_state=STATISTICS)

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        raise AssertionError("individuals act as in evaluations")

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        noise = draw(jax.random.normal, key, sample_batch.obs.shape)
        return agent_state.params.policy + self.noise * noise, PyTreeDict()


def _ask(first: jax.Array | int, count: int) -> Params:
    return BONUSES[jnp.minimum(first + jnp.arange(count), 7)]


def _evaluate(
    noise: float = 0.0, group_size: int = 1, num_devices: int = 1, **fields: Any
) -> tuple[EpisodeOutcomes, RunningStatistics]:
    evaluator = PopulationEvaluator(
        env=VECTOR_ENVS[AutoresetMode.DISABLED](Countdown(), 1), num_episodes=NUM_EPISODES, observe=True, **fields
    )
    agent = Generous(noise=noise)
    agent_state = agent.init(evaluator.env.obs_space, evaluator.env.action_space, jax.random.key(0))

    def run(key: Key) -> tuple[EpisodeOutcomes, RunningStatistics]:
        outcomes = evaluator.evaluate(agent, agent_state, _ask, POP_SIZE, key, group_size)
        return outcomes.replace(observed=None), add_groups(STATISTICS, outcomes.observed)

    if num_devices > 1:
        mesh = jax.make_mesh((num_devices,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
        whole = PartitionSpec()
        run = jax.shard_map(run, mesh=mesh, in_specs=(whole,), out_specs=whole, check_vma=False)
    return jax.jit(run)(jax.random.key(11))


@pytest.fixture(scope="module")
def whole() -> tuple[EpisodeOutcomes, RunningStatistics]:
    """Evaluate all individuals together, with action noise."""
    return _evaluate(noise=0.1)


def test_returns_are_those_of_whole_episodes() -> None:
    outcomes, statistics = _evaluate()
    lengths = np.asarray(outcomes.lengths)
    assert lengths.shape == (POP_SIZE, NUM_EPISODES)
    assert len(np.unique(lengths)) > 3
    expected = lengths * (lengths + 1) / 2 + lengths * np.asarray(BONUSES)[:POP_SIZE, None]
    np.testing.assert_allclose(outcomes.returns, expected, rtol=1e-6)
    seen = np.concatenate([np.arange(n, 0, -1.0) for n in lengths.reshape(-1)])[:, None]
    assert_close(statistics, update_statistics(STATISTICS, jnp.asarray(seen, jnp.float32)), 1e-4)


# Neither the chunk size nor the number of devices divides the population.
@pytest.mark.parametrize(
    "layout",
    [{"chunk": 2}, {"num_devices": 2, "chunk": 3, "group_size": 2}, {"num_devices": 4}],
    ids=str,
)
def test_layouts_do_not_show(layout: dict[str, Any], whole: tuple) -> None:
    outcomes, statistics = _evaluate(noise=0.1, **layout)
    assert_identical(outcomes, whole[0])
    assert_close(statistics, whole[1], 1e-5)


def test_every_episode_draws_its_own_numbers(whole: tuple) -> None:
    lengths, returns = np.asarray(whole[0].lengths), np.asarray(whole[0].returns)
    noise = returns - lengths * (lengths + 1) / 2 - lengths * np.asarray(BONUSES)[:POP_SIZE, None]
    assert len(np.unique(noise.round(4))) == noise.size
    assert (lengths != lengths[0]).any()


def test_common_random_numbers_are_those_of_every_individual() -> None:
    outcomes, _ = _evaluate(noise=0.1, common_random_numbers=True, chunk=2)
    lengths, returns = np.asarray(outcomes.lengths), np.asarray(outcomes.returns)
    np.testing.assert_array_equal(lengths, np.broadcast_to(lengths[0], lengths.shape))
    assert len(np.unique(lengths[0])) > 1
    without_bonus = returns - lengths * np.asarray(BONUSES)[:POP_SIZE, None]
    np.testing.assert_allclose(without_bonus, np.broadcast_to(without_bonus[0], returns.shape), rtol=1e-5)


@pytest.mark.parametrize("name", ["num_episodes", "chunk"])
def test_what_cannot_be_played_is_refused(name: str) -> None:
    with raises_naming(ValueError, name, "got 0"):
        PopulationEvaluator(env=VECTOR_ENVS[AutoresetMode.DISABLED](Countdown(), 1), **{name: 0})

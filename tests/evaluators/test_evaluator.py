"""Evaluations return the requested number of complete episodes, for any autoreset mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.envs import AutoresetMode
from evorl.envs.wrappers import VECTOR_ENVS
from evorl.evaluators import Evaluator
from evorl.metrics import EvaluationMetrics
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.toy_envs import LONGEST, Countdown

KEY = jax.random.key(11)
BONUS = 0.25  # added by the agent to each reward
AGENT_STATE = AgentState(jnp.float32(BONUS))
NUM_EPISODES = 10


def _act(agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[jax.Array, PyTreeDict]:
    return jnp.full_like(batch.obs, agent_state.params), PyTreeDict()


def _evaluator(mode: AutoresetMode = AutoresetMode.DISABLED, num_envs: int = NUM_EPISODES, **fields: Any) -> Evaluator:
    return Evaluator(env=VECTOR_ENVS[mode](Countdown(), num_envs), agent_fn=_act, **fields)


def _return(length: np.ndarray, first: np.ndarray, discount: float = 1.0) -> np.ndarray:
    """Return the return of ``length`` steps from ``first``."""
    steps = np.arange(LONGEST)[:, None]
    rewards = np.where(steps < length, discount**steps * (first - steps + BONUS), 0.0)
    return rewards.sum(axis=0)


@pytest.fixture(scope="module")
def expected() -> EvaluationMetrics:
    """Evaluate all episodes in parallel, in environments that stop at the end of one."""
    return _evaluator().evaluate(AGENT_STATE, KEY, NUM_EPISODES)


def test_returns_are_those_of_whole_episodes(expected: EvaluationMetrics) -> None:
    lengths = np.asarray(expected.episode_lengths)
    assert lengths.shape == (NUM_EPISODES,)
    assert lengths.min() >= 1
    assert lengths.max() <= LONGEST
    assert len(np.unique(lengths)) > 2
    np.testing.assert_allclose(expected.episode_returns, _return(lengths, lengths), rtol=1e-6)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episodes_are_the_same_in_rounds_and_in_every_autoreset_mode(
    mode: AutoresetMode, expected: EvaluationMetrics
) -> None:
    in_rounds = _evaluator(mode, num_envs=4).evaluate(AGENT_STATE, KEY, NUM_EPISODES)
    jax.tree.map(np.testing.assert_array_equal, in_rounds, expected)


def test_blocks_of_environments_do_not_show(expected: EvaluationMetrics) -> None:
    in_blocks = _evaluator(env_chunk=5).evaluate(AGENT_STATE, KEY, NUM_EPISODES)
    jax.tree.map(np.testing.assert_array_equal, in_blocks, expected)


def test_fewer_episodes_are_the_first_of_many(expected: EvaluationMetrics) -> None:
    three = _evaluator().evaluate(AGENT_STATE, KEY, 3)
    jax.tree.map(lambda few, many: np.testing.assert_array_equal(few, many[:3]), three, expected)


def test_another_key_plays_other_episodes_and_the_same_key_the_same(expected: EvaluationMetrics) -> None:
    evaluator = _evaluator()
    again = evaluator.evaluate(AGENT_STATE, KEY, NUM_EPISODES)
    legacy = evaluator.evaluate(AGENT_STATE, jax.random.key_data(KEY), NUM_EPISODES)
    other = evaluator.evaluate(AGENT_STATE, jax.random.key(12), NUM_EPISODES)
    for same in (again, legacy):
        np.testing.assert_array_equal(same.episode_lengths, expected.episode_lengths)
    assert (np.asarray(other.episode_lengths) != np.asarray(expected.episode_lengths)).any()


def test_an_episode_still_running_at_the_limit_counts_as_it_stands(expected: EvaluationMetrics) -> None:
    cut = _evaluator(max_episode_steps=3).evaluate(AGENT_STATE, KEY, NUM_EPISODES)
    first = np.asarray(expected.episode_lengths)
    np.testing.assert_array_equal(cut.episode_lengths, np.minimum(first, 3))
    np.testing.assert_allclose(cut.episode_returns, _return(np.minimum(first, 3), first), rtol=1e-6)


def test_returns_are_discounted(expected: EvaluationMetrics) -> None:
    discounted = _evaluator(discount=0.5).evaluate(AGENT_STATE, KEY, NUM_EPISODES)
    lengths = np.asarray(expected.episode_lengths)
    np.testing.assert_array_equal(discounted.episode_lengths, lengths)
    np.testing.assert_allclose(discounted.episode_returns, _return(lengths, lengths, 0.5), rtol=1e-6)


def test_action_fn_is_another_name_of_agent_fn(expected: EvaluationMetrics) -> None:
    env = VECTOR_ENVS[AutoresetMode.DISABLED](Countdown(), NUM_EPISODES)
    metrics = Evaluator(env=env, action_fn=_act).evaluate(AGENT_STATE, KEY, NUM_EPISODES)
    jax.tree.map(np.testing.assert_array_equal, metrics, expected)


def test_what_cannot_be_evaluated_is_refused() -> None:
    env = VECTOR_ENVS[AutoresetMode.DISABLED](Countdown(), 2)
    with raises_naming(ValueError, "agent_fn", "action_fn"):
        Evaluator(env=env)
    with raises_naming(ValueError, "agent_fn", "action_fn"):
        Evaluator(env=env, agent_fn=_act, action_fn=_act)
    with raises_naming(ValueError, "vectorized environment", "VmapWrapper"):
        Evaluator(env=Countdown(), agent_fn=_act)
    with raises_naming(ValueError, "num_episodes", "got 0"):
        Evaluator(env=env, agent_fn=_act).evaluate(AGENT_STATE, KEY, 0)

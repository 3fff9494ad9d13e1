"""Every step of the first episodes of an evaluation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.envs import AutoresetMode, EnvState
from evorl.envs.vector import VECTOR_ENVS, VectorEnv, VmapWrapper
from evorl.evaluators import Evaluator
from evorl.metrics import EvaluationMetrics
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.toy_envs import LONGEST, Countdown

NUM_EPISODES, NUM_KEPT = 10, 5
BONUS = 0.25


class Visible(Countdown):
    """Environment with one body whose height is the counter."""

    def physics(self, env_state: EnvState) -> PyTreeDict:
        return PyTreeDict(q=env_state.env_state[..., None] * 2.0)


def _act(agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[jax.Array, PyTreeDict]:
    return jnp.full_like(batch.obs, agent_state.params), PyTreeDict()


def _episodes(
    num_envs: int = NUM_EPISODES,
    keep_steps: int = NUM_KEPT,
    cls: type[VectorEnv] = VmapWrapper,
    env: Countdown | None = None,
    **fields: Any,
) -> EvaluationMetrics:
    rows = cls(env or Visible(), num_envs)
    evaluator = Evaluator(env=rows, agent_fn=_act, max_episode_steps=LONGEST, keep_steps=keep_steps, **fields)
    return evaluator.evaluate(AgentState(jnp.float32(BONUS)), jax.random.key(3), NUM_EPISODES)


@pytest.fixture(scope="module")
def kept() -> EvaluationMetrics:
    return _episodes()


def test_every_moment_and_every_step_is_kept(kept: EvaluationMetrics) -> None:
    steps, lengths = kept.steps, np.asarray(kept.episode_lengths)
    assert steps.obs.shape == (NUM_KEPT, LONGEST + 1, 1)
    assert len(np.unique(lengths[:NUM_KEPT])) > 1
    for i, length in enumerate(lengths[:NUM_KEPT]):
        down = np.arange(length, -1, -1)
        np.testing.assert_array_equal(steps.obs[i, : length + 1, 0], down)
        np.testing.assert_array_equal(steps.physics.q[i, : length + 1, 0], 2.0 * down)
        np.testing.assert_array_equal(steps.actions[i, :length], np.full((length, 1), BONUS))
        np.testing.assert_allclose(steps.rewards[i, :length], down[:-1] + BONUS)
        np.testing.assert_array_equal(steps.terminations[i, :length], down[1:] == 0)
    assert steps.is_success is None


# Modes in which the last step of an episode also starts the next one.
_WITHOUT_LAST_STATE = (AutoresetMode.NORMAL, AutoresetMode.FAST)


@pytest.mark.parametrize("mode", _WITHOUT_LAST_STATE)
def test_a_mode_that_loses_the_last_physical_state_is_refused(mode: AutoresetMode) -> None:
    with raises_naming(ValueError, f"autoreset_mode={mode.value}", "autoreset_mode=disabled"):
        _episodes(cls=VECTOR_ENVS[mode])


@pytest.mark.parametrize("mode", _WITHOUT_LAST_STATE)
def test_every_mode_is_accepted_without_physics(mode: AutoresetMode) -> None:
    assert _episodes(cls=VECTOR_ENVS[mode], env=Countdown()).steps.physics == {}


@pytest.mark.parametrize("mode", [mode for mode in AutoresetMode if mode not in _WITHOUT_LAST_STATE])
def test_the_last_physical_state_is_that_of_the_recorded_episode(mode: AutoresetMode, kept: EvaluationMetrics) -> None:
    steps = _episodes(cls=VECTOR_ENVS[mode]).steps
    for i, length in enumerate(np.asarray(kept.episode_lengths)[:NUM_KEPT]):
        np.testing.assert_array_equal(steps.physics.q[i, : length + 1], kept.steps.physics.q[i, : length + 1])


def test_nothing_else_changes(kept: EvaluationMetrics) -> None:
    without = _episodes(keep_steps=0)
    assert without.steps is None
    assert "episodes" not in without.summary()
    jax.tree.map(np.testing.assert_array_equal, without, kept.replace(steps=None))
    assert kept.summary().episodes is kept


@pytest.mark.parametrize("fields", [{"num_envs": 4}, {"env_chunk": 2}], ids=["rounds", "blocks"])
def test_neither_rounds_nor_blocks_show(kept: EvaluationMetrics, fields: dict[str, Any]) -> None:
    """Recorded episodes do not depend on the number of environments or the block size."""
    other = _episodes(**fields)
    for i, length in enumerate(np.asarray(kept.episode_lengths[:NUM_KEPT])):
        for name, end in (("obs", length + 1), ("rewards", length), ("actions", length)):
            actual, expected = getattr(other.steps, name), getattr(kept.steps, name)
            assert len(actual) == NUM_KEPT
            np.testing.assert_array_equal(actual[i, :end], expected[i, :end])
    np.testing.assert_array_equal(other.episode_returns, kept.episode_returns)

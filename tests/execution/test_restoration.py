"""A saved state is restored on the devices of its workflow, fully or in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.execution.restoration import restore
from evorl.runs.checkpointer import RunCheckpointer
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical, small


def test_a_state_comes_back_whole_or_in_part(tmp_path: Path) -> None:
    workflow = small("ppo")
    state = workflow.init(3)
    checkpointer = RunCheckpointer(tmp_path)
    checkpointer.save(state, {"iterations": 0, "timesteps": 0})
    again, progress = restore(workflow, checkpointer, 0, "latest")
    assert_identical(again, state)
    assert progress["timesteps"] == 0
    part, _ = restore(workflow, checkpointer, 0, "latest", ("iterations", "agent_state"))
    assert set(part) == {"iterations", "agent_state"}
    assert_identical(part.agent_state, state.agent_state)


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_iterations_of_another_length_cannot_continue_a_training(algorithm: str, tmp_path: Path) -> None:
    """Steps are iterations times their length: with shorter ones, the steps would go backwards in ``metrics.csv``."""
    workflow = small(algorithm)
    steps = workflow.timesteps_per_iteration
    checkpointer = RunCheckpointer(tmp_path)
    state = workflow.init(3)
    checkpointer.save(state.replace(iterations=state.iterations.add(4)), {"iterations": 4, "timesteps": 4 * steps})
    longer = small(algorithm, rollout_length=2 * workflow.rollout_length)
    with raises_naming(ValueError, f"{2 * steps} steps", f"instead of the {steps} ", "rollout_length", "new run"):
        restore(longer, checkpointer, 0, "latest")
    part, _ = restore(longer, checkpointer, 0, "latest", ("iterations", "agent_state"))  # for an evaluation
    assert int(part.iterations) == 4
    restore(small(algorithm, total_timesteps=1e4, discount=0.5), checkpointer, 0, "latest")

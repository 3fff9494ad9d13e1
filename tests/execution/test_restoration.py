"""A saved state is restored on the devices of its workflow, fully or in part."""

from __future__ import annotations

from pathlib import Path

from evorl.execution.restoration import restore
from evorl.runs.checkpointer import RunCheckpointer
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

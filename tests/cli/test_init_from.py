"""A run that begins from another one, by the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evorl.assembly import workflow_from_config
from evorl.cli import main as cli
from evorl.cli.arguments import overrides_first
from evorl.cli.init_from import refuse_with_resume, warm_start_from
from evorl.execution.restoration import restore
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.workflows.workflow import Workflow
from tests.support.command_line import SMALL


def test_a_run_is_fine_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(*arguments: str) -> RunFolder:
        monkeypatch.setattr(sys, "argv", ["evorl", *SMALL, f"runs_folder={tmp_path}", *arguments])
        cli.train()
        return RunFolder.latest(tmp_path)

    begun: list[Any] = []
    learn = Workflow.learn

    def noting(self: Workflow, state: Any = None, **others: Any) -> Any:
        begun.append(None if state is None else jax.device_get(state.agent_state.params))
        return learn(self, state, **others)

    monkeypatch.setattr(Workflow, "learn", noting)
    first = train()
    workflow = workflow_from_config(first.load_config())
    kept, _ = restore(workflow, RunCheckpointer(first.checkpoints), 0, "latest", ("agent_state",))
    second = train(
        "init_from=latest", "init_from.which=latest", "init_from.parts=[policy]", "optimizer.learning_rate=1e-4"
    )
    assert begun[0] is None
    same = jax.tree.map(np.array_equal, begun[1], jax.device_get(kept.agent_state.params))
    assert all(jax.tree.leaves(same["policy"]))
    assert not all(jax.tree.leaves(same["value"]))
    assert second.path != first.path
    log = second.log.read_text()
    assert f"Starts from {first.path}, checkpoint of 128 steps: policy (" in log
    assert "Newly initialized: value, optimizers" in log
    stored = second.load_config()
    assert stored.init_from == {"run": str(first.path), "parts": ["policy"], "which": "latest"}
    assert RunCheckpointer(second.checkpoints).steps[-1] == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["a"], "init_from must be the folder of a run, latest, or a mapping"),
        ({"runs": "a"}, "there is no key of init_from 'runs'. Did you mean 'run'?"),
        ({"run": 3}, "init_from.run must be the folder of a run, or latest; got 3."),
        ({"run": "a", "parts": []}, "init_from.parts must be a list of names such as [policy]"),
        ("nowhere", "There is no folder nowhere."),
    ],
)
def test_values_that_make_no_sense(given: Any, said: str, tmp_path: Path) -> None:
    workflow: Any = None
    with pytest.raises((ValueError, OSError)) as error:
        warm_start_from(RunSpec.from_config({"init_from": given, "runs_folder": str(tmp_path)}), workflow)
    assert said in str(error.value)


def test_no_run_is_nothing_and_a_resume_refuses_one() -> None:
    workflow: Any = None
    for config in ({}, {"init_from": None}, {"init_from": {"run": None}}):
        assert warm_start_from(RunSpec.from_config(config), workflow)[1] is None
    refuse_with_resume(["resume=latest", "seed=3"])
    with pytest.raises(ValueError, match=r"init_from starts a new run, and resume continues one"):
        refuse_with_resume(["resume=latest", "init_from.run=latest"])
    assert overrides_first(["init_from=latest"]) == ["init_from.run=latest"]
    assert overrides_first(["init_from={run: a}"]) == ["init_from={run: a}"]

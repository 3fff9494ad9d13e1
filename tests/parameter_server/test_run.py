"""Training with a parameter server writes the same files as other runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.execution.restoration import restore
from evorl.execution.session import TrainingDiverged
from evorl.parameter_server.frames import CommandRefused
from evorl.parameter_server.push_record import SERVER_COLUMNS
from evorl.parameter_server.run import ParameterRun
from evorl.parameter_server.worker import settings_for
from evorl.recorders.recorder_group import RecorderGroup
from evorl.recorders.row_file import CsvRecorder
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.recorder import Recorder
from evorl.runs.structure import CheckpointError
from evorl.types import PyTreeDict
from tests.support.errors import assert_names, raises_naming
from tests.support.small_workflows import assert_identical, small

CHANGES: dict[str, Any] = {
    "total_timesteps": 640,
    "log_interval": 128,
    "eval_interval": 256,
    "checkpoint_interval": 192,
}


class _Told(Recorder):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def _run(folder: Path | None, recorder: Recorder | None = None, mode: str = "fifo", **changes: Any) -> ParameterRun:
    workflow = small("a2c", **{**CHANGES, **changes})
    checkpointer = RunCheckpointer(folder / "checkpoints", max_to_keep=9) if folder else None
    return ParameterRun(workflow, settings_for(workflow, {"mode": mode}), 0, recorder, checkpointer)


def _push(run: ParameterRun, sequences: Iterable[int], value: float = 0.01) -> None:
    body = np.full(run.commands.layout.num_bytes // 4, value, np.float32).tobytes()
    for i in sequences:
        header = {"worker": f"w{i % 2}", "sequence": i, "step": run.commands.step, "updates": 0, "steps": 64}
        run.commands.push(header | {"metrics": {"policy_loss": float(i)}, "episodes": [2, 10.0 * i, 16]}, body)


def test_rows_evaluations_and_checkpoints_come_at_their_steps(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "metrics.csv")
    run = _run(tmp_path, recorder)
    _push(run, range(1, 11))
    run.end()
    recorder.close()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [(row["iterations"], row["timesteps"]) for row in rows] == [(str(i), str(64 * i)) for i in (2, 4, 6, 8, 10)]
    assert [float(row["train/policy_loss"]) for row in rows] == [1.5, 3.5, 5.5, 7.5, 9.5]
    assert [float(row["train/episode_return"]) for row in rows] == [7.5, 17.5, 27.5, 37.5, 47.5]
    assert [float(row["train/staleness"]) for row in rows] == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert {row["train/workers"] for row in rows} == {"2"}
    assert [bool(row["eval/episode_return"]) for row in rows] == [False, True, False, True, True]
    steps = RunCheckpointer(tmp_path / "checkpoints").steps
    assert {3, 6, 9, 10} <= set(steps)


NAMES = [
    *dir(PyTreeDict),
    *SERVER_COLUMNS,
    "",
    "a b",
    "\x1b]0;x\x07",
    "\ud800",
    "x" * 300,
    "é",
    "../a",
    "serving/clients",
]
NAMES += ["timesteps", "iterations", "serving/", "=1+1", "$\\frac{", "eval/episode_return", "time/clock"]


def test_no_name_of_a_metric_ends_the_run(tmp_path: Path) -> None:
    """Names that a client sends become entries of a dict, columns and tags: an invalid one is rejected alone."""
    recorder = CsvRecorder(tmp_path / "metrics.csv")
    run = _run(None, recorder, total_timesteps=64 * 1000, log_interval=64, eval_interval=0)
    body, refused = bytes(run.commands.layout.num_bytes), set()
    for i, name in enumerate(NAMES):
        header = {"worker": "w", "sequence": i, "step": 0, "updates": 0, "steps": 64}
        try:
            run.commands.push(header | {"metrics": {name: 1.0}, "episodes": [2, 10.0, 16]}, body)
        except CommandRefused as error:
            assert_names(str(error), "metric name", repr(name))
            refused.add(name)
    _push(run, [len(NAMES)])
    run.end()
    recorder.close()
    assert refused == {*dir(PyTreeDict), *SERVER_COLUMNS, ""}
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert len(rows) == run.commands.pushes == len(NAMES) - len(refused) + 1
    assert {row["train/episode_return"] for row in rows[:-1]} == {"5.0"}


def test_two_names_that_become_one_are_refused() -> None:
    run = _run(None, eval_interval=0)
    header = {"worker": "w", "sequence": 1, "step": 0, "updates": 0, "steps": 64, "metrics": {"a b": 1.0, "a\tb": 2.0}}
    with raises_naming(CommandRefused, "metric name", "'a b'"):
        run.commands.push(header, bytes(run.commands.layout.num_bytes))


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """A restarted server continues with its steps, parameters, optimizer state and push records."""
    output = _Told()
    run = _run(tmp_path, output, "delay_compensation")
    _push(run, range(1, 6))
    before = run.end()
    assert "Stopping early at 320 of 640 steps." in output.messages

    again = _run(tmp_path, output, "delay_compensation")
    assert (again.commands.step, again.commands.pushes) == (320, 5)
    assert_identical(again.agent_state, before)
    assert_identical(again.commands.state, run.commands.state)
    assert any("after 5 pushes" in text for text in output.messages)
    _push(again, [5])
    assert again.commands.step == 320, "it was applied before the restart"
    _push(again, [6, 7])
    whole = _run(None, None, "delay_compensation")
    _push(whole, range(1, 8))
    assert_identical(again.agent_state.params, whole.agent_state.params)


def test_its_checkpoints_are_those_of_a_run(tmp_path: Path) -> None:
    """Commands that evaluate and export runs can read the checkpoints."""
    run = _run(tmp_path)
    _push(run, range(1, 4))
    agent_state = run.end()
    workflow = small("a2c", **CHANGES)
    entries = workflow.evaluation_entries
    state, progress = restore(workflow, RunCheckpointer(tmp_path / "checkpoints"), 0, "latest", entries)
    assert_identical(state.agent_state, agent_state)
    assert (progress["iterations"], progress["timesteps"]) == (3, 192)
    assert np.isfinite(workflow.evaluate(state).episode_return)


def test_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    run = _run(tmp_path)
    _push(run, range(1, 11))
    run.end()
    checkpointer = RunCheckpointer(tmp_path / "checkpoints")
    assert checkpointer.best_step in (4, 8, 10)


def test_a_checkpoint_when_asked(tmp_path: Path) -> None:
    run = _run(tmp_path, checkpoint_interval=0, eval_interval=0)
    _push(run, [1])
    assert run.commands.checkpoint({}, b"")[0]["saved"] == 1
    assert RunCheckpointer(tmp_path / "checkpoints").steps == (1,)


def test_another_mode_cannot_go_on(tmp_path: Path) -> None:
    run = _run(tmp_path)
    _push(run, [1])
    run.end()
    with raises_naming(CheckpointError, "structure"):
        _run(tmp_path, mode="averaging")


def test_a_corrupted_checkpoint_is_reported_and_skipped(tmp_path: Path) -> None:
    run = _run(tmp_path)
    _push(run, range(1, 6))
    run.end()
    output = _Told()
    (tmp_path / "checkpoints" / "5" / "manifest.json").write_text("nonsense")
    assert _run(tmp_path, output).commands.pushes == 4  # the best one
    assert_names(" ".join(output.messages), "checkpoints/5", "iteration 4 is used instead", "after 4 pushes")
    assert RunCheckpointer(tmp_path / "checkpoints").steps[-1] == 4, "the corrupted one would count as the newest"
    for manifest in tmp_path.glob("checkpoints/*/manifest.json"):
        manifest.write_text("nonsense")
    with raises_naming(CheckpointError, "checkpoints/4", "Start a new run"):
        _run(tmp_path)


def test_a_stop_at_a_checkpoint_leaves_the_row_to_the_resumed_server(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"

    def rows_after(*sequences: int) -> list[tuple[str, float]]:
        recorder = CsvRecorder(path)
        workflow = small("a2c", **CHANGES)
        checkpointer = RunCheckpointer(tmp_path / "checkpoints", records=[path])
        output = _Told()
        run = ParameterRun(workflow, settings_for(workflow), 0, RecorderGroup([recorder, output]), checkpointer)
        _push(run, sequences)
        run.end()
        recorder.close()
        assert not any("when the checkpoint was saved" in text for text in output.messages)
        records = csv.DictReader(path.read_text().splitlines())
        return [(row["iterations"], float(row["train/policy_loss"])) for row in records]

    assert rows_after(1, 2, 3) == [("2", 1.5)]  # push 3 ended with a checkpoint
    assert rows_after() == [("2", 1.5)]
    assert rows_after(4) == [("2", 1.5), ("4", 3.5)]


def test_broken_parameters_are_not_kept(tmp_path: Path) -> None:
    run = _run(tmp_path, optimizer={"name": "sgd", "learning_rate": 3e23, "max_grad_norm": None}, eval_interval=0)
    _push(run, [1, 2], -1e15)
    with raises_naming(TrainingDiverged, "parameters", "inf", "push 2", "learning rate"):
        run.end()


def test_the_rest_of_the_agent_comes_from_the_workers() -> None:
    workflow = small("dqn", updates_per_iteration=1, eval_interval=0)
    run = ParameterRun(workflow, settings_for(workflow))
    rest = [np.full(x.shape, 7.0, x.dtype) for x in run.commands.rest]
    body = bytes(run.commands.layout.num_bytes) + run.commands.rest_layout.to_bytes(rest)
    run.commands.push({"worker": "a", "sequence": 1, "step": 0, "updates": 0, "steps": 1}, body)
    assert all((leaf == 7.0).all() for leaf in jax.tree.leaves(run.agent_state.params.target))
    assert not any((leaf == 7.0).all() for leaf in jax.tree.leaves(run.agent_state.params.online))

"""Start of the rendering process, and its arguments."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from evorl.execution.multiprocess import ProcessInfo
from evorl.recorders.video_recorder import VideoRecorder
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from tests.support.errors import raises_naming
from tests.support.recorded_runs import STEPS, make_plan, make_row

# Stand-in for the command line that records its arguments and runs until a file exists.
NOTE = """
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[2].partition("=")[2])
print(*sys.argv[1:], os.environ["JAX_PLATFORMS"], flush=True)
while (folder / "busy").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, {"seed": 1}, "run")


def save(folder: RunFolder, iterations: int, score: float | None) -> None:
    RunCheckpointer(folder.checkpoints).save({"x": np.zeros(1)}, {"iterations": iterations}, score)


def make(folder: RunFolder, interval: float) -> VideoRecorder:
    return VideoRecorder(folder, interval, [sys.executable, "-c", NOTE])


def recorded_arguments(recorder: VideoRecorder) -> list[str]:
    return recorder.log.read_text().splitlines() if recorder.log.exists() else []


def finish(recorder: VideoRecorder) -> None:
    assert recorder.process is not None
    assert recorder.process.wait(60) == 0


def test_a_picture_for_each_interval_one_at_a_time(folder: RunFolder) -> None:
    recorder = make(folder, 2.5 * STEPS)
    recorder.start(make_plan())
    for iteration in (1, 2, 3):
        recorder.write(make_row(iteration))
    assert recorder.process is None  # no checkpoint exists yet
    save(folder, 1, 5.0)
    (folder.path / "busy").touch()
    recorder.write(make_row(4))
    first = recorder.process
    for iteration in (5, 6):
        recorder.write(make_row(iteration))
    assert recorder.process is first  # still rendering
    (folder.path / "busy").unlink()
    finish(recorder)
    save(folder, 6, 4.0)
    recorder.write(make_row(7))
    assert recorder.process is first  # it already shows the best
    save(folder, 7, 6.0)
    recorder.write(make_row(8))
    assert recorder.process is not first
    finish(recorder)
    last = recorder.process
    save(folder, 9, 7.0)
    recorder.write(make_row(9))
    assert recorder.process is last  # until the end of the next interval
    recorder.close()
    assert recorded_arguments(recorder) == [f"render run={folder.path} trust=true cpu"] * 2


def test_a_resumed_run_draws_what_is_due_then(folder: RunFolder) -> None:
    save(folder, 5, None)
    folder.videos.mkdir()
    for steps in (400, 800):
        (folder.videos / f"{steps:012d}.webp").touch()
    recorder = make(folder, 3 * STEPS)
    recorder.start(make_plan(first_iterations=5))
    assert [path.name for path in folder.videos.iterdir()] == ["000000000400.webp"]
    recorder.write(make_row(5))
    assert recorder.process is None
    recorder.write(make_row(6))
    finish(recorder)
    assert len(recorded_arguments(recorder)) == 1


def test_the_best_checkpoint_is_drawn_even_if_it_is_the_first(folder: RunFolder) -> None:
    save(folder, 0, 5.0)
    save(folder, 1, 1.0)
    recorder = make(folder, STEPS)
    recorder.start(make_plan())
    recorder.write(make_row(2))
    finish(recorder)
    assert recorder._shown == 0


def test_an_interval_is_positive(folder: RunFolder) -> None:
    with raises_naming(ValueError, "positive", "got 0"):
        VideoRecorder(folder, 0)


def test_what_draws_is_no_process_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rendering process drops the settings of a multi-process run, with which it would wait."""
    info = ProcessInfo(0, 2, "localhost:1", local_index=1, local_count=2, devices=1, command="train")
    for name, value in info.as_variable().items():
        monkeypatch.setenv(name, value)
    settings = {"workflow": "evorl.nowhere.Workflow", "seed": 0, "env": {"library": "gymnax", "name": "CartPole-v1"}}
    rest = {"recorders": {}, "checkpoints_kept": 1, "compilation_cache": False}
    folder = RunFolder.create(tmp_path, settings | rest, "run")
    save(folder, 1, 1.0)
    recorder = VideoRecorder(folder, STEPS)
    recorder.start(make_plan())
    recorder.write(make_row(1))
    assert recorder.process is not None
    assert recorder.process.wait(120) == 1
    assert "evorl.nowhere.Workflow" in recorder.log.read_text()

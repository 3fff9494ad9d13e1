"""Runs as a user starts them: trained by the script, killed, resumed, swept, and read."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from evorl.assembly import workflow_from_config
from evorl.execution.restoration import restore
from evorl.runs.about import read_starts
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import FINISHED, STOPPED, read_state
from evorl.types import State
from tests.support.small_workflows import assert_identical
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
ITERATION = 64  # environment steps
# Long enough to be stopped midway: some seconds of training.
OPTIONS = [
    "env=cartpole",
    "env.max_episode_steps=10",
    "num_envs=8",
    "rollout_length=8",
    "num_epochs=2",
    "num_minibatches=2",
    "agent.network.torso=[8]",
    f"total_timesteps={ITERATION * 12_000}",
    f"log_interval={ITERATION * 700}",
    f"eval_interval={ITERATION * 3000}",
    f"checkpoint_interval={ITERATION * 5000}",
    "eval_episodes=4",
    "devices=1",
    "env_chunk=null",
]
CONTENTS = {
    "config.yaml",
    "metrics.csv",
    "metrics.jsonl",
    "tensorboard",
    "checkpoints",
    "learning_curve.png",
    "run.log",
    "about.json",
    "state.json",
}


def _environment(tmp_path: Path) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def _script(tmp_path: Path, name: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts" / name), *arguments]
    return subprocess.run(
        command, cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True, check=False, timeout=300
    )


def _train_until_signal(
    tmp_path: Path,
    number: int,
    options: Sequence[str] = OPTIONS,
    once_there_is: str = "runs/*/*/checkpoints/[0-9]*",
) -> tuple[int, str]:
    """Train until a file exists, send the signal, and return exit status and output."""
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *options]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=_environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_until(lambda: any(tmp_path.glob(once_there_is)) or process.poll() is not None, 240.0)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, printed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return an uninterrupted run."""
    tmp_path = tmp_path_factory.mktemp("whole")
    done = _script(tmp_path, "train.py", *OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    folder = RunFolder.latest(tmp_path / "runs")
    assert f"Results are in {folder.path}" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "cache"}
    return folder


def test_the_folder_holds_everything(whole: RunFolder) -> None:
    assert {path.name for path in whole.path.iterdir()} == CONTENTS
    assert all(path.stat().st_size for path in whole.path.rglob("*") if path.is_file())
    header, *rows = whole.metrics_csv.read_text().splitlines()
    assert header.startswith("iterations,timesteps,")
    assert "eval/episode_return" in header
    assert "time/" not in header
    assert rows[-1].startswith(f"12000,{12_000 * ITERATION},")
    assert json.loads(whole.metrics_jsonl.read_text().splitlines()[-1])["time/steps_per_second"] > 0
    assert RunCheckpointer(whole.checkpoints).steps[-1] == 12_000
    assert whole.load_config().total_timesteps == 12_000 * ITERATION


def _last_state(folder: RunFolder) -> State:
    workflow = workflow_from_config(folder.load_config())
    return restore(workflow, RunCheckpointer(folder.checkpoints), 0, "latest")[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_is_resumed_as_if_nothing_had_been(whole: RunFolder, tmp_path: Path, number: int) -> None:
    status, printed = _train_until_signal(tmp_path, number)
    if number == signal.SIGTERM:
        assert status == 0, printed
        assert "resume=" in printed.splitlines()[-1], printed
    else:
        assert status == -signal.SIGKILL
    (folder,) = [RunFolder.open(path) for path in tmp_path.glob("runs/*/*")]
    stopped_at = RunCheckpointer(folder.checkpoints).steps
    assert 0 < stopped_at[-1] < 12_000
    assert read_state(folder.state, folder.log).state == STOPPED
    resumed = _script(tmp_path, "train.py", "resume=latest")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"at {stopped_at[-1] * ITERATION:,} steps" in resumed.stdout
    assert folder.metrics_csv.read_bytes() == whole.metrics_csv.read_bytes()
    assert_identical(_last_state(folder), _last_state(whole))
    assert {path.name for path in folder.path.iterdir()} == CONTENTS
    assert read_state(folder.state, folder.log).state == FINISHED
    first, second = (start["command"] for start in read_starts(folder.about))
    assert first == f"python scripts/train.py {' '.join(shlex.quote(option) for option in OPTIONS)}"
    assert second == "python scripts/train.py resume=latest"


def test_evaluate_reports_the_best_checkpoint(whole: RunFolder) -> None:
    tmp_path = whole.path.parent.parent.parent
    done = _script(tmp_path, "evaluate.py", "run=latest", "eval_episodes=7")
    assert done.returncode == 0, done.stderr
    assert "7 episodes" in done.stdout
    best = RunCheckpointer(whole.checkpoints).best_step
    assert f"checkpoint of {best * ITERATION:,} steps" in done.stdout


def test_a_sweep_makes_a_folder_for_each_job(tmp_path: Path) -> None:
    short = [option for option in OPTIONS if not option.startswith("total_timesteps")]
    done = _script(tmp_path, "train.py", "-m", *short, f"total_timesteps={ITERATION * 3}", "seed=0,1")
    assert done.returncode == 0, done.stdout + done.stderr
    folders = [RunFolder.open(path.parent) for path in sorted(tmp_path.glob("runs/*/*/config.yaml"))]
    assert sorted(folder.load_config().seed for folder in folders) == [0, 1]
    assert all({path.name for path in folder.path.iterdir()} >= CONTENTS - {"learning_curve.png"} for folder in folders)


def test_a_sweep_that_is_killed_at_any_moment_goes_on_to_the_same_table(tmp_path: Path) -> None:
    of_a_part = [option for option in OPTIONS if not option.startswith(("total_timesteps", "eval_interval"))]
    sweep = "sweep={over: {agent.clip_epsilon: [0.1,0.2,0.3,0.4]},at_once: 2}"
    options = [*of_a_part, f"total_timesteps={ITERATION * 1600}", f"eval_interval={ITERATION * 400}", sweep]
    whole = tmp_path / "whole"
    whole.mkdir()
    done = _script(whole, "train.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    command = options
    for moment in ("sweep.csv", "round_0/group_0_part_0/checkpoints/[0-9]*", "round_0/group_0_part_1/metrics.csv"):
        status, printed = _train_until_signal(tmp_path, signal.SIGKILL, command, f"runs/*/*/{moment}")
        assert status == -signal.SIGKILL, printed
        (folder,) = tmp_path.glob("runs/*/*")
        command = [f"resume={folder}"]
    assert not (folder / "best").exists()
    done = _script(tmp_path, "train.py", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "best").exists()
    (of_whole,) = whole.glob("runs/*/*/sweep.csv")
    assert (folder / "sweep.csv").read_bytes() == of_whole.read_bytes()


@pytest.mark.skipif(os.geteuid() == 0, reason="to the superuser nothing is read-only")
def test_a_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    done = _script(tmp_path, "train.py", *OPTIONS)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Cannot write to ")
    assert done.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file is in the way")
    done = _script(tmp_path, "train.py", *OPTIONS)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Cannot write to ")
    assert done.stderr.count("\n") == 1

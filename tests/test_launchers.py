"""Runs that Hydra's launchers start in separate processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evorl.runs.run_state import FINISHED, read_state
from evorl.runs.sweep_folder import SweepFolder
from tests.support.command_line import SMALL
from tests.support.optional_packages import need

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "train.py"
# Settings of learning, which each process would compile.
OF_LEARNING = ("rollout_length", "num_epochs", "num_minibatches", "agent.")
UNLEARNED = ["agent=random", *(word for word in SMALL if not word.startswith(OF_LEARNING))]


@pytest.mark.parametrize(
    ("launcher", "package", "options"),
    [("joblib", "hydra_joblib_launcher", ["n_jobs=2"]), ("submitit_local", "hydra_submitit_launcher", [])],
)
def test_jobs_of_a_launcher_are_runs(launcher: str, package: str, options: list[str], tmp_path: Path) -> None:
    need(f"hydra_plugins.{package}", "launchers")
    settings = [f"hydra.launcher.{option}" for option in options]
    command = [sys.executable, str(SCRIPT), "-m", *UNLEARNED, "seed=0,1", f"hydra/launcher={launcher}", *settings]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    sweep = SweepFolder.open(path)
    assert [(run.folder, run.state) for run in sweep.runs] == [("0-seed_0", "finished"), ("1-seed_1", "finished")]
    assert all(run.best_return is not None and run.timesteps for run in sweep.runs)
    assert sweep.learning_curves.stat().st_size
    assert "Sweep of 2 runs (2 finished)" in done.stdout
    folders = [sweep.folder_of(run) for run in sweep.runs]
    assert sorted(folder.load_config().seed for folder in folders) == [0, 1]
    assert {read_state(folder.state, folder.log).state for folder in folders} == {FINISHED}
    assert all(folder.metrics_csv.stat().st_size for folder in folders)

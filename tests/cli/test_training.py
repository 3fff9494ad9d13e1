"""Training from the command line: title, settings, end, and stops in a sweep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from evorl.cli import main as cli
from evorl.cli import train as commands
from evorl.cli.config_tree import recorded_result
from evorl.runs.about import read_starts
from evorl.runs.folder import RunFolder
from evorl.runs.sweep_folder import SweepFolder
from evorl.training import run as training
from tests.support.command_line import SMALL
from tests.support.errors import assert_names

ROOT = Path(__file__).resolve().parents[2]


def test_the_end_is_told_without_progress_too(run, tmp_path: Path) -> None:
    out, err = run(cli.train, *SMALL, f"runs_folder={tmp_path}")
    folder = RunFolder.latest(tmp_path)
    assert out.startswith(f"Results are in {folder.path} (")
    assert err == ""
    assert folder.path.parent.name == "ppo-cartpole"


def test_a_run_goes_by_a_title_and_says_whose_settings_it_has(trained: RunFolder) -> None:
    log_lines = [line[21:] for line in trained.log.read_text().splitlines()]
    assert log_lines[0] == f"Tuned settings: ppo/cartpole ({recorded_result('ppo/cartpole')})."
    assert log_lines[1] == "PPO on CartPole-v1, seed 0: 128 environment steps."
    assert trained.load_config().title == "PPO on CartPole-v1, seed 0"


def test_tuned_settings_are_told_by_either_name_of_the_environment(run, tmp_path: Path) -> None:
    arguments = [argument for argument in SMALL if not argument.startswith("env=")]
    _, err = run(cli.train, "agent=pqn", "env=gymnax/CartPole-v1", *arguments, f"runs_folder={tmp_path}")
    assert err == ""
    assert "Tuned settings: pqn/cartpole (" in RunFolder.latest(tmp_path).log.read_text()


def test_a_stop_ends_a_sweep_and_the_same_folder_goes_on(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop in the second of two jobs, a resume skips the first and finishes the second like an uninterrupted
    run.
    """
    seen = []

    @contextmanager
    def stop_second_job(advice: Callable[[], str]):
        seen.append(advice())
        yield lambda: len(seen) == 2

    monkeypatch.setattr(training, "stop_on_signals", stop_second_job)
    quiet = [argument for argument in SMALL if "progress" not in argument]
    out, err = run(cli.train, "-m", *quiet, f"runs_folder={tmp_path}", "recorders.progress=false", "seed=0,1")
    assert err == ""
    (folder,) = tmp_path.iterdir()
    sweep = SweepFolder.open(folder)
    assert [run.state for run in sweep.runs] == ["finished", "stopped"]
    assert (folder / "1-seed_1" / "config.yaml").is_file()
    assert f"resume={folder}\n" in out
    assert seen[0].endswith(f"resume={folder}")
    before = (folder / "0-seed_0" / "metrics.csv").stat()
    out, err = run(cli.train, f"resume={folder}")
    assert (err, "[2 of 2] seed=1\n" in out, "[1 of 2]" in out) == ("", True, False)
    assert (folder / "0-seed_0" / "metrics.csv").stat() == before
    assert read_starts(folder / "1-seed_1" / "about.json")[1]["command"].endswith(f" resume={folder}")
    sweep = SweepFolder.open(folder)
    assert [(run.state, run.timesteps) for run in sweep.runs] == [("finished", 128)] * 2
    assert "num_epochs=3" in run(cli.train, f"resume={folder}", "num_epochs=3")[1]


def test_the_basic_launcher_is_the_loop_of_a_sweep(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def stop_at_once(resume_command: str):
        yield lambda: True

    monkeypatch.setattr(training, "stop_on_signals", stop_at_once)
    run(cli.train, "-m", "hydra/launcher=basic", *SMALL, f"runs_folder={tmp_path}", "seed=0,1")
    (path,) = tmp_path.iterdir()
    assert [run.state for run in SweepFolder.open(path).runs] == ["stopped", "waiting"]


def test_a_sweep_runs_over_agents_with_settings_that_only_they_have(run, tmp_path: Path) -> None:
    """A sweep accepts a key that only the swept agents have, and reports a wrong key before the first job."""
    arguments = ["-m", "agent=sac,td3", "env=pendulum", f"runs_folder={tmp_path}"]
    _, err = run(cli.train, *arguments, "tau=0.1", "taau=1")
    assert_names(err, "Error: ", "config key 'taau'", "'tau'")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    _, err = run(cli.train, *arguments, "tau=0.1", "num_envs=nope")
    assert_names(err, "num_envs", "got 'nope'")
    assert list(tmp_path.iterdir()) == []


def test_training_without_settings_is_the_example_of_the_first_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(commands, "run_command", lambda _, arguments, *rest: started.append([*arguments]))
    commands.train([])
    commands.train(["seed=3"])
    assert started == [[*commands.EXAMPLE], ["seed=3"]]
    assert capsys.readouterr().out == f"No settings given, running: evorl train {' '.join(commands.EXAMPLE)}\n"
    assert f"evorl train {' '.join(commands.EXAMPLE)} " in (ROOT / "docs/guide/first_steps.md").read_text()
    assert f"TRAIN   ?= {' '.join(commands.EXAMPLE)}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("serve", "default"), [(commands.serve, "env=remote"), (commands.serve_parameters, "parameters=server")]
)
@pytest.mark.parametrize("value", ["", "null"])
def test_a_server_that_resumes_no_run_starts_one(serve, default: str, value: str, monkeypatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(commands, "train", seen.append)
    serve([f"resume={value}", "seed=1"])
    assert seen == [[default, f"resume={value}", "seed=1"]]

"""``--plan`` of a training, a sweep and a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli import main as cli
from evorl.execution import preflight
from tests.support.command_line import SMALL
from tests.support.errors import assert_names


def test_nothing_is_made(run, tmp_path: Path) -> None:
    out, _ = run(cli.train, *SMALL, "--plan", f"runs_folder={tmp_path}")
    lines = out.splitlines()
    assert lines[0].startswith("parameters    ")
    assert "iterations    2" in lines
    assert lines[-1].startswith(f"files         {tmp_path}/.../: config.yaml, metrics.csv, metrics.jsonl, run.log, ")
    assert "tensorboard" not in lines[-1]
    assert "checkpoints/ (4 of up to " in lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_jobs_of_a_sweep_are_planned_once_for_all_seeds(run, tmp_path: Path) -> None:
    arguments = ["-m", *SMALL, "total_timesteps=128,256", "seed=0,1", "--plan", f"runs_folder={tmp_path}"]
    out, _ = run(cli.train, *arguments)
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("[")] == [
        "[1 of 4] total_timesteps=128 seed=0",
        "[2 of 4] total_timesteps=128 seed=1: as [1 of 4]",
        "[3 of 4] total_timesteps=256 seed=0",
        "[4 of 4] total_timesteps=256 seed=1: as [3 of 4]",
    ]
    assert [line for line in lines if line.startswith("iterations")] == ["iterations    2", "iterations    4"]
    assert "4 runs one after another" in lines[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["sweep={agent.clip_epsilon: [0.1, 0.2], num_envs: [8, 16]}"], ["program 2 of 2", "2 settings", "best/"]),
        (["sweep={agent.clip_epsilon: [0.1, 0.2]}", "num_seeds=2"], ["2 settings with 2 seeds each, in parallel"]),
        (["sweep={over: {agent.clip_epsilon: [0.1, 0.2, 0.3]}, at_once: 2}"], ["3 settings, 2 at a time"]),
        (["search={over: {num_minibatches: [2, 4]}, trials: 5}"], ["5 trials over num_minibatches", "search.csv"]),
        (["hydra.run.dir=here"], ["/here/: config.yaml"]),
        (["-m", "seed=0,1", "hydra.sweep.dir=here"], ["/here/.../: config.yaml", "2 runs one after another"]),
        (["-m", "experiment=null,ppo/acrobot"], ["[1 of 2] experiment=null\n", "[2 of 2] experiment=ppo/acrobot"]),
        (["--config-dir", "mine", "agent=short"], ["iterations    1\n"]),
        (["-m", "seed=0,1", "--config-dir", "mine", "agent=short,ppo"], ["agent=short", "3 of 4"]),
    ],
)
def test_a_plan_is_of_all_that_the_command_line_trains(
    arguments: list[str], parts: list[str], run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any("search=" in argument for argument in arguments):
        pytest.importorskip("optuna", reason="needs the extra optuna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "agent").mkdir(parents=True)
    own = "# @package _global_\ndefaults: [ppo]\nlog_interval: 64\n"
    (tmp_path / "mine" / "agent" / "short.yaml").write_text(own)
    length = [] if "agent=short" not in arguments else ["total_timesteps=64"]
    out, err = run(cli.train, *SMALL, *length, *arguments, "--plan")
    assert [part for part in parts if part not in out] == [], out + err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["resume=latest"], ["--plan applies to new runs", "remove resume"]),
        (["-m", "seed=0,1", "num_minibatches=2,7"], ["seed=0 num_minibatches=7", "divisor"]),
        (["-m", "seed=0,1", "hydra/launcher=basic"], ["hydra/launcher=basic", "without -m"]),
        (["sweep={num_minibatches: [2,7]}"], ["num_minibatches=7", "divisor"]),
        (["hydra.job.name=x"], ["hydra.job.name=x", "title="]),
        (["init_from=nowhere"], ["nowhere"]),
    ],
)
def test_a_plan_refuses_what_the_training_refuses(arguments: list[str], parts: list[str], run) -> None:
    small = [word for word in SMALL if not word.startswith("num_minibatches")]
    _, err = run(cli.train, *small, *arguments, "--plan")
    assert [part for part in parts if part not in err] == []


def test_what_does_not_fit_the_memory_is_named(monkeypatch: pytest.MonkeyPatch, run) -> None:
    monkeypatch.setattr(preflight, "available_bytes", lambda: 100_000_000)
    _, err = run(cli.train, *SMALL, "--plan")
    assert "80% of the memory" in err
    _, err = run(cli.train, "-m", *SMALL, "agent.clip_epsilon=0.1,0.2", "--plan")
    assert_names(err, "agent.clip_epsilon=0.1; agent.clip_epsilon=0.2", "80%")

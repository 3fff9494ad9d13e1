"""Sequential sweeps: their runs, stops, and resumption without repeating finished runs."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evorl.cli.multirun import resume_sweep, start_sweep
from evorl.cli.train import train_sweep
from evorl.execution.session import TrainingDiverged
from evorl.runs.files import RunFolderError
from evorl.runs.spec import RunSpec
from evorl.runs.sweep_folder import SweepFolder
from evorl.sweeps.trained import RunsFailed
from evorl.training.start import RunPlace, Trained
from tests.support.errors import raises_naming


class Trainer:
    """Stand-in that trains nothing and writes the files of a run."""

    def __init__(self, outcomes: dict[str, Callable[[], Trained]]) -> None:
        self.outcomes, self.trained, self.resumed = outcomes, [], []

    def train(self, run: list[str], place: RunPlace) -> Trained:
        self.trained.append((run, place.name))
        folder = place.root / place.name
        (folder / "checkpoints/1").mkdir(parents=True)
        (folder / "checkpoints/1/manifest.json").write_text("")
        (folder / "metrics.csv").write_text("iterations,timesteps,eval/episode_return\n1,10,1.0\n2,20,3.0\n")
        return self.outcomes.get(run[-1], lambda: Trained(5.0, stopped=False))()

    def resume(self, place: RunPlace) -> Trained:
        self.resumed.append(place.name)
        return Trained(7.0, stopped=False)


def _diverge() -> Trained:
    raise TrainingDiverged("loss became nan")


def _fail() -> Trained:
    raise ValueError("no such thing")


def _accept(_: Sequence[str]) -> tuple[bool, None]:
    return False, None


def _start(root: Path, trainer: Trainer, *arguments: str) -> SweepFolder:
    start_sweep(["-m", *arguments], _accept, trainer.train, str(root))
    (path,) = root.iterdir()
    return SweepFolder.open(path)


def test_a_stop_ends_the_sweep_which_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer({"seed=1": lambda: Trained(2.0, stopped=True)})
    sweep = _start(tmp_path, trainer, "agent=ppo", "seed=0,1,2")
    assert [run.state for run in sweep.runs] == ["finished", "stopped", "waiting"]
    out = capsys.readouterr().out
    assert "[2 of 3] seed=1\n" in out
    assert f"To resume the sweep: evorl train resume={sweep.path}\n" in out
    resume_sweep(sweep.path, trainer.train, trainer.resume)
    assert trainer.resumed == ["1-seed_1"]
    assert trainer.trained[2:] == [(["agent=ppo", "seed=2"], "2-seed_2")]
    sweep = SweepFolder.open(sweep.path)
    assert [(run.state, run.best_return, run.last_return, run.timesteps) for run in sweep.runs] == [
        ("finished", 5.0, 3.0, 20),
        ("finished", 7.0, 3.0, 20),
        ("finished", 5.0, 3.0, 20),
    ]
    out = capsys.readouterr().out
    assert "Best evaluation return: 5.7 ± 0.9 over 3 runs\n" in out
    assert "To resume" not in out
    assert sweep.learning_curves.exists()


@pytest.mark.parametrize("argument", ["~experiment", "+env.size=3", "title=${env.name}"])
def test_the_proposed_command_confirms_what_a_resume_would_refuse(
    argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer({"seed=1": lambda: Trained(2.0, stopped=True)})
    start_sweep(["-m", "agent=ppo", argument, "seed=0,1"], _accept, trainer.train, str(tmp_path))
    (path,) = tmp_path.iterdir()
    assert f"To resume the sweep: evorl train resume={path} trust=true\n" in capsys.readouterr().out
    with raises_naming(RunFolderError, "trust=true"):
        resume_sweep(path, trainer.train, trainer.resume)
    resume_sweep(path, trainer.train, trainer.resume, trust=True)
    assert trainer.resumed == ["1-seed_1"]


@pytest.mark.parametrize(("part", "confirmed"), [({"env": {"factory": "mine:walk"}}, " trust=true"), ({}, "")])
def test_the_proposed_command_confirms_code_that_a_config_file_names(
    part: dict[str, Any], confirmed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The code was only found on the command line. A resume with ``trust=true`` proposes it again."""
    spec = RunSpec.from_config({"workflow": "evorl.algorithms.ppo.PPOWorkflow", **part})
    for name in ("compose_checked", "compose_quietly"):
        monkeypatch.setattr(f"evorl.cli.train.{name}", lambda _, task: task(spec))
    monkeypatch.setattr("evorl.cli.train.check_training", lambda _: None)
    monkeypatch.setattr("evorl.cli.train.train_run", lambda *_, **__: Trained(None, stopped=True))
    train_sweep(["-m", "env=mine", "seed=0,1", f"runs_folder={tmp_path}"])
    (path,) = tmp_path.iterdir()
    for trust in ("true", "true", "false"):
        assert f"To resume the sweep: evorl train resume={path}{confirmed}\n" in capsys.readouterr().out
        with suppress(RunsFailed):
            train_sweep([f"resume={path}", f"trust={trust}"])


def _crash() -> Trained:
    raise TypeError("a fault of the environment")


def test_a_job_that_fails_is_recorded_and_all_others_are_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer({"lr=2": _diverge, "lr=3": _fail, "lr=4": _crash})
    failures = ("6 runs failed", "env=a lr=2: loss became nan", "env=b lr=3: no such thing", "lr=4: a fault of the")
    with raises_naming(RunsFailed, *failures):
        _start(tmp_path, trainer, "env=a,b", "lr=1,2,3,4")
    (path,) = tmp_path.iterdir()
    sweep = SweepFolder.open(path)
    assert [run.state for run in sweep.runs] == ["finished", "diverged", "failed", "failed"] * 2
    printed = capsys.readouterr()
    assert "Failed: loss became nan" in printed.out
    assert "To resume the sweep" in printed.out
    assert "TypeError: a fault of the environment" in printed.err  # with its location: it is a bug
    with sweep.summary.open() as file:
        assert [row["failure"] for row in csv.DictReader(file)][:3] == ["", "loss became nan", "no such thing"]
    trainer.outcomes.clear()
    (path / "2-env_a-lr_3" / "checkpoints/1/manifest.json").unlink()
    with raises_naming(RunsFailed, "2 runs failed"):  # the diverged runs
        resume_sweep(path, trainer.train, trainer.resume)
    out = capsys.readouterr().out
    assert "Best in env=b: lr=3, with a best evaluation return of 7.0\n" in out
    assert "[2 of 8] env=a lr=2: skipped, because it diverged before.\n" in out
    assert "To resume" not in out  # all runs have ended
    assert (path / "2-env_a-lr_3").is_dir()  # kept: without a checkpoint the run restarts in a new folder
    assert trainer.trained[-1] == (["env=a", "lr=3"], "2-env_a-lr_3_2")
    states = [run.state for run in SweepFolder.open(path).runs]
    assert states == ["finished", "diverged", "finished", "finished"] * 2


def test_a_job_that_cannot_be_is_refused_before_the_first_and_named(tmp_path: Path) -> None:
    def check(run: Sequence[str]) -> tuple[bool, None]:
        if "lr=2" in run:
            raise ValueError("no such rate")
        return False, None

    with raises_naming(ValueError, "lr=2 env=b: no such rate"):
        start_sweep(["-m", "env=b", "lr=1,2", "env=b,c"], check, Trainer({}).train, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_sweep_can_be_named(tmp_path: Path) -> None:
    own = tmp_path / "own sweep, josé"
    start_sweep(["-m", "seed=0,1", f"hydra.sweep.dir={own}"], _accept, Trainer({}).train, "elsewhere")
    assert [run.overrides for run in SweepFolder.open(own).runs] == [["seed=0"], ["seed=1"]]
    with raises_naming(OSError, own, "already contains"):
        start_sweep(["-m", "seed=0,1", f"hydra.sweep.dir={own}"], _accept, Trainer({}).train, "elsewhere")
    start_sweep(["-m", "seed=0,1", f"hydra.sweep.dir={tmp_path}/${{now:%Y}}"], _accept, Trainer({}).train, "")
    assert re.fullmatch(r"\d{4}", next(path.name for path in tmp_path.iterdir() if path != own))


@pytest.mark.parametrize("text", ["init_from.run=latest", "init_from={run: latest, parts: [policy]}", "agent=tuned"])
def test_the_run_to_start_from_is_stored_with_the_sweep(text: str, tmp_path: Path) -> None:
    trainer = Trainer({})
    start_sweep(["-m", text, "seed=0,1"], lambda _: (False, "/runs/a, b"), trainer.train, str(tmp_path))
    (path,) = tmp_path.iterdir()
    others = [] if text.endswith("latest") else [text]
    expected = [[*others, f"seed={seed}", "init_from.run='/runs/a, b'"] for seed in (0, 1)]
    assert [run.overrides for run in SweepFolder.open(path).runs] == expected
    assert [run for run, _ in trainer.trained] == expected

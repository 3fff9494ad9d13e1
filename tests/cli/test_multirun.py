"""Sweeps: which jobs there are, that a stop ends all of them, and that what is finished is not done again."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from evorl.cli.multirun import (
    JobPlace,
    Trained,
    combinations,
    is_sweep,
    ranked,
    resume_sweep,
    side_by_side_in_words,
    split_arguments,
    start_sweep,
)
from evorl.execution.learning import TrainingDiverged
from evorl.runs.sweep_folder import SweepFolder, SweepJob


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["-m", "seed=0,1"], True),
        (["seed=0,1", "--multirun", "--config-dir", "mine"], True),
        (["seed=0"], False),
        (["-m", "hydra/launcher=joblib"], False),
        (["-m", "hydra.sweep.dir=x"], False),
        (["-m", "--cfg", "job"], False),
    ],
)
def test_sweepers_and_launchers_of_hydra_are_left_to_it(arguments: list[str], answer: bool) -> None:
    assert is_sweep(arguments) is answer


def test_every_combination_is_a_job() -> None:
    jobs = list(combinations(["agent=ppo,sac", "+x='a,b'", "seed=range(2)", "total_timesteps=10", "seed=3,4"]))
    assert [job for job, _ in jobs] == [
        [f"agent={agent}", "+x='a,b'", f"seed={seed}", "total_timesteps=10"]
        for agent in ("ppo", "sac")
        for seed in (3, 4)
    ]
    assert jobs[1][1] == {"agent": "ppo", "seed": "4"}
    assert list(combinations(["seed=1"])) == [(["seed=1"], {})]
    with pytest.raises(ValueError, match="an interval has no values to run through"):
        list(combinations(["discount=interval(0,1)"]))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["agent=a2c", "discount=0.9,0.99", "optimizer.learning_rate=1e-3,1e-2", "seed=2,3,4"],
            "agent=a2c seed=2 num_seeds=3 'sweep={discount: [0.9, 0.99], optimizer.learning_rate: [0.001, 0.01]}'",
        ),
        (["seed=range(4)"], "evorl train num_seeds=4"),
        (["env=cartpole,acrobot"], None),
        (["optimizer=adam,sgd", "seed=0,1"], None),
        (["seed=0,7"], None),
        (["devices=1,2", "seed=0,1"], None),
        (["discount=0.9"], None),
    ],
)
def test_runs_that_one_program_could_train_say_so(overrides: list[str], words: str | None) -> None:
    told = side_by_side_in_words(list(combinations(overrides)))
    assert (told is None) == (words is None)
    assert words is None or (told is not None and told.endswith(words))


def test_flags_are_those_of_every_job() -> None:
    assert split_arguments(["-m", "a=1", "--config-dir", "x", "b=2"]) == (["a=1", "b=2"], ["--config-dir", "x"])


class Trainer:
    """Trains nothing, and leaves the files of a run."""

    def __init__(self, outcomes: dict[str, Callable[[], Trained]]) -> None:
        self.outcomes, self.trained, self.resumed = outcomes, [], []

    def train(self, job: list[str], place: JobPlace) -> Trained:
        self.trained.append((job, place.name))
        folder = place.root / place.name
        (folder / "checkpoints/1").mkdir(parents=True)
        (folder / "checkpoints/1/manifest.json").write_text("")
        (folder / "metrics.csv").write_text("iterations,timesteps,eval/episode_return\n1,10,1.0\n2,20,3.0\n")
        return self.outcomes.get(job[-1], lambda: Trained(5.0, stopped=False))()

    def resume(self, place: JobPlace) -> Trained:
        self.resumed.append(place.name)
        return Trained(7.0, stopped=False)


def _diverge() -> Trained:
    raise TrainingDiverged("loss became nan")


def _fail() -> Trained:
    raise ValueError("no such thing")


def _start(root: Path, trainer: Trainer, *arguments: str) -> SweepFolder:
    start_sweep(["-m", *arguments], lambda _: None, trainer.train, str(root))
    (path,) = root.iterdir()
    return SweepFolder.open(path)


def test_a_stop_ends_the_sweep_which_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer({"seed=1": lambda: Trained(2.0, stopped=True)})
    sweep = _start(tmp_path, trainer, "agent=ppo", "seed=0,1,2")
    assert [job.state for job in sweep.jobs] == ["finished", "stopped", "waiting"]
    out = capsys.readouterr().out
    assert "[2 of 3] seed=1\n" in out
    assert f"To go on with the sweep: evorl train resume={sweep.path}\n" in out
    resume_sweep(sweep.path, trainer.train, trainer.resume)
    assert trainer.resumed == ["1-seed_1"]
    assert trainer.trained[2:] == [(["agent=ppo", "seed=2"], "2-seed_2")]
    sweep = SweepFolder.open(sweep.path)
    assert [(job.state, job.best_return, job.last_return, job.timesteps) for job in sweep.jobs] == [
        ("finished", 5.0, 3.0, 20),
        ("finished", 7.0, 3.0, 20),
        ("finished", 5.0, 3.0, 20),
    ]
    out = capsys.readouterr().out
    assert "Best evaluation return: 5.7 ± 0.9 over 3 runs\n" in out
    assert "To go on" not in out
    assert sweep.learning_curves.exists()


def test_a_divergence_is_a_result_and_a_mistake_is_an_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer({"lr=2": _diverge, "lr=3": _fail})
    with pytest.raises(ValueError, match="no such thing"):
        _start(tmp_path, trainer, "env=a,b", "lr=1,2,3")
    (path,) = tmp_path.iterdir()
    sweep = SweepFolder.open(path)
    assert [job.state for job in sweep.jobs] == ["finished", "failed", "failed", "waiting", "waiting", "waiting"]
    assert "Failed: loss became nan" in capsys.readouterr().out
    trainer.outcomes.clear()
    resume_sweep(path, trainer.train, trainer.resume)
    assert "Best in env=b: lr=1, with a best evaluation return of 5.0\n" in capsys.readouterr().out
    assert (path / "1-env_a-lr_2").is_dir()  # kept, and begun anew beside it, where there was no checkpoint
    with sweep.summary.open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["finished"] * 6


def test_settings_are_ranked_by_their_mean_over_seeds() -> None:
    def job(agent: str, seed: int, best: float | None) -> SweepJob:
        return SweepJob([], {"agent": agent, "seed": str(seed)}, "", best_return=best)

    jobs = [job("ppo", 0, 9.0), job("ppo", 1, 1.0), job("sac", 0, 6.0), job("sac", 1, None), job("ars", 0, None)]
    assert [name for name, _ in ranked(jobs)] == ["agent=sac", "agent=ppo", "agent=ars"]

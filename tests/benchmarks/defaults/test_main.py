"""Command line that measures trainings without tuned settings."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import results
from benchmarks.defaults import __main__ as command
from benchmarks.defaults import random_policy
from benchmarks.defaults.__main__ import main
from benchmarks.defaults.random_policy import random_return, random_task
from benchmarks.defaults.task import TASKS
from benchmarks.learning.staleness import composed
from benchmarks.learning.task import LearningTask
from benchmarks.learning.training import overrides_of
from tests.benchmarks.learning.figures import point, result
from tests.support.errors import assert_names

NAMES = ("dqn_acrobot", "dqn_catch")
RETURNS = {"random": -490.0, "dqn": -100.0}


def trained(task: LearningTask, num_seeds: int) -> dict[str, Any]:
    """Return a result of a task, as of a training."""
    score = RETURNS[task.agent]
    curve = point(1000 if task.agent == "random" else 50_000, *[score] * num_seeds)
    return result(curve, config=composed(task, num_seeds), overrides=overrides_of(task, num_seeds))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list[str]:
    """The command with two tasks, whose results go to a temporary folder; returns the titles of the trainings."""
    trainings: list[str] = []

    def train(task: LearningTask, num_seeds: int) -> dict[str, Any]:
        trainings.append(task.name)
        return trained(task, num_seeds)

    monkeypatch.setattr(command, "TASKS", {name: TASKS[name] for name in NAMES})
    monkeypatch.setattr(command, "load", lambda kind: results.load(kind, tmp_path))
    monkeypatch.setattr(command, "record", lambda kind, name, result: results.record(kind, name, result, tmp_path))
    monkeypatch.setattr(command, "train", train)
    monkeypatch.setattr(random_policy, "train", train)
    monkeypatch.setattr(command, "about", lambda: {"commit": "abc"})
    monkeypatch.setattr(command, "write_pages", lambda: trainings.append("pages"))
    return trainings


def test_a_training_is_recorded_with_the_return_of_random_actions(measured, tmp_path, capsys) -> None:
    assert main(["dqn_acrobot", "--seeds", "2"]) == 0
    assert measured == ["random/acrobot", "dqn_acrobot", "pages"]
    assert_names(
        capsys.readouterr().out, "random -490.00", "ours -100.00", "published -76.64", "share 0.94", "half reached"
    )
    stored = results.load("defaults", tmp_path)["dqn_acrobot"]
    assert stored["random"]["mean"] == -490.0
    assert stored["random"]["episodes"] == 100
    assert stored["command"] == "python -m benchmarks.defaults dqn_acrobot --seeds 2"


def test_a_training_below_half_is_reported_and_fails(measured, monkeypatch, capsys) -> None:
    monkeypatch.setitem(RETURNS, "dqn", -480.0)
    assert main(["dqn_acrobot", "--no-pages"]) == 1
    assert measured == ["random/acrobot", "dqn_acrobot"]
    assert "HALF NOT REACHED" in capsys.readouterr().out


def test_all_leaves_out_what_is_current_or_too_long(measured) -> None:
    main(["dqn_acrobot", "--no-pages"])
    measured.clear()
    main(["--all", "--minutes", "5", "--no-pages"])
    assert measured == ["random/gymnax/Catch-bsuite", "dqn_catch"]
    measured.clear()
    main(["--all", "--seeds", "2", "--minutes", "0.5", "--no-pages"])
    assert measured == []


def test_random_actions_are_measured_once_for_an_environment(measured) -> None:
    first = random_return(TASKS["dqn_acrobot"], {})
    assert random_return(TASKS["pqn_acrobot"], {"dqn_acrobot": {"random": first}}) == first
    assert measured == ["random/acrobot"]
    assert "agent=random" in random_task(TASKS["pqn_acrobot"]).overrides


@pytest.mark.parametrize("arguments", [[], ["--all", "dqn_acrobot"]])
def test_names_or_all_are_required(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)


def test_unknown_tasks_are_rejected_with_a_suggestion(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["dqn_acrobott"])
    assert_names(capsys.readouterr().err, "'dqn_acrobott'", "'dqn_acrobot'")

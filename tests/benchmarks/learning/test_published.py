"""Published figures, and the bars that they set."""

from __future__ import annotations

import math

import pytest

from benchmarks.learning.task import TASKS
from tests.benchmarks.learning.figures import over_seeds, published
from tests.support.errors import raises_naming


def test_bar_of_a_deviation_over_seeds_is_the_mean_minus_its_standard_error():
    theirs = published(spread_over="seeds", num_seeds=16, spread=8.0)
    assert theirs.bar == pytest.approx(7.0 - 8.0 / 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"spread_over": "episodes", "spread": 3.0},
        {"spread_over": "one_run"},
        {"spread_over": "none", "num_seeds": 4},
    ],
)
def test_bar_without_a_deviation_over_seeds_is_the_mean(fields):
    assert published(**fields).bar == 7.0


def test_values_of_seeds_give_mean_and_deviation():
    theirs = over_seeds(1.0, 2.0, 6.0)
    assert theirs.center == 3.0
    assert theirs.deviation == pytest.approx(math.sqrt(7.0))  # with n - 1 degrees of freedom
    assert theirs.bar == pytest.approx(3.0 - math.sqrt(7.0 / 3))


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"spread_over": "frames"}, ["spread_over", "'frames'", "episodes"]),
        ({"values": [7.0]}, ["mean", "values"]),
        ({"mean": None}, ["mean", "values"]),
        ({"mean": None, "values": [1.0, 2.0], "spread_over": "seeds", "num_seeds": 3}, ["num_seeds=2"]),
        ({"mean": None, "values": [1.0, 2.0], "spread_over": "episodes", "num_seeds": 2}, ["spread_over=seeds"]),
        ({"spread_over": "seeds", "num_seeds": 3}, ["spread_over=seeds", "spread=None"]),
        ({"spread": 1.0}, ["spread_over=one_run", "spread=1.0"]),
        ({"spread_over": "episodes", "spread": 1.0, "num_seeds": 2}, ["num_seeds=2"]),
        ({"spread_over": "seeds", "spread": 1.0, "num_seeds": 1}, ["num_seeds=1"]),
    ],
)
def test_incomplete_figures_are_rejected(fields, parts):
    with raises_naming(ValueError, *parts):
        published(**fields)


@pytest.mark.parametrize("task", [task for task in TASKS.values() if task.published], ids=lambda task: task.name)
def test_figures_of_the_tasks_have_their_source(task):
    theirs = task.published
    assert theirs.source.startswith("https://")
    assert theirs.timesteps > 0
    assert all(text.strip() for text in (theirs.by, theirs.place, theirs.environment, theirs.differences))


def test_spread_of_the_zoo_lowers_no_bar():
    zoo = [task.published for task in TASKS.values() if task.published and task.published.by == "RL Baselines3 Zoo"]
    assert len(zoo) > 20
    assert all(theirs.bar == theirs.mean for theirs in zoo)


def test_published_seeds_of_cheetah_run_are_all_ten():
    theirs = TASKS["sac_playground_cheetah_run"].published
    assert sorted(theirs.values) == [270.5, 292.4, 295.3, 296.2, 305.5, 329.3, 338.0, 366.1, 376.1, 416.4]
    assert theirs.timesteps == 100_000
    assert theirs.center == pytest.approx(328.6, abs=0.1)

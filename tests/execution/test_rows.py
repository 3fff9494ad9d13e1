"""Rows of metrics do not depend on the chunks of iterations."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from evorl.execution.rows import RunningMeans, SlidingScore, describe_evaluation
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming


def test_means_do_not_depend_on_the_length_of_chunks() -> None:
    values = np.random.default_rng(0).normal(size=12).astype(np.float32)
    whole, parts = RunningMeans({}), RunningMeans({})
    whole.add(PyTreeDict(loss=values))
    parts.add(PyTreeDict(loss=values[:5]))
    parts = RunningMeans(parts.to_json())  # an interruption
    parts.add(PyTreeDict(loss=values[5:]))
    assert parts.take() == whole.take()
    assert whole.take() == {"train/episodes": 0}


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_metric_is_averaged_over_the_iterations_that_have_it(length: int) -> None:
    """As with the workers of a parameter server, whose metrics may differ."""
    for present in range(1, 16):
        means, values = RunningMeans({}), np.arange(1.0, 5.0)
        for first in range(0, 4, length):
            rows = {"loss": values[first : first + length]}
            if present >> first & 1:
                rows["rare"] = 10 * rows["loss"]
            means.add(PyTreeDict(rows))
            means = RunningMeans(means.to_json())  # an interruption
        having = [x for first in range(0, 4, length) if present >> first & 1 for x in values[first : first + length]]
        expected = {"train/loss": 2.5, "train/episodes": 0} | ({"train/rare": 10 * np.mean(having)} if having else {})
        assert means.take() == pytest.approx(expected)


def test_a_checkpoint_of_an_earlier_version_counts_every_metric_in_every_iteration() -> None:
    means = RunningMeans({"train/loss": 6.0, "iterations": 3.0})
    means.add(PyTreeDict(loss=np.array([2.0])))
    assert means.to_json() == {"train/loss": 8.0, "iterations": 4.0}
    assert means.take() == {"train/loss": 2.0, "train/episodes": 0}


@pytest.mark.parametrize("length", [1, 3, 8])
def test_losses_are_averaged_over_the_updates(length: int) -> None:
    """Iterations may have several updates or none; a row without an update has zeros."""
    updates = np.array([[0.0, 0.0], [2.0, 2.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    losses = np.where(updates > 0, np.arange(16.0).reshape(8, 2), 0.0)
    means = RunningMeans({})
    for first in range(0, 6, length):
        part = slice(first, min(first + length, 6))
        rows = {"loss": losses[part], "bonus": losses[part] + 1.0, "updates": updates[part]}
        means.add(PyTreeDict(rows), losses=("loss", "absent"))
        means = RunningMeans(means.to_json())  # an interruption
    expected = (2 * 2.5 + 6.5 + 8.5) / 4
    row = {"train/loss": expected, "train/bonus": 1.0 + losses[:6].mean(), "train/updates": 4 / 6, "train/episodes": 0}
    assert means.take() == pytest.approx(row)
    means.add(PyTreeDict(loss=losses[6:], updates=updates[6:]), losses=("loss",))
    assert means.take() == {"train/loss": 0.0, "train/updates": 0.0, "train/episodes": 0}


@pytest.mark.parametrize("length", [1, 3, 4])
def test_optional_metrics_are_averaged_over_the_values_that_exist(length: int) -> None:
    """A metric without a value in some seeds or iterations; NaN of other metrics is kept."""
    nan = math.nan
    score = np.array([[nan, nan], [nan, 5.0], [6.0, 8.0], [nan, nan]])
    loss = np.array([[1.0, 1.0], [nan, 1.0], [1.0, 1.0], [1.0, 1.0]])
    means = RunningMeans({})
    for first in range(0, 4, length):
        part = slice(first, min(first + length, 4))
        means.add(PyTreeDict(score=score[part], loss=loss[part]), optional=("score",))
        means = RunningMeans(json.loads(json.dumps(means.to_json())))  # an interruption
    row = means.take()
    assert row["train/score"] == 6.0
    assert math.isnan(row["train/loss"])
    means.add(PyTreeDict(score=score[:1]), optional=("score",))
    assert math.isnan(means.take()["train/score"])


def test_latest_metrics_are_those_of_the_last_iteration() -> None:
    """Also after an interruption, for names below a given one, and for the mean over seeds."""
    metrics = PyTreeDict(
        {
            "loss": np.array([1.0, 3.0]),
            "best_fitness": np.array([1.0, 5.0]),
            "best/return": np.array([[1.0, 2.0], [3.0, 5.0]]),
        }
    )
    means = RunningMeans({})
    means.add(metrics, ("best", "best_fitness"))
    means = RunningMeans(means.to_json())
    assert means.take() == {"train/loss": 2.0, "train/best_fitness": 5.0, "train/best/return": 4.0, "train/episodes": 0}
    assert means.take() == {"train/episodes": 0}
    means.add(metrics, ("best",))
    assert means.take()["train/best_fitness"] == 3.0, "best does not include best_fitness"


def test_a_score_is_over_the_last_evaluations_by_their_episodes() -> None:
    totals = [(10.0, 5), (0.0, 5), (30.0, 10), (20.0, 2)]
    score = SlidingScore(3)
    scores = [score.push(total / weight, weight) for total, weight in totals[:2]]
    score = SlidingScore(3, score.to_json()["scores"])  # an interruption
    scores += [score.push(total / weight, weight) for total, weight in totals[2:]]
    assert scores == pytest.approx([2.0, 1.0, 2.0, 2.9412], abs=5e-5)
    assert np.isnan(score.push(float("nan"), 5))
    assert score.push(10.0, 17) == pytest.approx((30.0 + 20.0 + 170.0) / 29), "what has no score is not counted"


def test_by_itself_an_evaluation_is_its_own_score() -> None:
    score = SlidingScore()
    assert score.push(0.1, 3) == 0.1
    assert score.to_json() == {}
    with raises_naming(ValueError, "at least 1 evaluation, got 0"):
        SlidingScore(0)


def test_evaluations_of_several_seeds() -> None:
    columns = {"episode_return": [1.0, 3.0], "episode_return_std": [0.5, 1.5], "success": [0.0, 1.0]}
    row = describe_evaluation(PyTreeDict({name: np.array(values) for name, values in columns.items()}))
    assert row == {
        "eval/episode_return": 2.0,
        "eval/episode_return_std_over_seeds": 1.0,
        "eval/episode_return_seed_0": 1.0,
        "eval/episode_return_seed_1": 3.0,
        "eval/episode_return_std": 1.0,
        "eval/success": 0.5,
        "eval/success_std_over_seeds": 0.5,
        "eval/success_seed_0": 0.0,
        "eval/success_seed_1": 1.0,
    }

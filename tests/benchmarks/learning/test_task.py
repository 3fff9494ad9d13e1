"""Evaluation of learning curves, and the tasks as composed by the command line."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.learning.task import TASKS, LearningTask, Published, read_tasks
from benchmarks.learning.training import overrides_of
from evorl.cli.composition import compose_config
from tests.support.errors import raises_naming

STEPS = LearningTask("steps", "", (), threshold=5.0, within_timesteps=200)
MINUTES = LearningTask("minutes", "", (), threshold=5.0, within_minutes=1.0)
PUBLISHED = Published("Somebody", "https://example.org/table", timesteps=200, mean=7.0, spread=2.0)
THEIRS = LearningTask("theirs", "", (), published=PUBLISHED)


def point(timesteps: int, seconds: float, mean: float) -> dict[str, float]:
    return {"timesteps": timesteps, "seconds": seconds, "mean": mean, "spread": 0.0}


CURVE = [point(100, 30.0, 4.0), point(200, 59.0, 5.0), point(300, 90.0, 9.0), point(400, 120.0, 6.0)]


@pytest.mark.parametrize("task", [STEPS, MINUTES])
def test_first_evaluation_that_reaches_the_threshold_counts(task):
    judged = task.judge(CURVE)
    assert judged.met
    assert judged.reached == CURVE[1]


@pytest.mark.parametrize("task", [STEPS, MINUTES])
def test_evaluations_past_the_limit_do_not_count(task):
    judged = task.judge([CURVE[0], *CURVE[2:]])
    assert not judged.met
    assert judged.reached is None


@pytest.mark.parametrize(("threshold", "met"), [(5.0, False), (9.5, True)])
def test_a_task_that_cannot_be_solved_has_to_stay_below(threshold, met):
    task = LearningTask("unsolvable", "", (), threshold=threshold, within_timesteps=400, solvable=False)
    judged = task.judge(CURVE)
    assert task.limit == f"< {threshold:g} within 400 steps"
    assert judged.met is met
    assert (judged.reached is None) is met


@pytest.mark.parametrize("task", [STEPS, MINUTES, THEIRS])
def test_nothing_evaluated_is_nothing_reached(task):
    judged = task.judge([])
    assert (judged.met, judged.point, judged.reached) == (False, None, None)


def test_published_band_is_asked_for_at_the_published_steps():
    assert THEIRS.limit == ">= 5.0 at 200 steps"
    judged = THEIRS.judge(CURVE)
    assert (judged.met, judged.point, judged.shorter) == (True, CURVE[1], False)
    assert judged.reached == CURVE[1]


def test_a_return_that_was_there_before_has_to_be_there_still():
    judged = THEIRS.judge([point(100, 1.0, 9.0), point(200, 2.0, 4.0), point(300, 3.0, 9.0)])
    assert not judged.met
    assert judged.point == point(200, 2.0, 4.0)
    assert judged.reached == point(100, 1.0, 9.0)


def test_what_comes_after_the_published_steps_does_not_count():
    judged = THEIRS.judge([point(250, 1.0, 9.0)])
    assert (judged.met, judged.point) == (False, None)


def test_a_shorter_training_is_told_as_such():
    judged = THEIRS.judge([point(100, 1.0, 9.0)])
    assert (judged.met, judged.shorter) == (True, True)
    assert not THEIRS.judge([point(190, 1.0, 9.0)]).shorter


def test_without_a_spread_the_published_return_itself_is_asked():
    bare = dataclasses.replace(THEIRS, published=dataclasses.replace(PUBLISHED, spread=None))
    assert bare.bound == 7.0


def test_ten_seeds_are_judged_by_their_interquartile_mean():
    values = [0.0, 0.0, *[6.0] * 7, 60.0]
    assert THEIRS.judge([{**point(200, 1.0, 9.6), "by_seed": values}]).reached is not None
    higher = dataclasses.replace(THEIRS, published=dataclasses.replace(PUBLISHED, mean=9.0))
    assert not higher.judge([{**point(200, 1.0, 9.6), "by_seed": values}]).met


def test_a_task_has_a_published_figure_or_a_threshold():
    with raises_naming(ValueError, "'neither'", "published figure", "threshold"):
        LearningTask("neither", "", ())
    with raises_naming(ValueError, "published", "threshold"):
        dataclasses.replace(THEIRS, threshold=5.0)


def test_shared_overrides_are_flattened(tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(
        "shared: &shared [env=e, x=1]\ntasks: {t: {title: T, overrides: [agent=ec/a, *shared], threshold: 3}}",
        encoding="utf-8",
    )
    task = read_tasks(path)["t"]
    assert task.overrides == ("agent=ec/a", "env=e", "x=1")
    assert (task.agent, task.bound) == ("ec/a", 3)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_tasks_compose_and_are_evaluated_in_time(task):
    config = compose_config(overrides_of(task, num_seeds=5))
    assert (config.eval_episodes, config.num_seeds) == (20, 5)
    assert 0 < config.eval_interval <= config.total_timesteps
    # Training may continue past the steps within which it is judged, but may not end before them.
    assert task.within_timesteps is None or config.total_timesteps >= task.within_timesteps


def test_published_figures_have_a_source():
    for task in TASKS.values():
        if task.published is not None:
            assert task.published.source.startswith("https://"), task.name
            assert task.published.timesteps > 0, task.name

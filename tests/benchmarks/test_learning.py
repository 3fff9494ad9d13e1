"""Judging learning curves, and the tasks as the command line composes them."""

from __future__ import annotations

import pytest

from benchmarks.configs import compose_config
from benchmarks.learning import ScoreCurve, judge
from benchmarks.learning_tasks import TASKS, LearningTask

STEPS = LearningTask("steps", "", (), threshold=5.0, within_timesteps=200)
MINUTES = LearningTask("minutes", "", (), threshold=5.0, within_minutes=1.0)


def point(timesteps: int, seconds: float, mean: float) -> dict[str, float]:
    return {"timesteps": timesteps, "seconds": seconds, "mean": mean, "spread": 0.0}


CURVE = [point(100, 30.0, 4.0), point(200, 59.0, 5.0), point(300, 90.0, 9.0), point(400, 120.0, 6.0)]


@pytest.mark.parametrize("task", [STEPS, MINUTES])
def test_first_evaluation_that_reaches_the_threshold_counts(task):
    judged = judge(task, CURVE)
    assert judged["met"]
    assert judged["reached"] == CURVE[1]
    assert judged["best"] == CURVE[2]
    assert judged["last"] == CURVE[3]


@pytest.mark.parametrize("task", [STEPS, MINUTES])
def test_evaluations_past_the_limit_do_not_count(task):
    judged = judge(task, [CURVE[0], *CURVE[2:]])
    assert not judged["met"]
    assert judged["reached"] is None
    assert judged["best"] == CURVE[2]


@pytest.mark.parametrize(("threshold", "met"), [(5.0, False), (9.5, True)])
def test_a_task_that_cannot_be_solved_has_to_stay_below(threshold, met):
    task = LearningTask("unsolvable", "", (), threshold, within_timesteps=400, solvable=False)
    judged = judge(task, CURVE)
    assert task.limit == f"< {threshold:g} within 400 steps"
    assert judged["met"] is met
    assert (judged["reached"] is None) is met


def test_nothing_evaluated_is_nothing_reached():
    assert judge(STEPS, []) == {"limit": STEPS.limit, "met": False, "reached": None, "best": None, "last": None}


def test_curve_keeps_evaluations_with_their_spread():
    times = iter([10.0, 12.0, 15.0])
    curve = ScoreCurve(clock=lambda: next(times))
    curve.write({"timesteps": 1, "train/loss": 0.0})
    curve.write({"timesteps": 2, "eval/episode_return": 7.0, "eval/episode_return_std": 0.5})
    over_seeds = {"eval/episode_return_seed_0": 7.0, "eval/episode_return_seed_1": 9.0}
    curve.write(
        {
            "timesteps": 3,
            "eval/episode_return": 8.0,
            "eval/episode_return_std": 0.5,
            "eval/episode_return_std_over_seeds": 1.0,
            **over_seeds,
        }
    )
    assert curve.points == [
        {"timesteps": 2, "seconds": 2.0, "mean": 7.0, "spread": 0.5},
        {"timesteps": 3, "seconds": 5.0, "mean": 8.0, "spread": 1.0, "by_seed": [7.0, 9.0]},
    ]


def test_another_score_is_judged_by_its_name():
    task = LearningTask("archive", "", (), threshold=50.0, within_timesteps=400, score="train/qd_score")
    assert task.limit == "qd_score >= 50 within 400 steps"
    times = iter([10.0, 12.0])
    curve = ScoreCurve(task.score, clock=lambda: next(times))
    curve.write({"timesteps": 2, "eval/episode_return": 7.0, "eval/episode_return_std": 0.5})
    curve.write({"timesteps": 3, "train/qd_score": 60.0})
    assert curve.points == [{"timesteps": 3, "seconds": 2.0, "mean": 60.0, "spread": None}]
    assert judge(task, curve.points)["met"]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_tasks_compose_and_are_evaluated_in_time(task):
    config = compose_config(task.overrides)
    assert config.eval_episodes == 20
    assert 0 < config.eval_interval <= config.total_timesteps
    # A training may go on past the steps within which it is judged; it may not end before them.
    assert task.within_minutes is not None or config.total_timesteps >= task.within_timesteps

"""Judgment of recorded learning curves: the rules by which a task counts as met."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.learning.statistics import Improvement, Summary, improvement, summarize
from benchmarks.learning.task import LearningTask, Point

NEARLY_AS_LONG = 0.9  # training runs with at least this fraction of the published steps are complete
BETTER, NOT_WORSE, WORSE, MET, NOT_MET = "better", "not worse", "worse", "met", "not met"


@dataclasses.dataclass(frozen=True)
class Judgment:
    """Judgment of a learning curve.

    Attributes:
        verdict: ``better``, ``not worse`` or ``worse`` than published seeds; ``met`` or ``not met`` otherwise.
        point: the evaluation that is judged; ``None`` without one within the limit.
        num_met: seeds that meet the bar at this evaluation.
        summary: scores of all seeds at this evaluation; ``None`` without an evaluation.
        improvement: comparison with published seeds; ``None`` if these are not public.
        shorter: the training ended before the published number of environment steps.
    """

    verdict: str
    point: Point | None = None
    num_met: int = 0
    summary: Summary | None = None
    improvement: Improvement | None = None
    shorter: bool = False

    @property
    def met(self) -> bool:
        """True if the requirement is met."""
        return self.verdict in (BETTER, NOT_WORSE, MET)


def scores(point: Point) -> list[float]:
    """Return the score of each seed at an evaluation."""
    return list(point["by_seed"]) if "by_seed" in point else [point["mean"]]


def steps_per_action(result: Mapping[str, Any]) -> int:
    """Return the environment steps per action, from the settings of a result; 1 if they were not stored."""
    return result.get("config", {}).get("env", {}).get("action_repeat") or 1


def environment_steps(point: Point, result: Mapping[str, Any]) -> int:
    """Return the environment steps of an evaluation, whose ``timesteps`` are actions."""
    return point["timesteps"] * steps_per_action(result)


def judge(task: LearningTask, result: Mapping[str, Any]) -> Judgment:
    """Judge a result, whose settings must equal the settings of the task.

    With a published figure, the last evaluation up to the published number of environment steps counts: its scores
    are compared with the published seeds, or their mean with the published mean minus its standard error. With a
    threshold of our own, the mean of the last evaluation within ``within_timesteps`` counts. In an unsolvable task,
    no evaluation may reach the threshold.
    """
    if task.published is not None:
        return _judge_published(task, result)
    assert task.within_timesteps is not None, "checked when the task is made"
    curve = [point for point in result["curve"] if point["timesteps"] <= task.within_timesteps]
    if not curve:
        return Judgment(NOT_MET)
    point = curve[-1]
    if not task.solvable:
        point = max(curve, key=lambda point: point["mean"])
    summary = summarize(scores(point))
    reached = summary.mean >= task.bound
    num_met = sum((score >= task.bound) == task.solvable for score in scores(point))
    return Judgment(MET if reached == task.solvable else NOT_MET, point, num_met, summary)


def _judge_published(task: LearningTask, result: Mapping[str, Any]) -> Judgment:
    theirs = task.published
    assert theirs is not None
    curve: Sequence[Point] = result["curve"]
    counted = [point for point in curve if environment_steps(point, result) <= theirs.timesteps]
    shorter = not curve or environment_steps(curve[-1], result) < NEARLY_AS_LONG * theirs.timesteps
    if not counted:
        return Judgment(NOT_MET if theirs.values is None else WORSE, shorter=shorter)
    ours = scores(counted[-1])
    summary, num_met = summarize(ours), sum(score >= theirs.bar for score in ours)
    if theirs.values is None:
        verdict = MET if summary.mean >= theirs.bar else NOT_MET
        return Judgment(verdict, counted[-1], num_met, summary, None, shorter)
    compared = improvement(ours, theirs.values)
    verdict = BETTER if compared.low > 0.5 else NOT_WORSE if compared.high >= 0.5 else WORSE
    return Judgment(verdict, counted[-1], num_met, summary, compared, shorter)

"""Success rates by region of the goal space."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.envs import Box
from evorl.evaluators.goal_regions import FEW_GOALS, GoalRegion, as_lines, by_goal


def table(desired: np.ndarray, success: np.ndarray, start: np.ndarray | None = None) -> dict[str, np.ndarray]:
    success = np.asarray(success)
    return {
        "desired": desired,
        "start": np.zeros_like(desired) if start is None else start,
        "success": success,
        "success_ever": np.ones_like(success),
        "return": -10.0 * (1 - success),
    }


def test_cells_of_a_plane_tell_where_a_policy_fails() -> None:
    places = np.random.default_rng(0).uniform(-1.0, 1.0, (200, 2))
    fails = (places[:, 0] > 1 / 3) & (places[:, 1] < -1 / 3)  # one of nine cells, a corner
    regions = by_goal(table(places, ~fails), Box(-1.0, 1.0, (2,)), cells=3)
    assert len(regions) == 9
    assert sum(region.num_episodes for region in regions) == 200
    bad = [region for region in regions if region.success < 1]
    assert [region.name for region in bad] == ["goal_0 0.333 to 1, goal_1 -1 to -0.333"]
    assert (bad[0].success, bad[0].success_ever, bad[0].episode_return) == (0.0, 1.0, -10.0)
    assert bad[0].num_episodes == fails.sum()


def test_ends_of_the_space_lie_in_the_outer_cells() -> None:
    ends = np.linspace(0.0, 3.0, 40)[:, None]
    regions = by_goal(table(ends, np.ones(40)), Box(0.0, 3.0, (1,)), cells=3)
    assert [region.num_episodes for region in regions] == [13, 13, 14]
    endless = by_goal(table(ends, np.ones(40)), Box(-np.inf, np.inf, (1,)), cells=2)
    assert [region.name for region in endless] == ["goal_0 0 to 1.5", "goal_0 1.5 to 3"]


def test_few_goals_are_told_one_by_one() -> None:
    goals = np.repeat(np.array([[0.5, 1.0], [2.0, -1.0]]), [4, 6], axis=0)
    regions = by_goal(table(goals, np.r_[np.zeros(4), np.ones(6)]), Box(-3.0, 3.0, (2,)))
    assert regions == [
        GoalRegion("[0.5, 1]", 4, 0.0, 1.0, -10.0),
        GoalRegion("[2, -1]", 6, 1.0, 1.0, 0.0),
    ]


def test_goals_of_many_numbers_are_told_by_their_distance() -> None:
    rng = np.random.default_rng(1)
    start, goals = (rng.integers(0, 2, (64, 15)) for _ in range(2))
    assert len(np.unique(goals, axis=0)) > FEW_GOALS
    distance = np.linalg.norm(goals - start, axis=1)
    regions = by_goal(table(goals, distance < np.median(distance), start), Box(0, 1, (15,), np.int8))
    assert sum(region.num_episodes for region in regions) == 64
    assert regions[0].success == 1.0
    assert regions[-1].success == 0.0
    assert all(region.name.endswith(" from the start") for region in regions)


@pytest.mark.parametrize("distance", [0.0, 2.0])
def test_goals_that_are_all_equally_far(distance: float) -> None:
    goals = np.eye(20)[:, :20] * distance + np.arange(20)[:, None]
    (region,) = by_goal(table(goals, np.ones(20), goals - distance), Box(-50.0, 50.0, (20,)))
    assert region.num_episodes == 20


def test_lines_stand_below_one_another() -> None:
    lines = as_lines([GoalRegion("a", 4, 0.25, 0.5, -3.0), GoalRegion("longer", 10, 1.0, 1.0, -12.5)])
    assert lines == [
        "goal    episodes  success  ever  return",
        "a              4     0.25  0.50  -3.00",
        "longer        10     1.00  1.00  -12.50",
    ]

"""Success rates and returns of episodes, grouped by the region of their goal."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from evorl.envs.space import Box

FEW_GOALS = 12  # up to this number, each distinct goal is a region if episodes suffice, see ``by_goal``
MAX_DIMENSIONS = 2  # goals with more dimensions are grouped by their distance from the start
NUM_DISTANCES = 4


@dataclasses.dataclass(frozen=True)
class GoalRegion:
    """Results of the episodes whose goals are in one region.

    Attributes:
        name: description of the region.
        num_episodes: number of episodes, at least one.
        success: fraction of episodes that ended at their goal.
        success_ever: fraction of episodes that reached their goal at any time.
        episode_return: mean return.
    """

    name: str
    num_episodes: int
    success: float
    success_ever: float
    episode_return: float


def by_goal(table: Mapping[str, np.ndarray], goal_space: Box, cells: int = 3) -> list[GoalRegion]:
    """Group episodes by regions of their goals; regions without episodes are omitted.

    Each distinct goal is a region if there are up to ``FEW_GOALS``, with two episodes or more on average. Otherwise,
    goals of up to two dimensions are grouped by a grid, others by quartiles of the distance from start to goal.

    Args:
        table: columns of N episodes, see ``recorders.goal_table``: ``desired`` and ``start`` ``[N, G]``; ``success``,
            ``success_ever`` and ``return`` ``[N]``.
        goal_space: space of goals, which the grid covers; an unbounded dimension is covered by the range of the goals.
        cells: number of grid cells per dimension of a goal.
    """
    names, region = _regions(np.asarray(table["desired"]), np.asarray(table["start"]), goal_space, cells)
    regions = []
    for number, name in enumerate(names):
        inside = region == number
        if inside.any():
            means = (float(np.mean(np.asarray(table[x])[inside])) for x in ("success", "success_ever", "return"))
            regions.append(GoalRegion(name, int(inside.sum()), *means))
    return regions


def as_lines(regions: Sequence[GoalRegion]) -> list[str]:
    """Format the regions as the lines of a table."""
    width = max([len("goal"), *(len(region.name) for region in regions)])
    lines = [f"{'goal':{width}s}  episodes  success  ever  return"]
    for region in regions:
        shares = f"{region.success:7.2f}  {region.success_ever:4.2f}  {region.episode_return:.2f}"
        lines.append(f"{region.name:{width}s}  {region.num_episodes:8d}  {shares}")
    return lines


def _regions(desired: np.ndarray, start: np.ndarray, space: Box, cells: int) -> tuple[list[str], np.ndarray]:
    """Return the names of the regions, and the index of each goal's region, ``[N]``."""
    goals, goal_index = np.unique(desired, axis=0, return_inverse=True)
    if len(goals) <= FEW_GOALS and 2 * len(goals) <= len(desired):
        return [f"[{', '.join(f'{x:.4g}' for x in goal)}]" for goal in goals], goal_index.reshape(-1)
    if desired.shape[1] <= MAX_DIMENSIONS:
        return _cells(desired, space, cells)
    distance = np.linalg.norm(desired - start, axis=1)
    edges = np.unique(np.quantile(distance, np.linspace(0.0, 1.0, NUM_DISTANCES + 1)))
    if len(edges) == 1:
        edges = np.repeat(edges, 2)
    names = [f"{a:.3g} to {b:.3g} from the start" for a, b in itertools.pairwise(edges)]
    return names, np.clip(np.searchsorted(edges, distance, side="right") - 1, 0, len(names) - 1)


def _cells(desired: np.ndarray, space: Box, cells: int) -> tuple[list[str], np.ndarray]:
    names, region = [""], np.zeros(len(desired), np.int64)
    for i, values in enumerate(desired.T):
        low, high = float(space.low[i]), float(space.high[i])
        if not np.isfinite([low, high]).all() or low == high:
            low, high = float(values.min()), float(values.max())
        edges = np.linspace(low, high, cells + 1)
        texts = [f"goal_{i} {a:.3g} to {b:.3g}" for a, b in itertools.pairwise(edges)]
        names = [", ".join(filter(None, (name, text))) for name in names for text in texts]
        region = region * cells + np.clip(np.searchsorted(edges, values, side="right") - 1, 0, cells - 1)
    return names, region

"""Metric rows: means and latest values of the iterations between two rows, and columns and scores of evaluations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evorl.metrics import EpisodeStatistics
from evorl.types import PyTreeDict

Names = Collection[str]
_AVERAGED = ("train/", "serving/")  # prefixes of metrics that are averaged over iterations


class RunningMeans:
    """Means of metrics between two rows, independent of how many iterations each call of ``add`` contains.

    Metrics are averaged over seeds and the iterations that have them, with three exceptions: ``episodes`` gives means
    over all finished episodes, ``losses`` are means over all updates, ``latest`` metrics keep their last value.
    ``sums`` is a result of ``to_json``, or empty.
    """

    def __init__(self, sums: Mapping[str, Any]) -> None:
        self.sums: dict[str, float] = {name: float(value) for name, value in sums.items()}

    def add(self, rows: PyTreeDict, latest: Names = (), losses: Names = (), optional: Names = ()) -> None:
        """Add the metrics of N iterations.

        Args:
            rows: metrics by name, ``[N]`` or ``[N, S]``; ``episodes`` is an ``EpisodeStatistics``.
            latest: names of metrics whose last value counts, see ``Workflow.latest_metrics``.
            losses: names of metrics that are means over the updates of an iteration, whose number is ``updates``.
            optional: names of metrics that are NaN where they have no value, see ``Workflow.optional_metrics``.
        """
        # Statistics of a server are not training metrics.
        named = {name if name.startswith("serving/") else f"train/{name}": values for name, values in rows.items()}
        flat = {name: values for name, values in named.items() if name != "train/episodes"}
        if "episodes" in rows:
            ended: EpisodeStatistics = rows.episodes
            flat |= {"episodes/count": ended.count, "episodes/returns": ended.return_sum}
            flat["episodes/lengths"] = ended.length_sum
        before = self.sums.get("iterations", 0.0)
        for name, values in flat.items():
            values = np.asarray(values, np.float64)
            if "updates" in rows and name.removeprefix("train/") in losses:
                name, values = f"updates/{name}", values * np.asarray(rows.updates)
            per_iteration = values.reshape(len(values), -1)
            if name.removeprefix("train/") in optional:
                per_iteration = np.ma.masked_where(np.isnan(per_iteration), per_iteration)
            per_iteration = per_iteration.sum(axis=1) if name.startswith("episodes/") else per_iteration.mean(axis=1)
            num_absent, per_iteration = np.ma.count_masked(per_iteration), np.ma.filled(per_iteration, 0.0)
            if name.removeprefix("train/").partition("/")[0] in latest:
                if len(per_iteration):
                    self.sums[f"latest/{name}"] = float(per_iteration[-1])
                continue
            if num_absent or (before and name not in self.sums):
                missing = self.sums.get(f"missing/{name}", 0.0 if name in self.sums else before)
                self.sums[f"missing/{name}"] = missing + num_absent
            # cumsum adds sequentially, so a sum resumed from a checkpoint is bit-identical.
            self.sums[name] = float(np.cumsum(np.append(self.sums.get(name, 0.0), per_iteration))[-1])
        num_iterations = len(next(iter(flat.values()), ()))
        for name in [f"missing/{name}" for name in self.sums if name.startswith(_AVERAGED) and name not in flat]:
            self.sums[name] = self.sums.get(name, 0.0) + num_iterations
        self.sums["iterations"] = before + num_iterations

    def take(self) -> dict[str, float | int]:
        """Return the means and latest values since the last row, by column name, and reset them."""
        sums, self.sums = self.sums, {}
        iterations = sums.pop("iterations", 0.0)
        row: dict[str, float | int] = {}
        for name, total in sums.items():
            if name.startswith("latest/"):
                row[name.removeprefix("latest/")] = total
            elif name.startswith("updates/"):
                row[name.removeprefix("updates/")] = total / (sums["train/updates"] or 1.0)  # 0 without an update
            elif name.startswith(_AVERAGED):
                count = iterations - sums.get(f"missing/{name}", 0.0)
                row[name] = total / count if count else math.nan
        episodes = sums.get("episodes/count", 0.0)
        row["train/episodes"] = int(episodes)
        if episodes:
            row["train/episode_return"] = sums["episodes/returns"] / episodes
            row["train/episode_length"] = sums["episodes/lengths"] / episodes
        return row

    def to_json(self) -> dict[str, float]:
        """Return the sums and latest values since the last row, as JSON data for a checkpoint."""
        return dict(self.sums)


class SlidingScore:
    """Score for selecting the best checkpoint: the mean over the last evaluations, weighted by their episodes.

    This way, a single lucky evaluation does not make a checkpoint the best.

    Args:
        over: number of evaluations, at least 1; 1 uses the last one only.
        before: pairs of mean return and weight of the evaluations before a resume, oldest first.
    """

    def __init__(self, over: int = 1, before: Iterable[Sequence[float]] = ()) -> None:
        if over < 1:
            raise ValueError(f"a score needs at least 1 evaluation, got {over}.")
        self._last: deque[tuple[float, float]] = deque(((mean, weight) for mean, weight in before), maxlen=over)

    def push(self, mean: float, weight: float) -> float:
        """Add an evaluation; return the weighted mean of the last ``over``, or ``mean`` itself if it is not finite."""
        if self._last.maxlen == 1 or not math.isfinite(mean):
            return mean
        self._last.append((mean, weight))
        return sum(mean * weight for mean, weight in self._last) / sum(weight for _, weight in self._last)

    def to_json(self) -> dict[str, list[list[float]]]:
        """Return ``{"scores": pairs}`` for a checkpoint's progress; empty if ``over`` is 1 or nothing was added."""
        return {"scores": [list(pair) for pair in self._last]} if self._last else {}


def describe_evaluation(metrics: PyTreeDict) -> dict[str, float | int]:
    """Return ``eval/*`` columns: means over seeds and, with several seeds, ``*_seed_<i>`` and ``*_std_over_seeds``.

    Standard deviations over the episodes of a seed, ``*_std``, are only averaged over the seeds.
    """
    row: dict[str, float | int] = {}
    for name, value in metrics.items():
        of_seeds = np.asarray(value, np.float64)
        row[f"eval/{name}"] = float(of_seeds.mean())
        if of_seeds.ndim and not name.endswith("_std"):
            row[f"eval/{name}_std_over_seeds"] = float(of_seeds.std())
            row |= {f"eval/{name}_seed_{i}": float(of_seed) for i, of_seed in enumerate(of_seeds)}
    return row

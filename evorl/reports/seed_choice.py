"""Chooses one seed of a run that trained several in parallel: by index, or by the highest evaluation return."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from evorl.config.values import BEST
from evorl.recorders.run_status import EVALUATION
from evorl.reports.recorded_run import RecordedRun
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder


class SeedChoice(NamedTuple):
    """A chosen seed of a run.

    Attributes:
        number: index of the seed, from 0.
        description: the seed and the reason, such as ``seed_number=2 of 4 seeds (the best by evaluation, with a return
            of 89.3)``; empty for a run of one seed.
    """

    number: int
    description: str


def choose_seed(folder: Path, num_seeds: int | None, timesteps: int, requested: int | str = BEST) -> SeedChoice:
    """Choose a seed of a checkpoint.

    Args:
        folder: the run folder.
        num_seeds: number of seeds of the run; ``None`` for a run without a seed axis.
        timesteps: environment steps of the checkpoint. The last evaluation up to this step decides; the evaluation of
            the untrained policy does not count.
        requested: index of a seed, or ``best`` for the seed with the largest mean return (seed 0 if no evaluation of
            each seed is recorded). ``execution.seeds.state_of_seed`` checks that the run has a seed of this index.
    """
    if requested != BEST:
        return SeedChoice(int(requested), _described(int(requested), num_seeds))
    if num_seeds is None:
        return SeedChoice(0, "")
    returns = _returns_of_seeds(folder, num_seeds, timesteps)
    if not any(map(math.isfinite, returns)):
        return SeedChoice(0, f"{_described(0, num_seeds)} (no evaluations of single seeds were recorded)")
    number = max(range(num_seeds), key=lambda i: returns[i])
    reason = f"the best by evaluation, with a return of {returns[number]:,.1f}"
    return SeedChoice(number, f"{_described(number, num_seeds)} ({reason})")


def _described(number: int, num_seeds: int | None) -> str:
    return "" if num_seeds is None else f"seed_number={number} of {num_seeds} seeds"


def _returns_of_seeds(folder: Path, num_seeds: int, timesteps: int) -> list[float]:
    """Return each seed's return in the last evaluation up to ``timesteps``; -inf for seeds without a finite return."""
    returns = [-math.inf] * num_seeds
    try:
        curves = RecordedRun(RunFolder(folder), folder.name).curves
    except RunFolderError:
        return returns
    seeds = [curves.get(f"{EVALUATION}_seed_{i}") for i in range(num_seeds)]
    steps = {float(step) for curve in seeds if curve is not None for step in curve.steps if 0 < step <= timesteps}
    for i, curve in enumerate(seeds):
        values = [] if curve is None or not steps else curve.values[curve.steps == max(steps)].tolist()
        returns[i] = values[-1] if values else -math.inf
    return returns

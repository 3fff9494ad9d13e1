"""Tables of a sweep: ``sweep.csv`` with the result of every setting, ``evaluations.csv`` with all evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evorl.recorders.row_file import RowFile, as_line
from evorl.recorders.run_status import best_evaluation
from evorl.reports.statistics import bootstrap_interval

RETURN = "episode_return"  # metric that settings are compared by
Returns = Mapping[int, Mapping[int, Sequence[float]]]
Evaluations = Mapping[int, Mapping[int, Mapping[str, Sequence[float]]]]


def write_sweep(path: Path, settings: Sequence[Mapping[str, Any]], returns: Returns, num_seeds: int) -> None:
    """Write one line per setting: its values, its environment steps, its results, and the return of each seed.

    ``eval_return`` is the mean over seeds of the last evaluation; ``low`` and ``high`` are its 95 % bootstrap interval;
    ``best_return`` is the largest mean over seeds after step 0. Cells without a value are empty.

    Raises:
        RunFolderError: the file cannot be written.
    """
    names = list(settings[0])
    seeds = [f"seed_{i}" for i in range(num_seeds)]
    header = ["setting", *names, "timesteps", "eval_return", "low", "high", "best_return", *seeds]
    rows = [
        [
            number,
            *("" if setting[name] is None else setting[name] for name in names),
            *_summary(returns[number], num_seeds),
        ]
        for number, setting in enumerate(settings)
    ]
    RowFile(path).replace(as_line(map(str, row)) for row in [header, *rows])


def write_evaluations(path: Path, evaluations: Evaluations, num_seeds: int) -> None:
    """Write one line per evaluation of each setting: its steps, the mean return, and the return of each seed.

    The columns ``eval/<metric>`` and ``eval/<metric>_seed_<i>`` have the other metrics, such as ``eval/success``.

    Raises:
        RunFolderError: the file cannot be written.
    """
    metrics = [metrics for of_setting in evaluations.values() for metrics in of_setting.values()]
    others = sorted({name for of_evaluation in metrics for name in of_evaluation} - {RETURN})
    header = ["setting", "timesteps", "eval_return", *(f"seed_{i}" for i in range(num_seeds))]
    for name in others:
        header += [f"eval/{name}", *(f"eval/{name}_seed_{i}" for i in range(num_seeds))]
    missing = [math.nan] * num_seeds
    rows = [
        [str(number), str(timesteps), *_cells([of_evaluation.get(name, missing) for name in (RETURN, *others)])]
        for number, of_setting in sorted(evaluations.items())
        for timesteps, of_evaluation in sorted(of_setting.items())
    ]
    RowFile(path).replace(as_line(row) for row in [header, *rows])


def _cells(metrics: Sequence[Sequence[float]]) -> list[str]:
    return [_number(value) for values in metrics for value in (float(np.mean(values)), *values)]


def _summary(of_setting: Mapping[int, Sequence[float]], num_seeds: int) -> list[str]:
    if not of_setting:
        return [""] * (5 + num_seeds)
    timesteps = max(of_setting)
    last = np.asarray(of_setting[timesteps], np.float64)
    low, high = bootstrap_interval(last) if num_seeds > 1 and np.isfinite(last).all() else (math.nan, math.nan)
    means = [float(np.mean(values)) for values in of_setting.values()]
    best = best_evaluation(list(of_setting), means)
    return [str(timesteps), *map(_number, (float(last.mean()), low, high, best, *last.tolist()))]


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else ""

"""Runs in groups: which belong together, what they reach, by which settings they differ."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evorl.config.names import no_such
from evorl.recorders.run_status import EVALUATION, TRAINING
from evorl.reports.recorded_run import Curve, RecordedRun
from evorl.reports.statistics import bootstrap_interval, interquartile_mean, stratified_interval

SEEDS_FOR_INTERVAL = 3
CURVE_RESAMPLES = 2_000
MAX_POINTS = 200  # of a drawn curve
MOST_GROUPS = 8  # that are told apart without being asked for
# Settings by which runs may differ without learning otherwise, and those that say which run it is.
_BESIDE = {
    *"title sweep search eval_at_start render_interval resume run trust runs_folder recorders evaluation".split(),
    *"best_checkpoints_kept best_over checkpoint_seconds".split(),
    *"checkpoints_kept compilation_cache devices env_chunk deterministic checkpoint_interval log_interval".split(),
}
_IDENTITY = {"workflow", "seed", "num_seeds", "env.library", "env.name"}
ABSENT = "-"


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one environment that differ by their seeds only, as far as the reader is concerned.

    Attributes:
        label: by which it is told from other groups, the same in every environment.
        env: of all its runs.
        runs: at least one.
        metric: what they are compared by.
    """

    label: str
    env: str
    runs: tuple[RecordedRun, ...]
    metric: str

    @functools.cached_property
    def curves(self) -> list[Curve]:
        """The metric of each seed."""
        return [curve for run in self.runs for curve in run.by_seed(self.metric)]

    @property
    def scores(self) -> np.ndarray:
        """The last value of each seed, ``[S]``."""
        return np.array([curve.values[-1] for curve in self.curves])

    @property
    def center(self) -> float:
        """The interquartile mean of the scores."""
        return float(interquartile_mean(self.scores))

    @functools.cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % bootstrap interval of the center; ``None`` with fewer than three seeds."""
        return bootstrap_interval(self.scores, interquartile_mean) if len(self.scores) >= SEEDS_FOR_INTERVAL else None


@dataclasses.dataclass(frozen=True)
class Band:
    """Curves of several seeds together.

    Attributes:
        steps: environment steps, ``[N]``.
        center: the interquartile mean of the seeds that came so far, ``[N]``.
        low: where its 95 % interval begins, ``[N]``, NaN where fewer than three seeds are.
        high: where it ends.
    """

    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band_of(curves: Sequence[Curve]) -> Band:
    """Interquartile mean and interval of curves over their steps; between its values a curve is a straight line."""
    steps = thinned(np.unique(np.concatenate([curve.steps for curve in curves])))
    values = np.stack([np.interp(steps, c.steps, c.values, left=np.nan, right=np.nan) for c in curves], axis=1)
    center, low, high = np.full((3, len(steps)), np.nan)
    there = np.isfinite(values)
    for seeds in np.unique(there, axis=0):
        rows = (there == seeds).all(axis=1)
        chosen = values[np.ix_(rows, seeds)]
        center[rows] = interquartile_mean(chosen)
        if seeds.sum() >= SEEDS_FOR_INTERVAL:
            statistic = lambda tasks: interquartile_mean(tasks[0])  # noqa: E731
            low[rows], high[rows] = stratified_interval([chosen], statistic, resamples=CURVE_RESAMPLES)
    return Band(steps, center, low, high)


def thinned(steps: np.ndarray) -> np.ndarray:
    """At most so many of the points as are drawn, evenly, with the first and the last."""
    if len(steps) <= MAX_POINTS:
        return steps
    return steps[np.unique(np.linspace(0, len(steps) - 1, MAX_POINTS).round().astype(int))]


def grouped(runs: Sequence[RecordedRun], by: Sequence[str] = (), metric: str | None = None) -> list[Group]:
    """Runs in groups, those of one environment together.

    Args:
        runs: that recorded the metric.
        by: ``agent``, ``env``, ``run`` or settings by which groups differ; by default the algorithm and the settings
            that were varied, as long as these make few groups, else the algorithm.
        metric: a column of ``metrics.csv``; by default the return.

    Raises:
        ValueError: no run has such a setting.
    """
    labels = _labels_by(runs, by) if by else _labels(runs)
    groups: dict[tuple[str, str], list[RecordedRun]] = {}
    for run, label in zip(runs, labels, strict=True):
        groups.setdefault((run.env, label), []).append(run)
    metric = metric or usual_metric(runs)
    made = [Group(label, env, tuple(members), metric) for (env, label), members in groups.items()]
    order = {label: i for i, label in enumerate(sorted(dict.fromkeys(labels), key=_natural))}
    return sorted(made, key=lambda group: (group.env, order[group.label]))


def usual_metric(runs: Sequence[RecordedRun]) -> str:
    """The return of evaluations, if any run has it; else that of training episodes. They are not to be compared."""
    return EVALUATION if any(EVALUATION in run.curves for run in runs) else TRAINING


def _labels(runs: Sequence[RecordedRun]) -> list[str]:
    varied = varied_settings(runs)
    plain = [run.algorithm for run in runs]
    agents = ["agent"] if len(set(plain)) > 1 or not varied else []
    full = [_label(run, [*agents, *varied]) for run in runs]
    return full if len(set(full)) <= MOST_GROUPS else plain


def _labels_by(runs: Sequence[RecordedRun], by: Sequence[str]) -> list[str]:
    known = {name for run in runs for name in settings_of(run)}
    above = {name.rpartition(".")[0] for name in known} - {"", *_WORDS}
    for name in by:
        if name not in (*_WORDS, *known, *above):
            raise ValueError(f"by={name}: {no_such('setting', name, [*_WORDS, *sorted(known)])}")
    return [_label(run, by) for run in runs]


_WORDS = ("agent", "env", "run")


def _label(run: RecordedRun, by: Sequence[str]) -> str:
    short = short_names(by)
    words = {"agent": run.algorithm, "env": run.env, "run": run.name}
    settings = settings_of(run)
    parts = []
    for name in by:
        if name in words:
            parts.append(words[name])
        elif name in settings:
            parts.append(f"{short[name]}={settings[name]}")
        else:  # a mapping, such as a schedule
            within = {k.removeprefix(f"{name}."): v for k, v in settings.items() if k.startswith(f"{name}.")}
            shown = " ".join(f"{k}={v}" for k, v in within.items() if v != "null")
            parts.append(f"{short[name]}: {shown}" if within else "")
    return ", ".join(filter(None, parts)) or ABSENT


def _natural(label: str) -> list[tuple[int, float, str]]:
    """Numbers within labels by their size."""
    parts = []
    for word in label.replace("=", " = ").replace(",", " , ").split():
        try:
            parts.append((0, float(word), ""))
        except ValueError:
            parts.append((1, 0.0, word))
    return parts


_OF_THE_ONE_ABOVE = ("start", "end", "name", "kind", "share", "policy", "value")


def short_names(settings: Sequence[str]) -> dict[str, str]:
    """Return the shortest distinct ends of dotted names, by name.

    An end such as ``start`` includes the part before it.
    """
    parts = {name: name.split(".") for name in settings}
    lengths = {name: 2 if split[-1] in _OF_THE_ONE_ABOVE else 1 for name, split in parts.items()}
    while True:
        short = {name: ".".join(parts[name][-lengths[name] :]) for name in parts}
        counts = collections.Counter(short.values())
        equal = [name for name in parts if counts[short[name]] > 1 and lengths[name] < len(parts[name])]
        if not equal:
            return short
        for name in equal:
            lengths[name] += 1


def shortened(texts: Iterable[str], most: int) -> dict[str, str]:
    """Shorten texts to at most ``most`` characters, by the original texts, so that no two are equal.

    Long texts lose their end, their beginning or their middle: the first of these that keeps all texts distinct. If
    none does, they are not shortened.
    """
    whole = list(dict.fromkeys(texts))
    tail = most // 2
    for cut in (
        lambda text: f"{text[: most - 1]}…",
        lambda text: f"…{text[len(text) - most + 1 :]}",
        lambda text: f"{text[: most - tail - 1]}…{text[len(text) - tail :]}",
    ):
        short = {text: text if len(text) <= most else cut(text) for text in whole}
        if len(set(short.values())) == len(whole):
            return short
    return {text: text for text in whole}


def settings_of(run: RecordedRun) -> dict[str, str]:
    """Every setting of a run that may matter, dotted, as text; lists are one setting."""
    kept = {key: value for key, value in run.config.items() if key not in _BESIDE}
    return {name: _text(value) for name, value in _flat(kept) if name not in _BESIDE}


def _flat(node: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in node.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, name)
        else:
            yield name, value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def varied_settings(runs: Sequence[RecordedRun]) -> list[str]:
    """The settings that differ between runs of one algorithm in one environment."""
    alike: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in runs:
        alike.setdefault((run.algorithm, run.env), []).append(run)
    names = [name for members in alike.values() for name in differing_settings(members)]
    return list(dict.fromkeys(names))


def differing_settings(runs: Sequence[RecordedRun]) -> list[str]:
    """The settings that have not the same value in all of these runs, seeds aside, in the order of the configs."""
    all_settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for settings in all_settings for name in settings if name not in _IDENTITY)
    return [name for name in names if len({settings.get(name, ABSENT) for settings in all_settings}) > 1]


def values_in(group: Group, setting: str) -> str:
    """The values that a setting has in a group's runs."""
    values = dict.fromkeys(settings_of(run).get(setting, ABSENT) for run in group.runs)
    return ", ".join(list(values)[:6]) + (f" and {len(values) - 6} more" if len(values) > 6 else "")

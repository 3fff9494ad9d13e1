"""Groups runs by algorithm and settings, and summarizes each group's scores and curves."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from evorl.config.names import no_such
from evorl.recorders.run_status import EVALUATION, TRAINING
from evorl.reports.recorded_run import Curve, RecordedRun
from evorl.reports.statistics import bootstrap_interval, interquartile_mean, stratified_interval
from evorl.runs.spec import learning_settings

SEEDS_FOR_INTERVAL = 3
CURVE_RESAMPLES = 2_000
MAX_RESAMPLED = 20_000_000  # maximum number of values that are resampled at once, 160 MB
MAX_POINTS = 200  # maximum number of points of a drawn curve
MAX_GROUPS = 8  # largest number of groups by default; above it, runs are grouped by algorithm
# Settings that identify a run, and that are not compared.
_IDENTITY = {"workflow", "seed", "num_seeds", "env.library", "env.name"}
ABSENT = "-"


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs in one environment that are treated as repetitions with different seeds.

    Attributes:
        label: name of the group; groups of the same agent or settings in other environments have the same name.
        env: environment of all its runs.
        runs: runs to compare, at least one.
        metric: metric that groups are compared by.
    """

    label: str
    env: str
    runs: tuple[RecordedRun, ...]
    metric: str

    @functools.cached_property
    def curves(self) -> list[Curve]:
        """Curve of the metric for each seed of the runs."""
        return [curve for run in self.runs for curve in run.by_seed(self.metric)]

    @property
    def scores(self) -> np.ndarray:
        """Last value of the metric of each seed, ``[S]``."""
        return np.array([curve.values[-1] for curve in self.curves])

    @property
    def center(self) -> float:
        """Interquartile mean of the scores."""
        return float(interquartile_mean(self.scores))

    @functools.cached_property
    def interval(self) -> tuple[float, float] | None:
        """95 % bootstrap interval of the center; ``None`` with fewer than three seeds."""
        return bootstrap_interval(self.scores, interquartile_mean) if len(self.scores) >= SEEDS_FOR_INTERVAL else None


@dataclasses.dataclass(frozen=True)
class Band:
    """Interquartile mean and confidence interval of several seeds' curves.

    Attributes:
        steps: environment steps, ``[N]``.
        center: interquartile mean over the seeds with data at each step, ``[N]``.
        low: lower end of the 95 % interval, ``[N]``; NaN with fewer than three seeds.
        high: upper end of the 95 % interval, ``[N]``; NaN with fewer than three seeds.
    """

    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band_of(curves: Sequence[Curve]) -> Band:
    """Return interquartile mean and interval of the curves, interpolated linearly at up to ``MAX_POINTS`` steps."""
    steps = thinned(np.unique(np.concatenate([curve.steps for curve in curves])))
    values = np.stack([np.interp(steps, c.steps, c.values, left=np.nan, right=np.nan) for c in curves], axis=1)
    center, low, high = np.full((3, len(steps)), np.nan)
    is_finite = np.isfinite(values)
    for seeds in np.unique(is_finite, axis=0):
        rows = np.flatnonzero((is_finite == seeds).all(axis=1))
        center[rows] = interquartile_mean(values[np.ix_(rows, seeds)])
        if seeds.sum() >= SEEDS_FOR_INTERVAL:
            statistic = lambda tasks: interquartile_mean(tasks[0])  # noqa: E731
            for part in np.array_split(rows, -(-CURVE_RESAMPLES * len(rows) * seeds.sum() // MAX_RESAMPLED)):
                chosen = [values[np.ix_(part, seeds)]]
                low[part], high[part] = stratified_interval(chosen, statistic, resamples=CURVE_RESAMPLES)
    return Band(steps, center, low, high)


def thinned(steps: np.ndarray) -> np.ndarray:
    """Return at most ``MAX_POINTS`` of the steps, evenly spaced by index, including the first and the last."""
    return steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MAX_POINTS)).round().astype(int))]


def grouped(runs: Sequence[RecordedRun], by: Sequence[str] = (), metric: str | None = None) -> list[Group]:
    """Return runs in groups, sorted by environment.

    Args:
        runs: runs that recorded the metric.
        by: ``agent``, ``env``, ``run`` or settings to group by. The default is the algorithm and the varied settings,
            or the algorithm alone if that makes more than ``MAX_GROUPS`` groups.
        metric: column of ``metrics.csv``; by default the return, see ``default_metric``.

    Raises:
        ValueError: an entry of ``by`` is not a setting of any run.
    """
    labels = _labels_by(runs, by) if by else _labels(runs)
    groups: dict[tuple[str, str], list[RecordedRun]] = {}
    for run, label in zip(runs, labels, strict=True):
        groups.setdefault((run.env, label), []).append(run)
    metric = metric or default_metric(runs)
    made = [Group(label, env, tuple(members), metric) for (env, label), members in groups.items()]
    order = {label: i for i, label in enumerate(sorted(dict.fromkeys(labels), key=_natural))}
    return sorted(made, key=lambda group: (group.env, order[group.label]))


def default_metric(runs: Sequence[RecordedRun]) -> str:
    """Return the column of the evaluation return if any run has it, else that of the training return."""
    return EVALUATION if any(EVALUATION in run.curves for run in runs) else TRAINING


def _labels(runs: Sequence[RecordedRun]) -> list[str]:
    varied = varied_settings(runs)
    plain = [run.algorithm for run in runs]
    agents = ["agent"] if len(set(plain)) > 1 or not varied else []
    full = [_label(run, [*agents, *varied]) for run in runs]
    return full if len(set(full)) <= MAX_GROUPS else plain


def _labels_by(runs: Sequence[RecordedRun], by: Sequence[str]) -> list[str]:
    known = {name for run in runs for name in settings_of(run)}
    above = {name.rpartition(".")[0] for name in known} - {"", *_RUN_FIELDS}
    for name in by:
        if name not in (*_RUN_FIELDS, *known, *above):
            raise ValueError(f"by={name}: {no_such('setting', name, [*_RUN_FIELDS, *sorted(known)])}")
    return [_label(run, by) for run in runs]


_RUN_FIELDS = ("agent", "env", "run")


def _label(run: RecordedRun, by: Sequence[str]) -> str:
    short = short_names(by)
    fields = {"agent": run.algorithm, "env": run.env, "run": run.name}
    settings = settings_of(run)
    parts = []
    for name in by:
        if name in fields:
            parts.append(fields[name])
        elif name in settings:
            parts.append(f"{short[name]}={settings[name]}")
        else:  # the setting is a mapping, such as a schedule
            within = {k.removeprefix(f"{name}."): v for k, v in settings.items() if k.startswith(f"{name}.")}
            shown = " ".join(f"{k}={v}" for k, v in within.items() if v != "null")
            parts.append(f"{short[name]}: {shown}" if within else "")
    return ", ".join(filter(None, parts)) or ABSENT


def _natural(label: str) -> list[tuple[int, float, str]]:
    """Return a sort key that orders numbers within labels by value."""
    parts = []
    for word in label.replace("=", " = ").replace(",", " , ").split():
        try:
            parts.append((0, float(word), ""))
        except ValueError:
            parts.append((1, 0.0, word))
    return parts


_OF_THE_ONE_ABOVE = ("start", "end", "name", "kind", "share", "policy", "value")


def short_names(settings: Sequence[str]) -> dict[str, str]:
    """Return, for each dotted name, its shortest end that no other name has.

    A generic last part, such as ``start``, is shown with the part before.
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


def shortened(texts: Iterable[str], max_length: int) -> dict[str, str]:
    """Return a mapping from texts to distinct versions of at most ``max_length`` characters.

    Long texts are cut at the end, at the beginning, in the middle, or in the middle of each part between commas: at the
    first position that keeps all texts distinct. Otherwise they are cut at the end and numbered: ``abc… (2)``.
    """
    whole = list(dict.fromkeys(texts))
    numbers = {text: f"… ({i})" for i, text in enumerate(whole, 1)}
    for cut in (
        lambda text: f"{text[: max_length - 1]}…",
        lambda text: f"…{text[len(text) - max_length + 1 :]}",
        lambda text: _without_middle(text, max_length),
        lambda text: ", ".join(
            _without_middle(part, (max_length + 2) // (text.count(", ") + 1) - 2) for part in text.split(", ")
        ),
        lambda text: text[: max(0, max_length - len(numbers[text]))] + numbers[text],
    ):
        short = {text: text if len(text) <= max_length else cut(text) for text in whole}
        if len(set(short.values())) == len(whole) and all(len(text) <= max_length for text in short.values()):
            break
    return short


def _without_middle(text: str, max_length: int) -> str:
    """Return the text with its middle cut out; too long if ``max_length`` is less than 1."""
    tail = max_length // 2
    return text if len(text) <= max_length else f"{text[: max_length - tail - 1]}…{text[len(text) - tail :]}"


def settings_of(run: RecordedRun) -> dict[str, str]:
    """Return the settings of a run that can affect learning, by dotted name, as text; a list is one setting."""
    return {name: _text(value) for name, value in learning_settings(run.config).items()}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def varied_settings(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the settings that differ between runs of one algorithm in one environment."""
    alike: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in runs:
        alike.setdefault((run.algorithm, run.env), []).append(run)
    names = [name for members in alike.values() for name in differing_settings(members)]
    return list(dict.fromkeys(names))


def differing_settings(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the settings that differ between runs, except workflow, environment and seeds, in the configs' order."""
    all_settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for settings in all_settings for name in settings if name not in _IDENTITY)
    return [name for name in names if len({settings.get(name, ABSENT) for settings in all_settings}) > 1]


def values_in(group: Group, setting: str) -> str:
    """Return the distinct values of a setting in a group's runs, separated by commas; at most six are listed."""
    values = dict.fromkeys(settings_of(run).get(setting, ABSENT) for run in group.runs)
    return ", ".join(list(values)[:6]) + (f" and {len(values) - 6} more" if len(values) > 6 else "")

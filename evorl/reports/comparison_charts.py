"""Charts that compare groups: performance profiles, probabilities of improvement, parallel coordinates."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from evorl.recorders.learning_curve import BLUE, GRAY
from evorl.reports import statistics
from evorl.reports.comparison import ABSENT, SEEDS_FOR_INTERVAL, Group, settings_of, short_names, shortened
from evorl.reports.curve_charts import describe_metric, label_chart
from evorl.reports.recorded_run import RecordedRun
from evorl.reports.svg import PAPER, RAMP_COLORS, as_svg, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESAMPLES = 2_000
_PAIR_NUMBERS = 20_000_000  # maximum number of comparisons of seeds in memory at once
SEEDS_TO_DECIDE = 4  # of all environments: three seeds of one of two equal groups are all better in 10 % of comparisons
ALL_PAIRS = 5  # with more groups, each is compared only with the best one
MAX_AXES = 8
MAX_TICKS = 6  # maximum number of ticks of an axis of parallel coordinates


class Improvement(NamedTuple):
    """Probability that a seed of one group scores higher than a seed of another.

    Attributes:
        better: label of the first group.
        than: label of the second group.
        probability: from 0 to 1.
        interval: 95 % interval; ``None`` with fewer than three seeds in an environment, or four in total.
    """

    better: str
    than: str
    probability: float
    interval: tuple[float, float] | None

    def turned(self) -> Improvement:
        """Return the comparison with the groups exchanged."""
        interval = self.interval and (1 - self.interval[1], 1 - self.interval[0])
        return Improvement(self.than, self.better, 1 - self.probability, interval)


def scores_by_label(groups: Sequence[Group]) -> dict[str, dict[str, np.ndarray]]:
    """Return the scores ``[S]`` of all groups, by label and then by environment."""
    scores: dict[str, dict[str, np.ndarray]] = {}
    for group in groups:
        scores.setdefault(group.label, {})[group.env] = group.scores
    return scores


def normalized_scores(scores: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """Return the scores; if there are several environments, the scores in each are scaled to [0, 1] over all labels."""
    envs = list(dict.fromkeys(env for of_label in scores.values() for env in of_label))
    if len(envs) == 1:
        return {label: dict(of_label) for label, of_label in scores.items()}
    everything = {env: np.concatenate([s[env] for s in scores.values() if env in s]) for env in envs}
    return {
        label: dict(
            zip(by_env, statistics.normalized(list(by_env.values()), [everything[e] for e in by_env]), strict=True)
        )
        for label, by_env in scores.items()
    }


def draw_profiles(groups: Sequence[Group], styles: Mapping[str, tuple[str, str]]) -> Element:
    """Draw the fraction of seeds that score above tau, over tau, for each label, with pointwise 95 % intervals."""
    scores = normalized_scores(scores_by_label(groups))
    everything = np.concatenate([s for by_env in scores.values() for s in by_env.values()])
    margin = 0.03 * (np.ptp(everything) or 1.0)
    thresholds = np.linspace(everything.min() - margin, everything.max() + margin, 101)
    with figure_of(7.2, 3.2) as figure:
        axes = figure.add_axes((0.095, 0.16, 0.875, 0.74))
        for label, of_label in scores.items():
            color, dash = styles[label]
            tasks = list(of_label.values())
            if min(map(len, tasks)) >= SEEDS_FOR_INTERVAL:
                low, high = statistics.stratified_interval(
                    tasks, lambda drawn: statistics.performance_profile(drawn, thresholds), resamples=RESAMPLES
                )
                axes.fill_between(thresholds, low, high, color=color, alpha=0.18, linewidth=0, step="post")
            shares = statistics.performance_profile(tasks, thresholds)
            axes.step(thresholds, shares, where="post", color=color, linestyle=dash, linewidth=1.8)
        several = len({group.env for group in groups}) > 1
        x = "normalized score tau" if several else f"tau: {describe_metric(groups[0].metric)}"
        _label(axes, "Performance profile", x, "fraction of seeds with a score above tau")
        axes.set_ylim(-0.02, 1.02)
        return as_svg(figure, "profiles", "Performance profile: fraction of seeds with a score above tau")


def improvements(groups: Sequence[Group]) -> list[Improvement]:
    """Compare each pair of labels that share an environment; ``better`` is the label that more probably scores higher.

    With more than ``ALL_PAIRS`` labels, only the best by interquartile mean is compared with the others, as ``better``.
    """
    scores = scores_by_label(groups)
    scaled = normalized_scores(scores)
    centers = {x: float(statistics.interquartile_mean_over_tasks(list(scaled[x].values()))) for x in scores}
    ranked = sorted(scores, key=lambda label: -centers[label])
    if len(ranked) > ALL_PAIRS:
        return [made for than in ranked[1:] if (made := improvement(ranked[0], than, scores))]
    pairs = [made for pair in itertools.combinations(ranked, 2) if (made := improvement(*pair, scores))]
    return [pair if pair.probability >= 0.5 else pair.turned() for pair in pairs]


def improvement(better: str, than: str, scores: Mapping[str, Mapping[str, np.ndarray]]) -> Improvement | None:
    """Compare two labels over their common environments; return ``None`` without a common environment."""
    shared = [env for env in scores[better] if env in scores[than]]
    if not shared:
        return None
    better_scores, other_scores = ([scores[label][env] for env in shared] for label in (better, than))
    probability = float(statistics.probability_of_improvement(better_scores, other_scores))
    fewest = min(map(len, [*better_scores, *other_scores]))
    if fewest < SEEDS_FOR_INTERVAL or fewest * len(shared) < SEEDS_TO_DECIDE:
        return Improvement(better, than, probability, None)
    max_pairs = max(len(x) * len(y) for x, y in zip(better_scores, other_scores, strict=True))
    low, high = statistics.stratified_interval(
        [*better_scores, *other_scores],
        lambda drawn: statistics.probability_of_improvement(drawn[: len(better_scores)], drawn[len(better_scores) :]),
        resamples=max(200, min(RESAMPLES, _PAIR_NUMBERS // max_pairs)),
    )
    return Improvement(better, than, probability, (float(low), float(high)))


def draw_improvements(pairs: Sequence[Improvement]) -> Element:
    """Draw the probabilities of improvement with their intervals, one line per pair."""
    height = 0.75 + 0.27 * len(pairs)
    best = pairs[0].better if len({p.better for p in pairs}) == 1 else None
    short = shortened([label for p in pairs for label in (p.better, p.than)], 44 if best else 26)
    names = [short[p.than] if best else f"{short[p.better]} > {short[p.than]}" for p in pairs]
    left = 0.03 + 0.0095 * max(map(len, names))
    with figure_of(7.2, height) as figure:
        axes = figure.add_axes((left, 0.45 / height, 0.97 - left, 1 - 0.75 / height))
        rows = np.arange(len(pairs))[::-1]
        axes.axvline(0.5, color=GRAY, linewidth=0.8, linestyle="--")
        for row, pair in zip(rows, pairs, strict=True):
            if pair.interval is not None:
                low, high = pair.interval
                axes.barh(row, high - low, left=low, height=0.55, color=BLUE, alpha=0.3)
        axes.plot([p.probability for p in pairs], rows, "|", color=BLUE, markersize=11, markeredgewidth=2.2)
        _label(axes, "", "P(X > Y)", "")
        title = f"Probability of improvement{f' of {short[best]} over' if best else ''}"
        figure.text(0.03, 1 - 0.22 / height, title, fontsize=10, fontweight="bold", color="#222222")
        axes.set_yticks(rows, names)
        axes.set_xlim(0, 1.02)
        axes.grid(axis="y", visible=False)
        shown = ", ".join(f"{p.better} > {p.than}: {p.probability:.2f}" for p in pairs)
        return as_svg(figure, "improvement", f"Probability of improvement with 95 % intervals: {shown}")


def draw_sweep(runs: Sequence[RecordedRun], settings: Sequence[str], metric: str, name: str) -> Element:
    """Draw parallel coordinates: a line per run from its settings to its score, in a stronger color for higher scores.

    Args:
        runs: runs in one environment, which all recorded the metric.
        settings: settings that differ between the runs; the first ``MAX_AXES`` are drawn.
        metric: column of ``metrics.csv``.
        name: name of the chart, unique on the page.
    """
    shown = list(settings)[:MAX_AXES]
    scores = np.array([run.mean(metric) for run in runs])
    columns = [_axis([settings_of(run).get(setting, ABSENT) for run in runs]) for setting in shown]
    low, span = scores.min(), float(np.ptp(scores)) or 1.0
    columns.append(_Axis((scores - low) / span, [(t, f"{low + t * span:.4g}") for t in (0.0, 0.25, 0.5, 0.75, 1.0)]))
    ranks = scores.argsort().argsort()
    with figure_of(7.2, 3.4) as figure:
        axes = figure.add_axes((0.04, 0.06, 0.88, 0.8))
        halo = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
        for i in scores.argsort():
            color = RAMP_COLORS[ranks[i] * len(RAMP_COLORS) // len(runs)]
            axes.plot([column.heights[i] for column in columns], color=color, linewidth=1.4, alpha=0.9)
        titles = [*shortened(short_names(shown).values(), 22).values(), describe_metric(metric).partition(",")[0]]
        for x, (column, title) in enumerate(zip(columns, titles, strict=True)):
            axes.axvline(x, color=GRAY, linewidth=0.8)
            axes.annotate(
                title, (x, 1.07), ha="center" if x else "left", fontsize=8, color="#222222", annotation_clip=False
            )
            ticks = shortened([text for _, text in column.ticks], 14)
            for height, text in column.ticks:
                axes.annotate(
                    ticks[text], (x, height), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7,
                    color=GRAY, annotation_clip=False, bbox=halo,
                )  # fmt: skip
        axes.set_xlim(-0.05, len(columns) - 1 + 0.05)
        axes.set_ylim(-0.04, 1.04)
        axes.set_axis_off()
        about = f"Parallel coordinates of {len(runs)} runs: {', '.join(shown)}, {describe_metric(metric)}"
        return as_svg(figure, name, about)


class _Axis(NamedTuple):
    heights: np.ndarray  # [runs], from 0 to 1
    ticks: list[tuple[float, str]]


def _axis(values: Sequence[str]) -> _Axis:
    """Place values on an axis: numbers by value (log scale above a factor of 5), words evenly, missing values at 0."""
    known = sorted({value for value in values if value != ABSENT})
    try:
        numbers = np.array([float(value) for value in known])
    except ValueError:
        numbers = np.arange(len(known), dtype=np.float64)
    else:
        if numbers.size and numbers.min() > 0 and numbers.max() / numbers.min() > 5:
            numbers = np.log10(numbers)
    span = float(np.ptp(numbers)) if len(known) > 1 else 1.0
    foot = 0.12 if ABSENT in values and known else 0.0
    heights = foot + (1 - foot) * (numbers - min(numbers, default=0.0)) / span
    height_of = {ABSENT: 0.0, **dict(zip(known, heights.tolist(), strict=True))}
    ranked = sorted(known, key=height_of.__getitem__)
    chosen = np.linspace(0, len(ranked) - 1, min(len(ranked), MAX_TICKS)).round().astype(int)
    ticks = [(height_of[ranked[i]], ranked[i]) for i in dict.fromkeys(chosen.tolist())]
    return _Axis(np.array([height_of[v] for v in values]), [(0.0, ABSENT)] * (ABSENT in values) + ticks)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    from matplotlib.ticker import ScalarFormatter

    label_chart(axes, title, x, y)
    axes.xaxis.set_major_formatter(ScalarFormatter())

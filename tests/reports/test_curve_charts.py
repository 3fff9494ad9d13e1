"""Charts over environment steps."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

from evorl.reports.comparison import Group, grouped
from evorl.reports.curve_charts import describe_metric, draw_metrics, draw_returns, draw_speeds, style_of
from evorl.reports.recorded_run import find_runs
from evorl.reports.svg import COLORS, variable
from tests.support.run_folders import make_run


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "a", [[1.0, 2.0, 4.0], [2.0, 3.0, 5.0]], {"discount": 0.9})
    make_run(root, "b", [[3.0], [4.0]], {"discount": 0.99})
    return grouped(find_runs(root))


STYLES = {"discount=0.9": style_of(0), "discount=0.99": style_of(1)}


def words(chart: Element) -> list[str]:
    return ["".join(node.itertext()).strip() for node in chart.iter("text")]


def lines(chart: Element, color: str, **style: str) -> int:
    """Return the number of paths drawn in a color."""
    required = [f"stroke: {variable(color)}", *(f"{name.replace('_', '-')}: {value}" for name, value in style.items())]
    return sum(all(part in node.get("style", "") for part in required) for node in chart.iter("path"))


def test_a_thin_line_for_each_seed_a_thick_one_for_all(groups: list[Group]) -> None:
    chart = draw_returns(groups, STYLES, "returns")
    assert lines(chart, COLORS[0], stroke_width="0.7") == 3
    assert lines(chart, COLORS[0], stroke_width="2") == 1
    assert lines(chart, COLORS[1], stroke_width="0.7") == 0  # a single seed is its own center
    assert lines(chart, COLORS[1], stroke_width="2") == 1
    shaded = [node for node in chart.iter() if "fill-opacity: 0.2" in node.get("style", "")]
    assert any(variable(COLORS[0]) in node.get("style", "") for node in shaded)
    assert {"gymnax/CartPole-v1", "environment steps of each seed", "episode return, evaluation"} <= set(words(chart))
    assert "discount=0.9, discount=0.99" in chart.get("aria-label", "")


def test_a_small_chart_for_each_metric_of_the_learner(groups: list[Group]) -> None:
    chart = draw_metrics(groups, STYLES, "metrics")
    assert chart is not None
    shown = [word for word in words(chart) if word.isascii() and word[:1].isalpha()]
    assert shown.index("value loss") < shown.index("entropy")
    assert [lines(chart, color, stroke_width="0.9") for color in COLORS[:3]] == [2, 2, 0]


def test_speeds(groups: list[Group]) -> None:
    chart = draw_speeds(groups, STYLES, "speeds")
    assert chart is not None
    assert "steps per second, all seeds" in words(chart)
    assert lines(chart, COLORS[0]) == lines(chart, COLORS[1]) == 1


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", [[1.0]])
    folder.metrics_csv.write_text("iterations,timesteps,eval/episode_return\n1,10,3.0\n")
    folder.metrics_jsonl.unlink()
    groups = grouped(find_runs(tmp_path))
    assert draw_metrics(groups, {"ppo": style_of(0)}, "metrics") is None
    assert draw_speeds(groups, {"ppo": style_of(0)}, "speeds") is None
    assert draw_returns(groups, {"ppo": style_of(0)}, "returns").tag == "svg"  # a single point


def test_more_groups_than_colors_differ_by_their_lines() -> None:
    styles = [style_of(i) for i in range(4 * len(COLORS))]
    assert len(set(styles)) == len(styles)
    assert {dash for _, dash in styles[: len(COLORS)]} == {"-"}


def test_columns_in_words() -> None:
    assert [describe_metric(name) for name in ("eval/episode_return", "train/value_loss", "time/clock", "success")] == [
        "episode return, evaluation", "value loss, training", "clock, time", "success"
    ]  # fmt: skip

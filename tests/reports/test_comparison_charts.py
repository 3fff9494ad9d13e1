"""Charts that compare groups."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
import pytest

from evorl.reports.comparison import Group, grouped
from evorl.reports.comparison_charts import (
    ALL_PAIRS,
    MAX_TICKS,
    Improvement,
    draw_improvements,
    draw_profiles,
    draw_sweep,
    improvements,
    normalized_scores,
    scores_by_label,
)
from evorl.reports.curve_charts import style_of
from evorl.reports.recorded_run import find_runs
from evorl.reports.svg import RAMP_COLORS, variable
from tests.support.run_folders import make_run, make_sweep


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    root = tmp_path_factory.mktemp("runs")
    make_sweep(root)
    return grouped(find_runs(root))


def words(chart: Element) -> list[str]:
    return ["".join(node.itertext()).strip() for node in chart.iter("text")]


def test_scores_of_several_environments_are_on_one_scale(groups: list[Group]) -> None:
    scores = scores_by_label(groups)
    assert list(scores) == ["a2c", "ppo, learning_rate=0.001", "ppo, learning_rate=0.01"]
    scaled = normalized_scores(scores)
    everything = np.concatenate([values for of_label in scaled.values() for values in of_label.values()])
    assert (everything.min(), everything.max()) == (0.0, 1.0)
    np.testing.assert_allclose(scaled["a2c"]["gymnax/CartPole-v1"], [0.0, 1 / 17])  # 40 and 41 of 40 to 57
    one = {label: {"gymnax/CartPole-v1": of["gymnax/CartPole-v1"]} for label, of in scores.items()}
    np.testing.assert_array_equal(normalized_scores(one)["a2c"]["gymnax/CartPole-v1"], [40.0, 41.0])


def test_the_better_one_stands_first(groups: list[Group]) -> None:
    """Pairs are ordered with the better group first; of 25 pairs of final returns 22 are won, 2 equal."""
    pairs = improvements(groups)
    assert [(pair.better, pair.than) for pair in pairs] == [
        ("ppo, learning_rate=0.01", "ppo, learning_rate=0.001"),
        ("ppo, learning_rate=0.01", "a2c"),
        ("ppo, learning_rate=0.001", "a2c"),
    ]
    assert pairs[0].probability == pytest.approx((22 + 1) / 25)
    assert pairs[0].interval is not None
    assert 0.6 < pairs[0].interval[0] < 23 / 25 < pairs[0].interval[1] <= 1.0
    assert pairs[1] == Improvement("ppo, learning_rate=0.01", "a2c", 1.0, None)  # a2c has two seeds


def test_of_many_groups_the_best_is_compared_with_each(tmp_path: Path) -> None:
    for i in range(ALL_PAIRS + 1):
        make_run(tmp_path, f"run{i}", [[float(i)]], {"discount": i / 10})
    make_run(tmp_path, "elsewhere", [[100.0]], {"discount": 0.95}, env="Acrobot-v1")
    pairs = improvements([group for group in grouped(find_runs(tmp_path), ["discount"]) if "0.95" not in group.label])
    assert {pair.better for pair in pairs} == {"discount=0.5"}
    assert len(pairs) == ALL_PAIRS
    assert "Probability of improvement of discount=0.5 over" in words(draw_improvements(pairs))
    apart = grouped(find_runs(tmp_path), ["discount"])
    assert not [pair for pair in improvements(apart) if "0.95" in pair.better + pair.than]  # no environment is shared


def test_profiles_and_probabilities_are_labeled(groups: list[Group]) -> None:
    labels = dict.fromkeys(group.label for group in groups)
    profile = draw_profiles(groups, {label: style_of(i) for i, label in enumerate(labels)})
    texts = {"Performance profile", "normalized score tau", "fraction of seeds with a score above tau"}
    assert texts <= set(words(profile))
    chart = draw_improvements(improvements(groups))
    assert {"P(X > Y)", "ppo, learning_rate=0.001 > a2c"} <= set(words(chart))
    assert "ppo, learning_rate=0.01 > a2c: 1.00" in chart.get("aria-label", "")


@pytest.mark.parametrize("has_best", [True, False])
@pytest.mark.parametrize(
    "labels",
    [
        [f"actor_optimizer.learning_rate={a}, critic_optimizer.learning_rate={c}" for a in (1e-3, 1e-4) for c in "12"],
        [f"{'x' * 200}{i}{'y' * 200}" for i in range(3)],
    ],
)
def test_long_labels_leave_room_for_the_intervals(labels: list[str], has_best: bool) -> None:
    pairs = [Improvement(labels[0], than, 0.5, (0.4, 0.6)) for than in labels[1:]]
    if not has_best:
        pairs.append(Improvement(labels[1], labels[2], 0.5, None))
    texts = words(draw_improvements(pairs))
    names = [text for text in texts if "…" in text and not text.startswith("Probability")]
    assert len(set(names)) == len(pairs)
    assert max(map(len, names)) <= 55
    assert max(map(len, texts)) <= 80, "the title is within the chart"


def test_a_sweep_has_an_axis_for_each_setting(tmp_path: Path) -> None:
    for i, (rate, name) in enumerate([(1e-4, "adam"), (1e-3, "sgd"), (1e-2, "adam"), (1e-1, "sgd"), (1.0, "adam")]):
        make_run(tmp_path, f"run{i}", [[float(i)]], {"optimizer": {"learning_rate": rate, "name": name}})
    runs = find_runs(tmp_path)
    chart = draw_sweep(runs, ["optimizer.learning_rate", "optimizer.name"], "eval/episode_return", "sweep")
    assert {"learning_rate", "optimizer.name", "episode return", "adam", "sgd", "0.0001", "1"} <= set(words(chart))
    drawn = [node.get("style", "") for node in chart.iter("path") if "stroke-width: 1.4" in node.get("style", "")]
    assert [next(i for i, c in enumerate(RAMP_COLORS) if variable(c) in style) for style in drawn] == [0, 1, 2, 3, 4]
    places = [node.get("d", "").split() for node in chart.iter("path") if "stroke-width: 1.4" in node.get("style", "")]
    first = [float(d[2]) for d in places]  # heights on the first axis, which is logarithmic: equal steps
    np.testing.assert_allclose(np.diff(first), np.diff(first)[0], atol=0.02)


def test_runs_without_a_setting_stand_at_the_foot_of_its_axis(tmp_path: Path) -> None:
    """Runs without a value are at the bottom of its axis, which labels few ticks, including both ends."""
    make_run(tmp_path, "without", [[100.0]])
    for i in range(10):
        make_run(tmp_path, f"run{i}", [[100.0 + i]], {"rate": 1.0 + i})
    chart = draw_sweep(find_runs(tmp_path), ["rate"], "eval/episode_return", "sweep")
    assert {"-", "1", "10"} <= set(words(chart))
    assert len([word for word in words(chart) if word in map(str, range(1, 11))]) <= MAX_TICKS
    lines = [node.get("d", "").split() for node in chart.iter("path") if "stroke-width: 1.4" in node.get("style", "")]
    assert len({line[2] for line in lines}) == 11


def test_a_pair_is_told_of_the_one_that_wins() -> None:
    assert Improvement("a", "b", 0.25, (0.125, 0.5)).turned() == Improvement("b", "a", 0.75, (0.5, 0.875))
    assert Improvement("a", "b", 0.25, None).turned() == Improvement("b", "a", 0.75, None)


def test_who_is_better_over_all_may_lose_where_both_were_trained(tmp_path: Path) -> None:
    """Groups are ordered by their overall score, even if the shared environment shows the opposite."""
    returns = {"a": {"CartPole-v1": 5.0, "Acrobot-v1": 1.0}, "b": {"CartPole-v1": 6.0}, "c": {"CartPole-v1": 10.0}}
    for label, of_env in [*returns.items(), ("d", {"Acrobot-v1": 0.0})]:
        for env, last in of_env.items():
            make_run(tmp_path, f"{label}-{env}", [[last]], {"discount": label}, env=env)
    pairs = {(pair.better, pair.than) for pair in improvements(grouped(find_runs(tmp_path), ["discount"]))}
    assert ("discount=b", "discount=a") in pairs
    assert ("discount=a", "discount=b") not in pairs

"""Groups of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.reports import comparison
from evorl.reports.comparison import (
    MAX_POINTS,
    band_of,
    default_metric,
    differing_settings,
    grouped,
    settings_of,
    short_names,
    shortened,
    thinned,
    values_in,
    varied_settings,
)
from evorl.reports.recorded_run import Curve, RecordedRun, find_runs
from evorl.reports.statistics import bootstrap_interval, interquartile_mean, stratified_interval
from tests.support.errors import raises_naming
from tests.support.run_folders import make_run, make_sweep


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedRun]:
    root = tmp_path_factory.mktemp("runs")
    make_sweep(root)
    return find_runs(root)


def test_runs_that_differ_by_seeds_are_one_group(runs: list[RecordedRun]) -> None:
    groups = grouped(runs)
    labels = ["a2c", "ppo, learning_rate=0.001", "ppo, learning_rate=0.01"]
    assert [group.label for group in groups] == labels * 2
    assert [group.env for group in groups] == ["gymnax/Acrobot-v1"] * 3 + ["gymnax/CartPole-v1"] * 3
    assert [len(group.scores) for group in groups] == [2, 5, 5, 2, 5, 5]
    first = groups[1]
    np.testing.assert_array_equal(np.sort(first.scores), [50, 51, 52, 53, 54])
    assert first.center == interquartile_mean(first.scores) == 52
    assert first.interval == bootstrap_interval(first.scores, interquartile_mean)
    assert groups[0].interval is None


def test_groups_by_any_key(runs: list[RecordedRun]) -> None:
    assert [g.label for g in grouped(runs, ["agent"])] == ["a2c", "ppo"] * 2
    by_rate = grouped(runs, ["optimizer.learning_rate"])
    assert [g.label for g in by_rate[:3]] == ["-", "learning_rate=0.001", "learning_rate=0.01"]
    assert grouped(runs, ["env", "agent"])[0].label == "gymnax/Acrobot-v1, a2c"
    assert len(grouped(runs, ["run"])) == len(runs)
    assert {g.label for g in grouped(runs, ["optimizer"])} == {
        "-", "optimizer: learning_rate=0.001", "optimizer: learning_rate=0.01"
    }  # fmt: skip
    with raises_naming(ValueError, "'learning_rate'", "'optimizer.learning_rate'"):
        grouped(runs, ["learning_rate"])


def test_many_groups_are_told_apart_by_their_algorithm_only(tmp_path: Path) -> None:
    for i in range(9):
        make_run(tmp_path, f"ppo{i}", [[1.0]], {"discount": 0.9 + i / 100})
    assert [group.label for group in grouped(find_runs(tmp_path))] == ["ppo"]


def test_which_settings_differ(runs: list[RecordedRun]) -> None:
    assert varied_settings(runs) == ["optimizer.learning_rate"]
    assert differing_settings(runs) == ["optimizer.learning_rate"]  # env and seed identify the run
    assert settings_of(runs[-1])["env.name"] == "Acrobot-v1"
    ppo = grouped(runs, ["agent"])[1]
    assert values_in(ppo, "optimizer.learning_rate") == "0.001, 0.01"
    names = ("optimizer.learning_rate", "rate.start", "seed")
    assert list(short_names(names).values()) == ["learning_rate", "rate.start", "seed"]


@given(st.lists(st.text("ab.", min_size=1, max_size=40), min_size=1, max_size=8, unique=True), st.integers(3, 30))
def test_texts_that_differ_differ_when_they_are_short(texts: list[str], most: int) -> None:
    short = shortened(texts, most)
    assert list(short) == texts
    assert len(set(short.values())) == len(texts)
    assert all(short[text] == text for text in texts if len(text) <= most)
    assert all(len(label) <= max(most, len("… (8)")) for label in short.values())


def test_a_short_label_keeps_a_part_of_each_setting_or_a_number() -> None:
    rates = [f"actor.learning_rate={a}, critic.learning_rate={c}" for a in (0.01, 0.02) for c in (0.01, 0.02)]
    assert shortened(rates, 20)[rates[1]] == "acto…0.01, crit…0.02"
    alike = [f"{'x' * 20}{i}{'y' * 20}" for i in range(2)]
    assert list(shortened(alike, 10).values()) == ["xxxxx… (1)", "xxxxx… (2)"]


@given(st.lists(st.from_regex(r"\A[ab](\.[ab]){0,3}(\.start)?\Z"), min_size=1, max_size=8, unique=True))
def test_settings_that_differ_differ_by_their_short_names(names: list[str]) -> None:
    short = short_names(names)
    assert list(short) == names
    assert len(set(short.values())) == len(names)
    assert all(f".{name}".endswith(f".{end}") for name, end in short.items())


def test_settings_of_equal_ends_have_labels_of_their_own(tmp_path: Path) -> None:
    """Labels distinguish the learning rates of two optimizers, and values that differ in the eighth digit."""
    for i, (actor, critic) in enumerate([(0.1, 0.2), (0.2, 0.1), (0.12345678, 0.2), (0.12345679, 0.2)]):
        rates = {"actor_optimizer": {"learning_rate": actor}, "critic_optimizer": {"learning_rate": critic}}
        make_run(tmp_path, f"run{i}", [[1.0]], settings=rates)
    labels = [group.label for group in grouped(find_runs(tmp_path))]
    assert len(set(labels)) == 4
    assert any("actor_optimizer.learning_rate=0.12345678" in label for label in labels)


def test_a_band_by_hand() -> None:
    """Center and interval of three curves equal manual results; two remaining curves have no interval."""
    steps = np.array([0.0, 10.0, 20.0])
    curves = [Curve(steps, steps), Curve(steps, steps + 3), Curve(steps[:2], steps[:2] + 6)]
    band = band_of(curves)
    np.testing.assert_array_equal(band.steps, steps)
    np.testing.assert_array_equal(band.center, [3.0, 13.0, 21.5])
    assert np.isnan(band.low[2])
    assert np.isnan(band.high[2])
    assert (band.low[0], band.high[0]) == (0.0, 6.0)  # with three seeds the bounds are the extremes


def test_a_band_of_many_seeds_needs_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    random, resampled = np.random.default_rng(0), []
    curves = [Curve(np.arange(50.0), random.normal(size=50)) for _ in range(40)]

    def counted(tasks: list[np.ndarray], *arguments: Any, resamples: int) -> Any:
        resampled.append(resamples * sum(scores.size for scores in tasks))
        return stratified_interval(tasks, *arguments, resamples=resamples)

    monkeypatch.setattr(comparison, "stratified_interval", counted)
    monkeypatch.setattr(comparison, "CURVE_RESAMPLES", 50)
    whole = band_of(curves)
    monkeypatch.setattr(comparison, "MAX_RESAMPLED", 30_000)
    resampled.clear()
    parts = band_of(curves)
    assert max(resampled) <= 30_000
    np.testing.assert_array_equal([parts.center, parts.low, parts.high], [whole.center, whole.low, whole.high])


def test_seeds_with_other_steps_are_met_between_them() -> None:
    band = band_of(
        [Curve(np.array([0.0, 10.0]), np.array([0.0, 10.0])), Curve(np.array([0.0, 4.0, 10.0]), np.full(3, 2.0))]
    )
    np.testing.assert_array_equal(band.steps, [0, 4, 10])
    np.testing.assert_array_equal(band.center, [1.0, 3.0, 6.0])


def test_long_curves_are_thinned_to_their_ends() -> None:
    steps = thinned(np.arange(10_000.0))
    assert len(steps) == MAX_POINTS
    assert (steps[0], steps[-1]) == (0, 9999)
    assert len(thinned(np.arange(7.0))) == 7


def test_returns_of_training_are_not_compared_with_those_of_evaluations(tmp_path: Path) -> None:
    make_run(tmp_path, "evaluated", [[1.0]])
    alone = make_run(tmp_path, "not", [[1.0]])
    alone.metrics_csv.write_text("iterations,timesteps,train/episode_return\n1,10,300.0\n")
    both = find_runs(tmp_path)
    assert (default_metric(both), default_metric(both[1:])) == ("eval/episode_return", "train/episode_return")
    assert {group.metric for group in grouped(both)} == {"eval/episode_return"}
    assert [len(run.by_seed(default_metric(both))) for run in both] == [1, 0]

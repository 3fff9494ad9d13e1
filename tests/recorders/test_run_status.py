"""Progress, remaining time, and number formats."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.recorders.run_status import (
    RunStatus,
    counted,
    describe_metrics,
    format_duration,
    format_number,
    losses,
    sparkline,
)
from tests.support.recorded_runs import make_plan, make_row


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_follows_the_pace_so_far() -> None:
    clock = Clock()
    status = RunStatus(make_plan(), clock)
    assert math.isnan(status.seconds_left)
    status.advance(200, 50.0, {})
    assert status.seconds_left == pytest.approx(1000 / 50)  # no measured pace yet: the chunk's estimate
    clock.now = 10.0
    status.advance(700, 50.0, {})
    assert status.seconds_left == pytest.approx(500 * 10 / 500)
    assert status.fraction == pytest.approx(700 / 1200)


def test_several_seeds_share_the_speed() -> None:
    status = RunStatus(make_plan(num_seeds=4), Clock())
    status.advance(200, 400.0, {})
    assert status.seconds_left == pytest.approx(1000 / 100)


def test_rows_give_the_latest_values_and_the_history() -> None:
    status = RunStatus(make_plan())
    for i in range(1, 12):
        status.take_row(make_row(i))
    assert status.evaluations == [150.0, 300.0]
    assert status.timesteps == 1100
    assert status.latest["eval/episode_return"] == 300.0


def test_losses_come_first_and_returns_are_none() -> None:
    row = {"train/entropy": 0.5, "train/policy_loss": 1, "train/episode_return": 3.0, "eval/x": 1.0}
    assert losses(row) == [("policy_loss", 1.0), ("entropy", 0.5)]


def test_a_phrase_on_a_row() -> None:
    assert describe_metrics(make_row(10)) == (
        "evaluation return 300.0 ± 4.0  training return 200.0  policy_loss -0.01  value_loss 9.819"
    )
    assert describe_metrics({}) == ""
    short = describe_metrics(make_row(10), width=60)
    assert short == "evaluation return 300.0 ± 4.0  training return 200.0"


def test_of_several_seeds_the_spread_is_over_seeds() -> None:
    seeds = {f"eval/episode_return_seed_{i}": 299.0 + i for i in range(3)}
    row = {**make_row(10), **seeds, "eval/episode_return_std_over_seeds": 0.8}
    assert describe_metrics(row, num_losses=0).startswith("evaluation return 300.0 ± 0.8 over 3 seeds  training")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0:00:00"), (61, "0:01:01"), (36_000.4, "10:00:00"), (math.nan, "-:--:--"), (math.inf, "-:--:--")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_numbers_have_four_digits() -> None:
    assert [format_number(x) for x in (0.000123456, 1234.567, 1e9, math.nan)] == ["0.0001235", "1235", "1e+09", "nan"]


@given(st.lists(st.floats(), max_size=60), st.integers(1, 50))
def test_any_numbers_make_a_sparkline(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert line == "" or len(line) == min(len(values), width)


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0, 2.0, 7.0]) == "▁▂▃█"
    assert sparkline([3.0]) == "▄"
    assert sparkline([0.0, math.nan, 1.0]) == "▁ █"
    assert sparkline([math.nan]) == ""
    assert sparkline([]) == ""
    assert sparkline([float(i) for i in range(1000)], width=8) == "▁▂▃▄▅▆▇█"


def test_a_sweep_counts_settings_and_seeds_apart() -> None:
    seeds = {f"eval/episode_return_seed_{i}": 299.0 + i for i in range(12)}
    row = {**make_row(10), **seeds, "eval/episode_return_std_over_seeds": 0.8}
    assert "± 0.8 over 12 seeds" in describe_metrics(row)
    assert "± 0.8 over 4 settings x 3 seeds" in describe_metrics(row, side_by_side="4 settings x 3 seeds")
    assert [counted(number, "seed") for number in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]


def test_the_best_is_none_of_the_untrained_policy() -> None:
    status = RunStatus(make_plan())
    status.take_row({"timesteps": 0, "eval/episode_return": 500.0})
    assert math.isnan(status.best)
    for steps, value in ((100, 20.0), (200, math.nan), (300, 30.0), (400, 25.0)):
        status.take_row({"timesteps": steps, "eval/episode_return": value})
    assert status.best == 30.0
    assert status.evaluations[0] == 500.0

"""Plain progress lines: few updates, and every evaluation."""

from __future__ import annotations

import io

from evorl.recorders import PlainLines
from tests.support.recorded_runs import make_plan, make_row, record


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_fast_run_prints_its_evaluations_and_little_else() -> None:
    stream = io.StringIO()
    recorder = PlainLines(stream, Clock())
    recorder.message("Set-up ready.")
    record(recorder)
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["Set-up ready.", "PPOWorkflow: 1,200 environment steps"]
    assert lines[2:4] == [
        " 42%    500 of 1,200  100,000 steps/s  0:00:00 left",
        "      evaluation return 150.0 ± 4.0  training return 100.0  policy_loss -0.02",
    ]
    assert lines[4].startswith(" 83%  1,000 of 1,200")
    assert len(lines) == 6


def test_lines_fit_a_terminal() -> None:
    stream, clock = io.StringIO(), Clock()
    recorder = PlainLines(stream, clock)
    recorder.start(make_plan())
    names = ["policy_loss", "value_loss", "approximate_kl", "clip_fraction", "entropy", "explained_variance"]
    seeds = {f"eval/episode_return_seed_{i}": -1234.5 for i in range(10)}
    spread = {"eval/episode_return": -1234.5, "eval/episode_return_std_over_seeds": 1234.5, **seeds}
    recorder.write({"timesteps": 100, **{f"train/{name}": -1.23456e-7 for name in names}})
    recorder.progress(1000, 123456.7, {"train/episode_return": -1234.5, **{f"train/{n}": -1.23456e-7 for n in names}})
    recorder.write({"timesteps": 1100, "train/episode_return": -1234.5, **spread})
    lines = stream.getvalue().splitlines()
    assert "over 10 seeds" in lines[-1]
    assert max(map(len, lines)) <= 80


def test_a_slow_run_prints_a_line_per_twentieth_and_per_minute() -> None:
    stream, clock = io.StringIO(), Clock()
    recorder = PlainLines(stream, clock)
    recorder.start(make_plan())
    for i in range(1200):
        clock.now += 1.0
        recorder.progress(i // 4, 10.0, {})
    lines = [line for line in stream.getvalue().splitlines()[1:] if "%" in line]
    assert 20 <= len(lines) <= 26
    assert not any("evaluation" in line for line in lines)


def test_an_evaluation_is_printed_once() -> None:
    stream, clock = io.StringIO(), Clock()
    recorder = PlainLines(stream, clock)
    recorder.start(make_plan())
    clock.now = 100.0
    recorder.write(make_row(5))
    clock.now = 200.0
    recorder.progress(500, 10.0, make_row(5))
    recorder.progress(600, 10.0, make_row(5))
    assert stream.getvalue().count("evaluation return") == 1


def test_a_resumed_run_says_from_where() -> None:
    stream = io.StringIO()
    PlainLines(stream).start(make_plan(first_iterations=3))
    assert stream.getvalue() == "PPOWorkflow: 1,200 environment steps from 300\n"

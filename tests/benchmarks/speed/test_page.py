"""Formatting of a comparison on the page and in the terminal."""

from __future__ import annotations

from benchmarks.speed.comparison import COMPARISONS
from benchmarks.speed.page import show_comparison, speed_details, speed_summary

READINGS = [
    {"side": side, "round": i, "add_seconds": seconds, "add_cpu_seconds": 2 * seconds}
    for i, pair in enumerate([(1e-6, 4e-6), (3e-6, 4e-6)])
    for side, seconds in zip(["1e4 rows", "1e6 rows"], pair)
]
RESULT = {
    "title": "Adding, small and large",
    "quantity": "add_seconds",
    "readings": READINGS,
    "versions": {"1e4 rows": {"jax": "1"}, "1e6 rows": {"jax": "1"}},
    "load": 1.5,
    "machine": "2 cores",
    "date": "2026-01-02",
    "command": "python -m benchmarks.speed replay_add",
    "notes": "Memory is slow.",
}


def test_summary_tells_what_is_not_met_and_what_is_not_recorded():
    text = speed_summary({"replay_add": RESULT})
    row = (
        "| [`replay_add`](#replay_add) | time at 1e4 / at 1e6 rows | 0.5 | 0.25 .. 0.75 | 0.5 | >= 0.8 | **not met** |"
    )
    assert row in text
    assert "| `recorders` | on / off | - | - | - | >= 0.98 | not recorded |" in text
    assert "| `cold_start_cartpole` | with cache / import jax | - | - | - | - | not recorded |" in text


def test_details_show_wall_and_processor_time():
    text = speed_details("replay_add", RESULT)
    assert "| 1e4 rows | 2.0 us | 1.0 us | 3.0 us | 4.0 uCPU s |" in text
    assert "Memory is slow." in text
    assert "2026-01-02. 2 cores. load at most 1.5. 2 rounds. jax 1. `python -m benchmarks.speed replay_add`" in text


def test_details_of_a_recording_without_processor_time_have_no_such_column():
    rows = [{key: value for key, value in row.items() if key != "add_cpu_seconds"} for row in READINGS]
    text = speed_details("replay_add", {**RESULT, "readings": rows})
    assert "CPU" not in text
    assert "| 1e4 rows | 2.0 us | 1.0 us | 3.0 us |" in text


def test_versions_that_differ_are_told_with_their_sides():
    text = speed_details("replay_add", {**RESULT, "versions": {"1e4 rows": {"jax": "1"}, "1e6 rows": {"jax": "2"}}})
    assert "1e4 rows: jax 1; 1e6 rows: jax 2" in text


def test_screen_tells_the_same():
    assert "required >= 0.8: NOT MET" in show_comparison(COMPARISONS["replay_add"], RESULT)

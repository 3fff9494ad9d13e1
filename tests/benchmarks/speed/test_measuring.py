"""A comparison of two child processes that need only the standard library."""

from __future__ import annotations

import signal
import sys

import pytest

from benchmarks.speed import measuring
from benchmarks.speed.comparison import Comparison, Side, medians_of, readings_by_side
from benchmarks.speed.drivers.process import run_process
from tests.support.errors import raises_naming

CHILD = """
from benchmarks.speed.child import read_settings, serve

settings = read_settings()
readings = iter(settings.get("speeds", []))
serve(lambda: lambda: {"steps_per_second": next(readings)}, "pytest")
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Create a module that child processes can run from the current folder."""
    (tmp_path / "listed_speeds.py").write_text(CHILD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "listed_speeds"


def compare(child, tmp_path, slow, fast, rounds):
    sides = {"slow": Side(child, {"speeds": slow}), "fast": Side(child, {"speeds": fast})}
    comparison = Comparison("speeds", "two lists of speeds", sides, bars=[])
    return measuring.run_comparison(comparison, {}, rounds, tmp_path, lambda text: None)


def test_sides_are_measured_in_turn(child, tmp_path):
    result = compare(child, tmp_path, [1.0, 2.0, 9.0], [6.0, 4.0, 18.0], rounds=3)
    assert [(row["side"], row["round"]) for row in result["readings"][:3]] == [("slow", 0), ("fast", 0), ("slow", 1)]
    assert medians_of(readings_by_side(result["readings"])) == {
        "slow": {"steps_per_second": 2.0},
        "fast": {"steps_per_second": 6.0},
    }
    assert "pytest" in result["versions"]["fast"]
    assert result["load"] >= 0.0


def test_a_child_ends_by_itself_when_its_comparison_is_over(tmp_path, monkeypatch):
    ending = CHILD + f"\nopen({str(tmp_path / 'ended')!r}, 'w').close()\n"
    (tmp_path / "ends_in_order.py").write_text(ending, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    compare("ends_in_order", tmp_path, [1.0], [2.0], rounds=1)
    assert (tmp_path / "ended").exists()


def test_a_child_that_does_not_end_is_killed(tmp_path, monkeypatch):
    (tmp_path / "stays.py").write_text(CHILD + "\n__import__('time').sleep(600)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measuring, "ENDING_SECONDS", 0.1)
    child = measuring.Child(Side("stays"), sys.executable, "", tmp_path / "log")
    child.close()
    assert child.process.returncode == -signal.SIGKILL


def test_a_child_that_ends_early_is_told_with_its_last_words(child, tmp_path):
    with raises_naming(measuring.MeasurementFailed, "StopIteration"):
        compare(child, tmp_path, [1.0], [1.0], rounds=2)


def test_process_is_measured_until_it_says_something(tmp_path):
    lasting = "import threading; print('ready', flush=True); threading.Event().wait()"
    reading = run_process(["-c", lasting], str(tmp_path), until="ready")
    assert 0 < reading["seconds"] < 60
    assert reading["cpu_seconds"] > 0
    assert reading["peak_bytes"] > 1e6


def test_process_that_fails_or_never_says_it_is_no_measurement(tmp_path):
    with raises_naming(RuntimeError, "ended with 3"):
        run_process(["-c", "raise SystemExit(3)"], str(tmp_path))
    with raises_naming(RuntimeError, "'ready'"):
        run_process(["-c", "print('no')"], str(tmp_path), until="ready")

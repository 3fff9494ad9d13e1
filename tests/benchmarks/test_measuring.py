"""A comparison of two children that need nothing but the standard library."""

from __future__ import annotations

import pytest

from benchmarks import measuring
from benchmarks.comparison import Bar, Comparison, Side, ratio
from benchmarks.drivers.process import run_process

CHILD = """
from benchmarks.child import read_settings, serve

settings = read_settings()
readings = iter(settings.get("speeds", []))
serve(lambda: lambda: {"steps_per_second": next(readings)}, "pytest")
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """A module that children can run: they look for modules in the folder they start in too."""
    (tmp_path / "told_speeds.py").write_text(CHILD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "told_speeds"


def compare(child, tmp_path, slow, fast, repeats):
    comparison = Comparison(
        "told",
        "what they are told",
        sides={"slow": Side(child, {"speeds": slow}), "fast": Side(child, {"speeds": fast})},
        bars=[Bar("fast / slow", ratio("fast", "slow"), at_least=3.0)],
    )
    return measuring.run_comparison(comparison, {}, repeats, tmp_path, lambda text: None)


def test_sides_are_measured_in_turn_and_judged_by_medians(child, tmp_path):
    result = compare(child, tmp_path, [1.0, 2.0, 9.0], [6.0, 4.0, 18.0], repeats=3)
    assert result["sides"]["slow"]["median"] == {"steps_per_second": 2.0}
    assert [reading["steps_per_second"] for reading in result["sides"]["fast"]["readings"]] == [6.0, 4.0, 18.0]
    assert "pytest" in result["sides"]["fast"]["versions"]
    (bar,) = result["bars"]
    assert (bar["value"], bar["lowest"], bar["highest"], bar["met"]) == (3.0, 2.0, 6.0, True)


def test_a_child_that_ends_early_is_told_with_its_last_words(child, tmp_path):
    with pytest.raises(measuring.MeasurementFailed, match="StopIteration"):
        compare(child, tmp_path, [1.0], [1.0], repeats=2)


def test_process_is_measured_until_it_says_something(tmp_path):
    lasting = "import threading; print('ready', flush=True); threading.Event().wait()"
    found = run_process(["-c", lasting], str(tmp_path), until="ready")
    assert 0 < found["seconds"] < 60
    assert found["peak_bytes"] > 1e6


def test_process_that_fails_or_never_says_it_is_no_measurement(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 3"):
        run_process(["-c", "raise SystemExit(3)"], str(tmp_path))
    with pytest.raises(RuntimeError, match="before 'ready'"):
        run_process(["-c", "print('no')"], str(tmp_path), until="ready")

"""Measurements on a device, run with small sizes on a CPU, and with processes that are slow or fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.kit import KIT, Kit, Measurement, describe_row
from benchmarks.gpu.measured import KINDS
from benchmarks.gpu.setting import SETTINGS

SPEED = Measurement("ppo_cartpole", "speed", 60)
ANSWERS = """
import json, sys, time
program, settings = sys.argv[3], json.loads(sys.argv[4])
log = open(LOG, "a")
first = {"first_seconds": 1.0, "peak_bytes": 2_000_000, "device": "cpu", "versions": {"jax": "0.11.2"}}
print(json.dumps(first), flush=True)
for number, request in enumerate(iter(sys.stdin.readline, "")):
    log.write(request.strip() + program + " ")
    log.flush()
    if request.strip() == "profile":
        print(json.dumps({"launched": 7.0, "busy_seconds": 0.001, "span_seconds": 0.004}), flush=True)
        continue
    BEFORE
    print(json.dumps({"steps_per_second": 10.0 * (number + 1), "peak_bytes": 3_000_000}), flush=True)
"""


@pytest.fixture
def children(tmp_path, monkeypatch):
    """Returns a function that replaces the measuring processes by ones that answer at once, after some code."""

    def replace(before: str = "pass") -> Path:
        code, log = tmp_path / "child.py", tmp_path / "log"
        code.write_text(ANSWERS.replace("LOG", repr(str(log))).replace("BEFORE", before), "utf-8")
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {code} "$@"\n', "utf-8")
        python.chmod(0o755)
        # The code is the first argument, so that -m and the module count as in a real process.
        monkeypatch.setattr("benchmarks.gpu.kit.sys.executable", str(python))
        return log

    return replace


def _rows(kit: Kit, measurement: Measurement = SPEED) -> list[dict]:
    rows: list[dict] = []
    assert kit.run([measurement], rows.append)
    return rows


def test_sides_are_measured_in_turn(tmp_path, children) -> None:
    log = children()
    ours, theirs = _rows(Kit(60, tmp_path, "packages"))
    assert log.read_text("utf-8").split() == ["evorl", "rejax"] * 3 + ["profileevorl", "profilerejax"]
    assert (ours["side"], theirs["side"]) == ("evorl", "rejax")
    assert ours["readings"] == [10.0, 20.0, 30.0]
    assert ours["steps_per_second"] == 20.0
    assert ours["peak_bytes"] == 3_000_000  # the latest
    assert "20 steps/s (10 .. 30)" in describe_row(ours)
    assert "first call 1.0 s" in describe_row(ours)
    assert "an iteration: 7 kernels, GPU busy 25% of 4.00 ms" in describe_row(ours)


def test_without_its_packages_a_peer_is_left_out(tmp_path, children) -> None:
    children()
    (ours,) = _rows(Kit(60, tmp_path))
    assert ours["side"] == "evorl"


def test_a_side_that_fails_does_not_end_the_others(tmp_path, children) -> None:
    children("sys.exit('out of memory') if program == 'rejax' and number == 1 else None")
    theirs, ours = _rows(Kit(60, tmp_path, "packages"))
    assert theirs["error"] == "ended with status 1: out of memory"
    assert theirs["readings"] == [10.0]
    assert ours["readings"] == [10.0, 20.0, 30.0]


def test_a_measurement_ends_at_its_limit(tmp_path, children) -> None:
    children("time.sleep(60)")
    (row,) = _rows(Kit(60, tmp_path), Measurement("ppo_cartpole", "speed", 2))
    assert row["error"] == "no answer within its time limit"
    assert "failed: no answer" in describe_row(row)


def test_measurements_are_compiled_together_and_read_one_after_the_other(tmp_path, children) -> None:
    log = children()
    rows: list[dict] = []
    both = [SPEED, Measurement("openes_cartpole", "speed", 60)]
    assert Kit(60, tmp_path, "packages").run(both, rows.append)
    assert [(row["measurement"], row["side"]) for row in rows] == [
        ("ppo_cartpole", "evorl"),
        ("ppo_cartpole", "rejax"),
        ("openes_cartpole", "evorl"),
        ("openes_cartpole", "evosax"),
    ]
    first = log.read_text("utf-8").split()[:8]
    assert first == ["evorl", "rejax"] * 3 + ["profileevorl", "profilerejax"]


def test_nothing_starts_when_the_time_is_over(tmp_path, children) -> None:
    log = children()
    now = [0.0]
    kit = Kit(480, tmp_path, clock=lambda: now[0])
    assert kit.run([SPEED], lambda row: None)
    log.unlink()
    now[0] = 465.0  # compilation alone takes longer than the rest
    assert not kit.run([SPEED], lambda row: None)
    assert not log.exists()


@pytest.mark.parametrize("name", KIT)
def test_measurements_refer_to_settings_that_exist(name: str) -> None:
    measurement = KIT[name]
    assert measurement.kind in {"speed", *KINDS}
    if measurement.kind in ("speed", "bits"):
        assert measurement.setting in SETTINGS
        assert {side.program for side in measurement.sides().values()} <= KINDS.keys()
    for file in measurement.settings.get("files", ()):
        assert (Path(__file__).parents[3] / file).exists()


def test_a_dry_run_on_a_cpu(tmp_path, capsys) -> None:
    rows = tmp_path / "rows.jsonl"
    arguments = ["--tiny", "--only", "learn_ppo_cartpole", "same_bits", "ppo_cartpole", "openes_cartpole"]
    assert main([*arguments, "--rows", str(rows), "--logs", str(tmp_path / "logs")]) == 0
    found = {(row["measurement"], row["side"]): row for row in map(json.loads, rows.read_text("utf-8").splitlines())}
    assert list(found) == [
        ("learn_ppo_cartpole", "evorl"),
        ("same_bits", "evorl"),
        ("ppo_cartpole", "evorl"),
        ("openes_cartpole", "evorl"),
        ("openes_cartpole", "evosax"),
    ]
    assert found["learn_ppo_cartpole", "evorl"]["best"] > 0
    assert found["same_bits", "evorl"]["same_seed"]
    assert found["same_bits", "evorl"]["resumed"]
    for row in found.values():
        assert row["device"] == "cpu"
        assert row["versions"]["jax"]
        assert row["peak_bytes"] > 0
    for name in ("ppo_cartpole", "openes_cartpole"):
        assert len(found[name, "evorl"]["readings"]) == 3
    assert capsys.readouterr().out.count("\n") == 5

"""The tables of measurements on devices follow from their rows."""

from __future__ import annotations

from benchmarks.gpu.measured_page import measured_section

MEASURED = {
    "measurement": "ppo_cartpole",
    "side": "evorl",
    "date": "2026-12-01",
    "machine": "16 cores",
    "first_seconds": 21.5,
    "steps_per_second": 9e6,
    "readings": [8e6, 9e6, 9.5e6],
    "launched": 1480.0,
    "busy_seconds": 0.003,
    "span_seconds": 0.004,
    "peak_bytes": 140_000_000,
    "device": "NVIDIA H100 80GB HBM3",
    "versions": {"jax": "0.11.2"},
}
PEER = {**MEASURED, "side": "rejax", "steps_per_second": 6e6, "readings": [5e6, 6e6, 7e6], "launched": 2100.0}


def test_a_peer_stands_beside_with_the_ratio() -> None:
    ours, theirs = "9,000,000 (8,000,000 .. 9,500,000)", "rejax 6,000,000 (5,000,000 .. 7,000,000)"
    row = f"| `ppo_cartpole` | {ours} | {theirs} | 1.50 | 1,480 / 2,100 | 75% / 75% | 140 / 140 |"
    assert row in measured_section([MEASURED, PEER])
    assert f"| `ppo_cartpole` | {ours} | - | - | 1,480 | 75% | 140 |" in measured_section([MEASURED])


def test_a_later_row_replaces_an_earlier_one() -> None:
    text = measured_section([MEASURED, PEER, {**MEASURED, "steps_per_second": 12e6}])
    assert "12,000,000" in text
    assert "| 2.00 |" in text
    assert text.count("`ppo_cartpole`") == 1


def test_device_and_versions_are_named_once() -> None:
    assert measured_section([MEASURED, PEER]).count("2026-12-01. NVIDIA H100 80GB HBM3, 16 cores. jax 0.11.2") == 1


def test_other_results_and_failures() -> None:
    bits = {**MEASURED, "measurement": "same_bits", "same_seed": True, "resumed": False}
    for name in ("steps_per_second", "readings", "launched"):
        del bits[name]
    assert "| `same_bits` | same seed: equal bits, continued: different bits | 140 |" in measured_section([bits])
    failed = {"measurement": "ppo_cartpole", "side": "rejax", "date": "2026-12-01", "error": "no answer"}
    assert "| rejax failed: no answer | - | 1,480 / - | 75% / - | 140 / - |" in measured_section([MEASURED, failed])
    assert "recorded yet" in measured_section([])

"""Results are merged into their files, and the page is made of them."""

from __future__ import annotations

import json

from benchmarks.page import page
from benchmarks.results import DOCS, load, record, show_comparison, show_learning

SPEED = {
    "title": "Adding, small and large",
    "quantity": "add_seconds",
    "sides": {
        "small": {
            "median": {"add_seconds": 2e-6},
            "readings": [{"add_seconds": 1e-6}, {"add_seconds": 3e-6}],
            "versions": {"jax": "1"},
        },
        "large": {
            "median": {"add_seconds": 4e-6},
            "readings": [{"add_seconds": 4e-6}, {"add_seconds": 4e-6}],
            "versions": {"jax": "1"},
        },
    },
    "bars": [{"text": "small / large", "value": 0.5, "lowest": 0.25, "highest": 0.75, "limit": ">= 0.8", "met": False}],
    "load": 1.5,
    "machine": "2 cores",
    "date": "2026-01-02",
    "command": "python -m benchmarks.speed replay_add",
}
POINT = {"timesteps": 1000, "seconds": 150.0, "mean": -150.0, "spread": 12.0}
LEARNING = {
    "title": "SAC, Pendulum-v1 (gymnax)",
    "overrides": ["agent=sac", "env=pendulum"],
    "backend": None,
    "seeds": [0, 1, 2],
    "eval_episodes": 20,
    "num_devices": 1,
    "limit": ">= -200 within 30,000 steps",
    "met": True,
    "reached": POINT,
    "best": POINT,
    "last": POINT,
    "curve": [POINT],
    "timesteps": 2000,
    "seconds": 300.0,
    "versions": {"jax": "1"},
    "machine": "2 cores",
    "date": "2026-01-02",
    "command": "python -m benchmarks.learning sac_pendulum",
}


def test_record_replaces_by_name_and_keeps_notes(tmp_path):
    record("speed", "replay_add", {**SPEED, "title": "old"}, tmp_path)
    record("speed", "recorders", {**SPEED, "title": "other"}, tmp_path)
    path = tmp_path / "results" / "speed.json"
    results = json.loads(path.read_text("utf-8"))
    results["replay_add"]["notes"] = "Memory is slow."
    path.write_text(json.dumps(results), encoding="utf-8")
    record("speed", "replay_add", SPEED, tmp_path)
    assert load("speed", tmp_path) == {
        "replay_add": {**SPEED, "notes": "Memory is slow."},
        "recorders": {**SPEED, "title": "other"},
    }
    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert text == page(load("speed", tmp_path), {}, tmp_path)
    assert "Memory is slow." in text


def test_page_tells_what_is_not_met_and_what_is_not_recorded():
    text = page({"replay_add": SPEED}, {"sac_pendulum": LEARNING}, DOCS)
    assert "| [`replay_add`](#replay_add) | small / large | 0.5 | 0.25 .. 0.75 | >= 0.8 | **not met** |" in text
    assert "| small | 2.0 us | 1.0 us | 3.0 us |" in text
    assert "2026-01-02. 2 cores. load at most 1.5. 2 rounds. jax 1. `python -m benchmarks.speed replay_add`" in text
    assert "| `recorders` | on / off | - | - | - | not recorded |" in text
    assert (
        "| [SAC, Pendulum-v1 (gymnax)](algorithms/sac.md#learning) | 3 | 1,000 steps, 2.5 min | -150.0 ± 12.0 | 0.05 "
        "| >= -200 within 30,000 steps | met |" in text
    )
    assert "| [PPO, hopper (brax)](algorithms/ppo.md#learning) | - | - | - | - | >= 1000 within 30 minutes |" in text


def test_screen_tells_the_same():
    assert "asked >= 0.8: NOT MET" in show_comparison(SPEED)
    assert "reached at 1,000 steps, 150 s: -150.0" in show_learning(LEARNING)


def test_the_page_follows_from_the_results():
    text = (DOCS / "benchmarks.md").read_text("utf-8")
    assert text == page(load("speed"), load("learning"), DOCS), "out of date: python -m benchmarks.results"

"""The evosax measurement has all settings that its program reads."""

from __future__ import annotations

import pytest

from benchmarks.speed.comparison import COMPARISONS
from benchmarks.speed.peers import evosax_evolution

SMALL = {"pop_size": 4, "generations": 1, "episode_length": 2, "cache": None}
SIDES = {
    name: dict(side.settings)
    for name, comparison in COMPARISONS.items()
    for side in comparison.sides.values()
    if side.driver == "evosax"
}


@pytest.mark.parametrize("name", [name for name, settings in SIDES.items() if settings["library"] == "gymnax"])
def test_a_generation_is_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SIDES[name] | SMALL
    if "warmup_generations" in settings:
        settings["warmup_generations"] = 1
    monkeypatch.setattr(evosax_evolution, "read_settings", lambda: settings)
    reading = evosax_evolution.prepare()()
    assert reading["steps_per_second"] > 0.0


def test_the_same_settings_are_read_of_brax() -> None:
    keys = {frozenset(settings) - {"warmup_generations", "env_options"} for settings in SIDES.values()}
    assert len(keys) == 1
    assert {settings["library"] for settings in SIDES.values()} == {"gymnax", "brax"}

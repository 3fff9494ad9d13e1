"""Tables of trainings without tuned settings."""

from __future__ import annotations

import pytest

from benchmarks.defaults import page
from benchmarks.defaults.page import defaults_section
from benchmarks.defaults.task import TASKS
from benchmarks.learning.staleness import composed
from tests.benchmarks.learning.figures import point, result
from tests.support.errors import assert_names

NAME = "dqn_acrobot"


@pytest.fixture
def one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TASKS", {NAME: TASKS[NAME]})


def recorded(ours: float, **fields) -> dict:
    random = {"mean": -496.639, "overrides": []}
    return result(point(100_000, ours), config=composed(TASKS[NAME]), random=random, **fields)


@pytest.mark.usefixtures("one_task")
@pytest.mark.parametrize(("ours", "share", "half"), [(-160.639, "0.80", "| yes |"), (-370.639, "0.30", "| **no** |")])
def test_a_row_shows_returns_share_and_half(ours: float, share: str, half: str) -> None:
    text = defaults_section({NAME: recorded(ours, notes="explored too little")})
    assert_names(
        text, f"| `{NAME}`: ", "general defaults", "-496.6", f"{ours:,.1f} after 100,000", "1 seed)", share, half
    )
    assert_names(text, "-76.6", "RL Baselines3 Zoo", f"`{NAME}`: explored too little", "result that counts: 1")


@pytest.mark.usefixtures("one_task")
def test_stale_and_missing_results_are_shown() -> None:
    assert_names(defaults_section({}), "| not recorded |", "not recorded: 1")
    changed = recorded(-160.639)
    changed["config"] = {**changed["config"], "discount": 0.5}
    assert_names(defaults_section({NAME: changed}), "| stale: ", "`discount` 0.5", "stale: 1")


def test_settings_of_similar_tasks_are_named() -> None:
    text = defaults_section({})
    assert "| `ppo/pendulum` |" in text
    assert all(f"| `{name}`: " in text for name in TASKS)

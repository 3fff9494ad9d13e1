"""Share of the published gain, and the tasks without tuned settings."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.defaults.gain import Gain, applied_settings, environment_of, gain_of
from benchmarks.defaults.page import missing
from benchmarks.defaults.task import AGENTS, CHOSEN, TASKS
from benchmarks.learning.published import Published
from benchmarks.learning.staleness import composed
from benchmarks.learning.tables import row_of
from benchmarks.learning.task import LearningTask
from evorl.cli.config_tree import config_folder, is_own_file
from tests.benchmarks.learning.figures import point, result, task
from tests.support.errors import raises_naming

LEARNED = task("learned")  # published: 7.0 after 200 steps


def recorded(task_of: LearningTask, *curve: dict, random: float = 1.0) -> dict:
    """Return a result of a task with its settings of today."""
    return result(*curve, config=composed(task_of), random={"mean": random, "overrides": []})


def published(task_of: LearningTask) -> Published:
    assert task_of.published is not None
    return task_of.published


@pytest.mark.parametrize(
    ("random", "ours", "theirs", "share"),
    [(-1200.0, -680.0, -160.0, 0.5), (0.0, 250.0, 500.0, 0.5), (20.0, 20.0, 500.0, 0.0), (10.0, -14.0, 58.0, -0.5)],
)
def test_the_share_is_of_the_published_gain_over_random_actions(
    random: float, ours: float, theirs: float, share: float
) -> None:
    gain = Gain(random, ours, theirs)
    assert gain.share == pytest.approx(share)
    assert gain.is_half == (share >= 0.5)


def test_without_a_published_gain_there_is_no_share() -> None:
    with raises_naming(ValueError, "-160", "-150", "random actions"):
        _ = Gain(-150.0, -155.0, -160.0).share


def test_the_last_evaluation_up_to_the_published_steps_counts() -> None:
    row = row_of(LEARNED, recorded(LEARNED, point(100, 2.0, 2.0), point(200, 3.0, 5.0), point(300, 9.0, 9.0)))
    assert row.judgment is not None
    assert row.judgment.point is not None
    assert row.judgment.point["timesteps"] == 200
    assert gain_of(row) == Gain(1.0, 4.0, 7.0)


def test_results_of_other_settings_and_without_an_evaluation_do_not_count() -> None:
    changed = dataclasses.replace(LEARNED, overrides=(*LEARNED.overrides, "discount=0.5"))
    stale = row_of(changed, recorded(LEARNED, point(200, 3.0)))
    assert gain_of(stale) is None
    assert "discount" in missing(stale)
    late = row_of(LEARNED, recorded(LEARNED, point(300, 3.0)))
    assert gain_of(late) is None
    assert "evaluation" in missing(late)
    none = row_of(LEARNED, None)
    assert gain_of(none) is None
    assert missing(none) == "not recorded"


@pytest.mark.parametrize("name", TASKS)
def test_a_task_chooses_only_what_a_user_without_tuned_settings_chooses(name: str) -> None:
    overrides = dict(override.split("=", 1) for override in TASKS[name].overrides)
    assert set(overrides) == set(CHOSEN)
    assert name.startswith(overrides["agent"])


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_no_settings_of_its_own(name: str) -> None:
    pair = f"{TASKS[name].agent}/{environment_of(TASKS[name])}"
    file = applied_settings(TASKS[name])
    assert file is None or not is_own_file(file, pair, config_folder())


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_a_figure_with_its_source_and_is_not_longer(name: str) -> None:
    theirs = published(TASKS[name])
    assert theirs.source.startswith("https://")
    assert theirs.place
    assert theirs.differences
    steps = next(int(text.partition("=")[2]) for text in TASKS[name].overrides if text.startswith("total_timesteps="))
    assert steps <= theirs.timesteps


def test_each_agent_has_at_least_ten_tasks() -> None:
    agents = [task_of.agent for task_of in TASKS.values()]
    assert {agent: agents.count(agent) >= 10 for agent in AGENTS} == dict.fromkeys(AGENTS, True)
    assert set(agents) == set(AGENTS)

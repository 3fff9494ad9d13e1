"""Tasks of the file, and as composed by the command line."""

from __future__ import annotations

import collections
import dataclasses

import pytest

from benchmarks.learning.staleness import composed
from benchmarks.learning.task import SEARCHES, TASKS, LearningTask, read_tasks
from tests.benchmarks.learning import figures
from tests.support.errors import raises_naming


def test_a_task_has_a_published_figure_or_a_threshold():
    with raises_naming(ValueError, "'neither'", "published figure", "threshold"):
        LearningTask("neither", "", ())
    with raises_naming(ValueError, "published", "threshold"):
        dataclasses.replace(figures.task(), threshold=5.0)


def test_a_threshold_has_a_limit_in_steps():
    with raises_naming(ValueError, "'unlimited'", "threshold", "within_timesteps"):
        LearningTask("unlimited", "", (), threshold=1.0)


def test_a_metric_of_the_training_is_judged_by_seeds_that_train_alone():
    with raises_naming(ValueError, "'together'", "train/qd_score", "one_seed_at_a_time"):
        LearningTask("together", "", ["agent=qd/map_elites"], threshold=1.0, within_timesteps=2, score="train/qd_score")


def test_the_requirement_names_bar_and_limit():
    own = figures.task(threshold=5.0, within_timesteps=2000)
    assert own.bound == 5.0
    assert all(part in own.limit for part in (">= 5", "2,000"))
    assert "<" in dataclasses.replace(own, solvable=False).limit
    assert "qd_score" in dataclasses.replace(own, score="train/qd_score", one_seed_at_a_time=True).limit
    theirs = figures.task(published=figures.published(spread_over="seeds", num_seeds=4, spread=4.0))
    assert theirs.bound == 5.0
    assert all(part in theirs.limit for part in (">= 5.0", "200 environment steps"))
    assert "P(ours > theirs)" in figures.task(published=figures.over_seeds(1.0, 2.0)).limit


def test_searches_cover_the_agents_with_fewer_than_three_published_figures():
    figures_of = collections.Counter(task.agent for task in TASKS.values() if task.published)
    agents = {task.agent for task in TASKS.values()}
    assert sorted(SEARCHES) == sorted(agent for agent in agents if figures_of[agent] < 3)


def test_shared_overrides_are_flattened(tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(
        "shared: &shared [env=e, x=1]\n"
        "tasks: {t: {title: T, overrides: [agent=ec/a, *shared], threshold: 3, within_timesteps: 9}}",
        encoding="utf-8",
    )
    task = read_tasks(path)["t"]
    assert task.overrides == ("agent=ec/a", "env=e", "x=1")
    assert (task.agent, task.bound) == ("ec/a", 3)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_tasks_compose_and_are_evaluated_in_time(task):
    config = composed(task)
    assert (config["eval_episodes"], config["num_seeds"]) == (20, 5)
    assert 0 < config["eval_interval"] <= config["total_timesteps"]
    # Training may continue past the steps within which it is judged, but may not end before them.
    assert task.within_timesteps is None or config["total_timesteps"] >= task.within_timesteps
    if task.published is not None:  # one evaluation at least counts
        assert config["eval_interval"] * (config["env"]["action_repeat"] or 1) <= task.published.timesteps


@pytest.mark.parametrize("name", ["a2c", "ppo", "sac", "td3"])
def test_held_actions_are_compared_at_the_published_steps_of_the_car(name):
    task = TASKS[f"{name}_mountain_car_continuous"]
    assert composed(task)["env"]["action_repeat"] == 8
    steps = {"a2c": 100_000, "ppo": 20_000, "sac": 50_000, "td3": 300_000}  # as in the table of the zoo
    assert task.published.timesteps == steps[name]

"""Options for recording the episodes of evaluations."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.assembly import workflow_from_config
from evorl.metrics import EvaluationMetrics
from evorl.runs.spec_parts import EvaluationRecords
from evorl.types import PyTreeDict
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming

MAZE = {"name": "goal/point_maze", "maze": "open", "max_episode_steps": 12}
CONFIG = {"workflow": "evorl.algorithms.random_agent.RandomAgentWorkflow", "eval_episodes": 6, "num_envs": 2}


def make(env: Any = MAZE, evaluation: Any = None, **changes: Any) -> Workflow:
    return workflow_from_config({**CONFIG, "env": env, "evaluation": evaluation, **changes})


def evaluated(**changes: Any) -> PyTreeDict:
    workflow = make(evaluation={"goals": True, "save_episodes": 4, "plot_episodes": 2}, **changes)
    return workflow.evaluate(workflow.init(0))


@pytest.fixture(scope="module")
def metrics() -> PyTreeDict:
    return evaluated()


def test_goals_are_those_of_the_episodes(metrics: PyTreeDict) -> None:
    episodes: EvaluationMetrics = metrics.episodes
    assert episodes.goals is not None
    assert {name: goals.shape for name, goals in episodes.goals.items()} == dict.fromkeys(
        ("start", "achieved", "desired"), (6, 2)
    )
    steps = episodes.steps
    assert len(steps.rewards) == 4
    for i in range(4):
        length = int(episodes.episode_lengths[i])
        np.testing.assert_array_equal(steps.obs.achieved_goal[i, 0], episodes.goals.start[i])
        np.testing.assert_array_equal(steps.obs.achieved_goal[i, length], episodes.goals.achieved[i])
        np.testing.assert_array_equal(steps.obs.desired_goal[i, : length + 1], [episodes.goals.desired[i]] * 13)
        assert steps.is_success[i, :length].any() == episodes.success_ever[i]
        assert steps.is_success[i, length - 1] == episodes.success_at_end[i]
        np.testing.assert_allclose(steps.rewards[i, :length].sum(), episodes.episode_returns[i])
    assert len(np.unique(episodes.goals.desired, axis=0)) == 6


def test_devices_do_not_show_and_seeds_have_their_own(metrics: PyTreeDict) -> None:
    on_two = evaluated(devices=2)
    jax.tree.map(np.testing.assert_array_equal, on_two.episodes, metrics.episodes)
    of_seeds = evaluated(num_seeds=2)
    assert of_seeds.episodes.steps.rewards.shape == (2, 4, 12)
    first = jax.tree.map(lambda x: x[0], of_seeds.episodes)
    jax.tree.map(np.testing.assert_array_equal, first, metrics.episodes)


@pytest.mark.parametrize("evaluation", [None, {}, {"goals": False}, {"goals": True, "goal_cells": 5}])
def test_nothing_is_kept_unless_it_is_asked_for(evaluation: Any) -> None:
    """Without recording options workflows are equal and share programs, and hidden goals are not recorded."""
    env = "gymnax/CartPole-v1"
    assert make(env, evaluation).keeping is None
    hidden = {**MAZE, "flatten_obs": True}
    assert make(hidden, evaluation).keeping is None


def test_a_population_keeps_what_its_member_does() -> None:
    inner = {"workflow": "evorl.algorithms.a2c.A2CWorkflow", "num_envs": 2, "rollout_length": 4}
    search = {"discount": {"low": 0.9, "high": 0.99}}
    population = workflow_from_config(
        {
            "workflow": "evorl.algorithms.pbt.PBTWorkflow",
            "env": MAZE,
            "inner": inner,
            "search_space": search,
            "eval_episodes": 2,
            "evaluation": {"goals": True},
        }
    )
    assert population.keeping == EvaluationRecords(goals=True)
    shapes = jax.eval_shape(lambda key: population.evaluation(population.setup(key)), jax.random.key(0))
    assert shapes.episodes.goals.desired.shape == (2, 2)


@pytest.mark.parametrize(
    ("evaluation", "parts"),
    [
        ({"save_episode": 1}, ("evaluation", "'save_episode'", "'save_episodes'")),
        ({"save_episodes": 7}, ("evaluation.save_episodes=7", "eval_episodes=6")),
        ({"save_episodes": 0}, ("evaluation.save_episodes", "got 0.")),
        ({"goals": 3}, ("evaluation.goals", "true or false", "got 3.")),
        ({"plot_episodes": 1, "plot_of": "goals"}, ("evaluation.plot_of", "'goals'", "'goal'")),
        ({"plot_episodes": 1, "plot_dimensions": [0, 2]}, ("plot_dimensions", "indices from 0 to 1", "[0, 1]")),
        ({"plot_episodes": 1, "plot_dimensions": 1}, ("plot_dimensions", "indices from 0", "[0, 1]", "got 1")),
        ({"save_episodes": 10**8}, ("evaluation.save_episodes", "at most")),
        ({"plot_dimensions": [-1]}, ("plot_dimensions", "indices from 0")),
        ("all", ("evaluation", "mapping")),
    ],
)
def test_what_cannot_be_kept_is_refused(evaluation: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        make(evaluation=evaluation, **({"eval_episodes": 10**8} if "at most" in parts else {}))


def test_what_does_not_fit_the_environment_is_refused() -> None:
    with raises_naming(ValueError, "plot_of=goal", "goals"):
        make("gymnax/CartPole-v1", {"plot_episodes": 1, "plot_of": "goal"})
    with raises_naming(ValueError, "plot", "components", "Box"):
        make("gymnax/Breakout-MinAtar", {"plot_episodes": 1})


def test_an_algorithm_with_an_evaluation_of_its_own_keeps_no_episodes() -> None:
    erl = {
        "workflow": "evorl.algorithms.erl.ERLWorkflow",
        "env": "gymnax/Pendulum-v1",
        "optimizer": {"name": "ga", "pop_size": 4, "num_elites": 1},
        "learner": {"workflow": "evorl.algorithms.td3.TD3Workflow"},
        "eval_episodes": 2,
    }
    with raises_naming(ValueError, "evaluation.save_episodes=1", "custom evaluation"):
        workflow_from_config({**erl, "evaluation": {"save_episodes": 1}})
    assert workflow_from_config({**erl, "evaluation": {"goals": True}}).keeping is None

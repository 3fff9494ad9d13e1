"""Policies for several objectives: what is told of them, and the front that is kept."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from evorl.algorithms.nsga2 import NSGA2Workflow
from evorl.types import State
from evorl.workflows import execution
from tests.small_workflows import EPISODE_STEPS, assert_identical

OBJECTIVES = ("return", "-next_obs.2")
POP_SIZE, GENERATIONS, SEED = 8, 6, 3
REFERENCE = (-200.0, -80.0)


def nsga2(**changes: Any) -> NSGA2Workflow:
    config = {
        "env": {"name": "Pendulum-v1", "max_episode_steps": EPISODE_STEPS},
        "devices": 1,
        "env_chunk": None,
        "agent": {"network": {"torso": [4]}},
        "optimizer": {"pop_size": POP_SIZE, "init_std": 1.0},
        "objectives": list(OBJECTIVES),
        "reference": list(REFERENCE),
        "total_timesteps": POP_SIZE * EPISODE_STEPS * 20,
        "eval_interval": 0,
        **changes,
    }
    return NSGA2Workflow.build_from_config(config)


@functools.cache
def trained() -> tuple[NSGA2Workflow, dict[str, np.ndarray], State]:
    workflow = nsga2()
    metrics, state = execution.iterate_program(workflow, workflow.init(SEED), GENERATIONS)
    metrics.pop("episodes")
    return workflow, {name: np.asarray(x)[:GENERATIONS] for name, x in metrics.items()}, state


def dominated(points: np.ndarray) -> np.ndarray:
    """By hand: who has somebody that is nowhere worse and somewhere better."""
    return np.array([any((q >= p).all() and (q > p).any() for q in points) for p in points])


def test_objectives_are_sums_over_the_episode() -> None:
    workflow = nsga2()
    state = workflow.init(SEED)
    outcomes = jax.jit(lambda workflow, state: workflow.collect(state)[0])(workflow, state)
    fitness = outcomes.returns.mean(axis=1)
    told = np.asarray(workflow.told(outcomes, fitness))
    assert told.shape == (POP_SIZE, 2)
    np.testing.assert_array_equal(told[:, 0], fitness)
    np.testing.assert_allclose(told[:, 1], -np.asarray(outcomes.totals["next_obs.2"])[:, 0], rtol=1e-6)
    assert np.unique(told[:, 1]).size > 1


def test_the_front_of_the_parents_grows() -> None:
    """Episodes differ from generation to generation; those of a parent count as they were."""
    _, metrics, state = trained()
    assert (np.diff(metrics["hypervolume"]) >= -1e-3 * metrics["hypervolume"][-1]).all()
    assert metrics["hypervolume"][-1] > metrics["hypervolume"][0] > 0
    for name in OBJECTIVES:
        assert (np.diff(metrics[f"best/{name}"]) >= 0).all()
    objectives = np.asarray(state.ec_state.objectives)
    assert metrics["front_size"][-1] == (~dominated(objectives)).sum()


def test_the_front_is_a_table_and_a_picture() -> None:
    workflow, metrics, state = trained()
    chart = workflow.charts(state)["pareto_front"]
    assert list(chart.columns) == [*OBJECTIVES, "on_front"]
    points = np.stack([chart.columns[name] for name in OBJECTIVES], axis=1)
    np.testing.assert_array_equal(chart.columns["on_front"].astype(bool), ~dominated(points))
    assert (np.diff(points[:, 0]) >= 0).all()
    assert chart.columns["on_front"].sum() == metrics["front_size"][-1]


def test_it_acts_by_an_end_of_the_front() -> None:
    workflow, _, state = trained()
    assert_identical(state.agent_state.params.policy, workflow.optimizer.solution(state.ec_state))
    first = np.asarray(state.ec_state.objectives)[0]
    assert not dominated(np.asarray(state.ec_state.objectives))[0]
    assert np.isfinite(first).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objectives": ["return"]}, "at least two"),
        ({"objectives": ["return", "next_obs.0", "next_obs.1"]}, "optimizer.num_objectives=2"),
        ({"reference": [0.0]}, "a number for each of 2 objectives"),
        ({"reference": 0.0}, r"reference must be a list, such as \[0.0\], got 0.0"),
        ({"objectives": "return"}, r"objectives must be a list, such as \['return'\], got 'return'"),
        ({"agent": {"normalize_obs": True}}, "normalize_obs=true would change"),
        ({"optimizer": {"name": "openes", "pop_size": 8}}, "nsga2|NSGA|there are"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        nsga2(**changes)


@pytest.mark.parametrize(
    ("name", "said"),
    [("metrics.speed", r"no entry 'metrics\.speed'"), ("next_obs", r"next_obs is no single number.*next_obs\.0")],
)
def test_an_objective_that_is_not_there_is_told(name: str, said: str) -> None:
    workflow = nsga2(objectives=["return", name])
    with pytest.raises(ValueError, match=said):
        jax.eval_shape(workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0)))

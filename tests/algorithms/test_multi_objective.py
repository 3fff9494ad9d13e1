"""Multi-objective optimization: the fitness that the optimizer receives, and the Pareto front of the parents."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from evorl.algorithms.multi_objective import MultiObjectiveWorkflow
from evorl.execution import programs
from evorl.execution.trainable import Execution
from evorl.ops.collectives import DATA_AXIS
from evorl.types import State
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.small_workflows import EPISODE_STEPS, RUN_CONFIG, assert_close, assert_identical, small

OBJECTIVES = ("return", "-next_obs.2")
POP_SIZE, GENERATIONS, SEED = 8, 6, 3
REFERENCE = (-200.0, -80.0)


class TestContract(WorkflowContract):
    workflow = MultiObjectiveWorkflow
    SMALL = {
        **RUN_CONFIG,
        "agent": {"network": {"torso": [4], "orthogonal": True}},
        "optimizer": {"name": "nsga2", "pop_size": POP_SIZE, "initial_std": 1.0},
        "objectives": list(OBJECTIVES),
        "reference": list(REFERENCE),
        "total_timesteps": POP_SIZE * EPISODE_STEPS * 20,
    }
    endless_env = ("Pendulum-v1", 3)


def workflow_of(**changes: Any) -> MultiObjectiveWorkflow:
    workflow = small("multi_objective", "Pendulum-v1", **changes)
    assert isinstance(workflow, MultiObjectiveWorkflow)
    return workflow


@functools.cache
def trained(name: str) -> tuple[MultiObjectiveWorkflow, dict[str, np.ndarray], State]:
    workflow = workflow_of(optimizer={"name": name, "pop_size": POP_SIZE, "initial_std": 1.0})
    metrics, state = programs.iterate_program(workflow, workflow.init(SEED), GENERATIONS)
    metrics.pop("episodes")
    return workflow, {name: np.asarray(x)[:GENERATIONS] for name, x in metrics.items()}, state


def dominated(points: np.ndarray) -> np.ndarray:
    """Return which points are dominated: another point is nowhere worse and somewhere better."""
    return np.array([any((q >= p).all() and (q > p).any() for q in points) for p in points])


def test_objectives_are_sums_over_the_episode() -> None:
    workflow = workflow_of()
    state = workflow.init(SEED)
    outcomes = jax.jit(lambda workflow, state: workflow.collect(state)[0])(workflow, state)
    fitness = outcomes.returns.mean(axis=1)
    values = np.asarray(workflow.objective_values(outcomes, fitness))
    assert values.shape == (POP_SIZE, 2)
    np.testing.assert_array_equal(values[:, 0], fitness)
    np.testing.assert_allclose(values[:, 1], -np.asarray(outcomes.totals["next_obs.2"])[:, 0], rtol=1e-6)
    assert np.unique(values[:, 1]).size > 1


def test_the_front_of_the_parents_grows() -> None:
    """The front's hypervolume never decreases, since parents keep their recorded objectives."""
    _, metrics, state = trained("nsga2")
    assert (np.diff(metrics["hypervolume"]) >= -1e-3 * metrics["hypervolume"][-1]).all()
    assert metrics["hypervolume"][-1] > metrics["hypervolume"][0] > 0
    for name in OBJECTIVES:
        assert (np.diff(metrics[f"best/{name}"]) >= 0).all()
    objectives = np.asarray(state.ec_state.objectives)
    assert metrics["front_size"][-1] == (~dominated(objectives)).sum()


def test_reference_vectors_go_by_the_share_of_the_training() -> None:
    workflow, metrics, state = trained("rvea")
    ec_state, steps = state.ec_state, metrics["timesteps"].cumsum()
    before_last = steps[-2] / workflow.total_timesteps
    np.testing.assert_allclose(ec_state.progress, before_last, rtol=1e-5)
    assert ec_state.num_adaptations == 1 + np.floor(before_last / 0.1 + 1e-4)
    assert ec_state.objectives.shape == (POP_SIZE, 2)
    assert metrics["hypervolume"][-1] > 0
    assert 1 <= np.isfinite(ec_state.objectives).all(axis=1).sum() < POP_SIZE  # a subproblem may have no individual


@pytest.mark.parametrize("name", ["nsga2", "rvea"])
def test_the_front_is_a_table_and_a_picture(name: str) -> None:
    workflow, metrics, state = trained(name)
    chart = workflow.charts(state)["pareto_front"]
    assert list(chart.columns) == [*OBJECTIVES, "on_front"]
    points = np.stack([chart.columns[name] for name in OBJECTIVES], axis=1)
    np.testing.assert_array_equal(chart.columns["on_front"].astype(bool), ~dominated(points))
    assert (np.diff(points[:, 0]) >= 0).all()
    assert chart.columns["on_front"].sum() == metrics["front_size"][-1]


def test_it_acts_by_an_end_of_the_front() -> None:
    workflow, _, state = trained("nsga2")
    assert_identical(state.agent_state.params.policy, workflow.optimizer.solution(state.ec_state))
    first = np.asarray(state.ec_state.objectives)[0]
    assert not dominated(np.asarray(state.ec_state.objectives))[0]
    assert np.isfinite(first).all()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"objectives": ["return"]}, ("objectives", "at least 2")),
        ({"objectives": ["return", "next_obs.0", "next_obs.1"]}, ("optimizer.num_objectives=2",)),
        ({"reference": [0.0]}, ("reference", "one per objective: 2")),
        ({"reference": 0.0}, ("reference", "list, such as [0.0], got 0.0")),
        ({"objectives": "return"}, ("objectives", "list, such as ['return'], got 'return'")),
        ({"agent": {"normalize_obs": True}}, ("normalize_obs=true",)),
        (
            {"optimizer": {"name": "openes", "pop_size": 8}},
            ("optimizer.name 'openes'", "nsga2, rvea"),
        ),
        ({"optimizer": {"pop_size": 8}}, ("optimizer.name None", "nsga2, rvea")),
        ({"optimizer": {"name": "rvea", "pop_size": 8, "num_objectives": 3}}, ("optimizer.num_objectives=3",)),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        workflow_of(**changes)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("metrics.speed", ("entry 'metrics.speed'",)), ("next_obs", ("next_obs", "several components", "next_obs.0"))],
)
def test_an_objective_that_is_not_there_is_told(name: str, parts: tuple[str, ...]) -> None:
    workflow = workflow_of(objectives=["return", name])
    with raises_naming(ValueError, *parts):
        jax.eval_shape(workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0)))


@pytest.mark.parametrize("name", ["nsga2", "rvea"])
def test_devices_and_parts_do_not_show(name: str) -> None:
    workflow, _, state = trained(name)
    laid_out = workflow.replace(execution=Execution(axis=DATA_AXIS, num_devices=2), eval_chunk=3)
    _, other = programs.iterate_program(laid_out, programs.place(laid_out, workflow.init(SEED)), GENERATIONS)
    assert_close(other.ec_state.objectives, state.ec_state.objectives, 1e-4)
    assert_close(other.ec_state.parents, state.ec_state.parents, 1e-4)

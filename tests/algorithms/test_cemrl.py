"""CEM-RL: part of each generation follows the critics before its evaluation, and the optimizer learns
from all individuals.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.cemrl import CEMRLWorkflow
from evorl.evaluators.population_evaluator import with_policy
from evorl.execution import programs
from evorl.ops.trees import row_of
from evorl.sample_batch import SampleBatch
from evorl.types import State
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.small_workflows import (
    EPISODE_STEPS,
    RUN_CONFIG,
    arrays,
    assert_identical,
    inner_config,
    one_iteration,
    small,
)

TD3 = {**inner_config("td3"), "num_envs": 1, "learning_starts": 60, "replay_capacity": 512}
SAC = {**inner_config("sac"), "num_envs": 1, "learning_starts": 60, "replay_capacity": 512}
SAMPLED = 4 * EPISODE_STEPS


class TestContract(WorkflowContract):
    workflow = CEMRLWorkflow
    has_other_products = True
    SMALL = {
        **RUN_CONFIG,
        "learner": TD3,
        "optimizer": {"name": "sepcem", "pop_size": 4},
        "log_interval": 1,
        "total_timesteps": 800,
    }
    endless_env = ("Pendulum-v1", 3)


def cemrl(**changes: Any) -> CEMRLWorkflow:
    workflow = small("cemrl", "Pendulum-v1", **changes)
    assert isinstance(workflow, CEMRLWorkflow)
    return workflow


@functools.cache
def states(num: int) -> tuple[CEMRLWorkflow, list[State], list[Any]]:
    workflow = cemrl()
    states, metrics = [workflow.init(0)], []
    for _ in range(num):
        row, state = one_iteration(workflow, states[-1])
        states.append(state)
        metrics.append(row)
    return workflow, states, metrics


def _drawn(workflow: CEMRLWorkflow, state: State) -> Any:
    """Return the generation as the optimizer sampled it."""
    return workflow.optimizer.ask(type(state.ec_state)({n: x for n, x in state.ec_state.items() if n != "injected"}))


def test_half_of_a_generation_has_climbed_and_the_others_are_as_drawn() -> None:
    workflow, all_states, metrics = states(3)
    assert [int(row.updates) for row in metrics] == [0, 2 * SAMPLED, 2 * SAMPLED]
    assert_identical(workflow.optimizer.ask(all_states[1].ec_state), _drawn(workflow, all_states[1]))
    population, drawn = workflow.optimizer.ask(all_states[3].ec_state), _drawn(workflow, all_states[3])
    untouched = jnp.array([1, 3])
    assert_identical(*(jax.tree.map(lambda x: x[untouched], x) for x in (population, drawn)))
    moved = jax.tree.map(lambda a, b: jnp.abs(a - b).reshape(4, -1).max(axis=1)[jnp.array([0, 2])], population, drawn)
    assert all((rows > 0.0).all() for rows in arrays(moved).values())


def test_the_critics_value_what_has_climbed_more() -> None:
    workflow, all_states, _ = states(3)
    agent_state: AgentState = row_of(all_states[3].learners.agent_state)
    obs = all_states[3].replay_state.data.obs[: 3 * SAMPLED, 0]
    batch = SampleBatch(obs=obs)

    def loss(population: Any, i: int) -> float:
        policy = row_of(population, i)
        keys = jax.random.split(jax.random.key(0), len(obs))
        return float(workflow.learner.policy_loss(policy, with_policy(agent_state, policy), batch, keys))

    population, drawn = workflow.optimizer.ask(all_states[3].ec_state), _drawn(workflow, all_states[3])
    for i in (0, 2):
        assert loss(population, i) < loss(drawn, i)


def test_the_updates_of_the_critics_are_shared_out_among_the_policies() -> None:
    workflow, all_states, _ = states(3)
    policies = jax.tree.map(lambda x: x[:2], workflow.optimizer.ask(all_states[3].ec_state))
    train = jax.jit(lambda num: workflow._train_critics(all_states[3], policies, jax.random.key(0), num))
    before = int(all_states[3].learners.opt_state.num_updates[0])
    for num in (0, 1, 5):
        losses, learned = train(num)
        assert int(learned.opt_state.num_updates) == before + num
        assert (float(losses.critic_loss) > 0.0) == (num > 0)


def test_a_stochastic_learner_and_everybody_climbs() -> None:
    workflow = cemrl(learner=SAC, improved_share=1.0)
    metrics, state = programs.iterate_program(workflow, workflow.init(0), 3)
    assert metrics.updates[:3].tolist() == [0.0, 2.0 * SAMPLED, 2.0 * SAMPLED]
    assert all(np.isfinite(x).all() for x in arrays(state.learners).values())
    assert int(state.replay_state.size) == 3 * SAMPLED
    assert metrics.actor_loss[2] != 0.0


@pytest.mark.parametrize(("share", "expected"), [(0.5, [0, 2]), (0.25, [0]), (0.01, [0]), (1.0, [0, 1, 2, 3])])
def test_how_many_climb(share: float, expected: list[int]) -> None:
    workflow = cemrl(improved_share=share)
    assert workflow.num_injected == len(expected)
    assert workflow.improved_rows.tolist() == expected
    state = jax.eval_shape(workflow.setup, jax.random.key(0))
    assert state.ec_state.injected.rows.shape == (len(expected),)


@pytest.mark.parametrize(
    ("pop_size", "num_elites", "share", "expected"),
    [(10, 2, 0.5, [2, 3, 5, 6, 8]), (4, 1, 0.75, [1, 2, 3]), (4, 3, 0.25, [3])],
)
def test_elites_of_a_genetic_algorithm_do_not_climb(
    pop_size: int, num_elites: int, share: float, expected: list[int]
) -> None:
    workflow = cemrl(optimizer={"name": "ga", "pop_size": pop_size, "num_elites": num_elites}, improved_share=share)
    assert workflow.improved_rows.tolist() == expected


def test_priorities_are_refused() -> None:
    with raises_naming(ValueError, "learner.prioritized=false"):
        cemrl(learner={**TD3, "prioritized": True})

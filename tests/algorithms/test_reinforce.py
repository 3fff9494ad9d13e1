"""REINFORCE solves problems with closed-form solutions from sampled returns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.reinforce import ReinforceAgent, ReinforceWorkflow
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import (
    ACTION_NAMES,
    KINDS,
    ActorCriticProbes,
    Answers,
    RecurrentActorCriticProbes,
    every_probe,
    train_on_every_probe,
)
from tests.support.small_workflows import ONE_STEP_CONFIG, small


class TestContract(WorkflowContract):
    workflow = ReinforceWorkflow
    SMALL = ONE_STEP_CONFIG


class TestAgent(AgentContract):
    workflow = ReinforceWorkflow
    settings = TestContract.SMALL["agent"]


def _train(continuous: bool, num_iterations: int = 3500, **network: Any) -> tuple[bool, Any, Any]:
    return train_on_every_probe(
        ReinforceWorkflow,
        {"network": {"torso": [32, 32], **network}, "value_coefficient": 1.0},
        continuous,
        num_envs=32,
        runs_long=True,
        rollout_length=16,
        optimizer=Optimizer(learning_rate=Schedule(1e-2, 0.0), max_grad_norm=0.5),
        total_timesteps=512 * num_iterations,
    )


class TestProbes(ActorCriticProbes):
    train = staticmethod(_train)


class TestProbesWithMemory(RecurrentActorCriticProbes):
    @staticmethod
    def train(continuous: bool) -> tuple[bool, Any, Any]:
        return _train(continuous, num_iterations=1500, recurrent={"name": "dilated_lstm", "size": 32, "num_cores": 2})


@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_found_without_a_baseline(kind: str) -> None:
    settings = {"network": {"torso": [64, 64]}, "baseline": False}
    continuous, agent, agent_state = train_on_every_probe(
        ReinforceWorkflow,
        settings,
        KINDS[kind],
        num_envs=64,
        runs_long=kind == "continuous",
        rollout_length=16,
        optimizer=Optimizer(learning_rate=Schedule(5e-3, 0.0), max_grad_norm=0.5),
        total_timesteps=1024 * {"discrete": 400, "continuous": 4000}[kind],
    )
    assert set(agent_state.params) == {"policy"}
    answers = Answers(continuous, agent, agent_state, lambda state, obs: jnp.zeros(len(obs)))
    for name in ACTION_NAMES:
        answers.assert_actions_are_best(name)


def _agent(**settings: object) -> ReinforceAgent:
    return ReinforceAgent.from_config({"network": {"torso": [4]}, **settings}, every_probe(False, 1))


def test_returns_are_those_of_ended_episodes() -> None:
    """Only ended episodes count; a truncated one bootstraps from the value of its last observation."""
    agent = _agent(normalize_advantages=False)
    space = every_probe(False, 1)
    state = agent.init(space.obs_space, space.action_space, jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (6, 1, *space.obs_space.shape))
    next_obs = jax.random.normal(jax.random.key(2), obs.shape)

    def column(*numbers: float) -> jax.Array:
        return jnp.array(numbers, jnp.float32)[:, None]

    trajectory = SampleBatch(
        obs=obs,
        rewards=column(1, 2, 3, 4, 5, 6),
        next_obs=next_obs,
        dones=column(0, 1, 0, 1, 0, 0),
        extras=PyTreeDict(
            env_extras=PyTreeDict(termination=column(0, 1, 0, 0, 0, 0)),
            policy_extras=PyTreeDict(raw_action=obs, log_prob=column(0, 0, 0, 0, 0, 0)),
        ),
    )
    batch = agent.batch_with_returns(state, trajectory, 0.5)
    after = float(agent.values(state, state.params, next_obs)[3, 0])
    cut = 4 + 0.5 * after
    np.testing.assert_allclose(batch.targets[:4, 0], [2, 2, 3 + 0.5 * cut, cut], rtol=1e-5)
    np.testing.assert_allclose(batch.weights[:, 0], [1.5, 1.5, 1.5, 1.5, 0, 0])
    values = agent.values(state, state.params, obs)
    np.testing.assert_allclose(batch.advantages, batch.targets - values, rtol=1e-5)


def test_a_trajectory_without_an_end_changes_nothing_but_the_entropy() -> None:
    """A rollout of unfinished episodes does not change the policy until they end."""
    workflow = small("reinforce", rollout_length=8)
    state = workflow.init(0)
    _, after = workflow.step(state)
    jax.tree.map(np.testing.assert_array_equal, after.agent_state.params, state.agent_state.params)
    _, later = workflow.step(after)
    assert not np.array_equal(
        later.agent_state.params.policy["head"]["kernel"],
        after.agent_state.params.policy["head"]["kernel"],
    )


def test_baseline_is_true_or_false() -> None:
    with raises_naming(ValueError, "agent.baseline", "true or false, got 'yes'"):
        _agent(baseline="yes")

"""IMPALA solves problems with closed-form solutions, also with trajectories of older policies."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from evorl.algorithms.impala import IMPALAWorkflow
from evorl.ops.optimization import Optimizer
from evorl.ops.returns import gae
from evorl.ops.schedules import Schedule
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, RecurrentActorCriticProbes, train_on_every_probe
from tests.support.small_workflows import PPO_CONFIG, small


class TestContract(WorkflowContract):
    workflow = IMPALAWorkflow
    SMALL = PPO_CONFIG


class TestContractWithLinearMemory(WorkflowContract):
    workflow = IMPALAWorkflow
    SMALL = {**TestContract.SMALL, "agent": {"network": {"torso": [8], "recurrent": {"name": "lru", "size": 8}}}}


class TestAgent(AgentContract):
    workflow = IMPALAWorkflow
    settings = TestContract.SMALL["agent"]


def _train(continuous: bool, runs_long: bool = False, **network: Any) -> tuple[bool, Any, Any]:
    return train_on_every_probe(
        IMPALAWorkflow,
        {"network": {"torso": [32, 32], **network}, "entropy_coefficient": 0.0, "value_coefficient": 1.0},
        continuous,
        num_envs=32,
        runs_long=runs_long,
        rollout_length=16,
        num_epochs=2,
        num_minibatches=4,
        optimizer=Optimizer(learning_rate=Schedule(7e-3, 0.0), max_grad_norm=0.5),
        total_timesteps=512 * 220,
    )


class TestProbes(ActorCriticProbes):
    train = staticmethod(_train)


class TestProbesWithMemory(RecurrentActorCriticProbes):
    @staticmethod
    def train(continuous: bool) -> tuple[bool, Any, Any]:
        return _train(continuous, runs_long=True, recurrent={"name": "gru", "size": 32})


def test_on_its_own_policy_it_is_an_actor_critic_with_gae() -> None:
    """Before the first update the losses use GAE's advantages and targets, with normalized observations."""
    agent_config = {"network": {"torso": [8]}, "normalize_obs": True, "vtrace_lambda": 0.9}
    workflow = small("impala", "Pendulum-v1", agent=agent_config)
    state = workflow.init(0)
    for _ in range(2):
        _, state = workflow.step(state)
    assert float(state.agent_state.obs_preprocessor_state.count) > 0
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    assert float(trajectory.dones.sum()) > 0  # includes time limits
    agent, agent_state, params = workflow.agent, state.agent_state, state.agent_state.params
    _, losses = jax.jit(lambda t: agent.loss(params, agent_state, t, 0.95, 0.0))(trajectory)
    values, next_values = (agent.values(agent_state, params, obs) for obs in (trajectory.obs, trajectory.next_obs))
    termination = trajectory.extras.env_extras.termination
    steps = (trajectory.rewards, values, next_values, termination, trajectory.dones)
    advantages, targets = gae(*steps, discount=0.95, gae_lambda=0.9)
    log_prob = agent.policy(agent_state, params, trajectory.obs).log_prob(trajectory.extras.policy_extras.raw_action)
    np.testing.assert_allclose(losses.policy_loss, -(log_prob * advantages).mean(), rtol=1e-4)
    np.testing.assert_allclose(losses.value_loss, np.square(values - targets).mean(), rtol=1e-4)


def test_trajectories_that_cannot_be_cut_are_refused() -> None:
    with raises_naming(ValueError, "num_envs=8", "num_minibatches=3"):
        small("impala", num_minibatches=3)

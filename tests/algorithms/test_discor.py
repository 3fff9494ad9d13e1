"""DisCor solves problems with closed-form solutions; weights, errors and temperatures match the paper."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import with_target_networks
from evorl.algorithms.discor import DisCorAgent, DisCorWorkflow, weights_of_mean_one
from evorl.envs import create_env
from evorl.ops.random import split_rows
from evorl.sample_batch import SampleBatch
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, train_soft_actor_critic
from tests.support.small_workflows import SAC_CONFIG, assert_close, fresh_state, moved_apart, small, transitions

KEYS = jax.random.split(jax.random.key(5), 6)
ENVS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}


class TestContract(WorkflowContract):
    workflow = DisCorWorkflow
    SMALL = {**SAC_CONFIG, "agent": {"network": {"torso": [8]}, "error_network": {"torso": [8]}}}


class TestAgent(AgentContract):
    workflow = DisCorWorkflow
    settings = TestContract.SMALL["agent"]


class TestProbes(ActorCriticProbes):
    @staticmethod
    def train(continuous: bool) -> tuple:
        return train_soft_actor_critic(
            DisCorWorkflow, {"error_network": {"torso": [64, 64]}}, continuous, total_timesteps=16 * 800, runs_long=True
        )


def test_weights_by_hand() -> None:
    """Errors 0, ln 2 and ln 4 at temperature 1 give weights in proportion 4 : 2 : 1 with mean 1, also for
    large errors.
    """
    errors = np.log([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]])
    expected = [[12 / 7, 6 / 7, 3 / 7], [1.0, 1.0, 1.0]]
    np.testing.assert_allclose(weights_of_mean_one(-jnp.asarray(errors)), expected, rtol=1e-5)
    np.testing.assert_allclose(weights_of_mean_one(1e3 - jnp.asarray(errors)), expected, rtol=1e-3)


def _agent(env_name: str, **settings: Any) -> tuple[Any, AgentState, SampleBatch]:
    env = create_env(env_name, parallel=2)
    agent = DisCorAgent.from_config({**TestContract.SMALL["agent"], **settings}, env)
    state = fresh_state(agent, env)
    return agent, moved_apart(state, "target_critic", "target_error"), transitions(env, 6)


@pytest.mark.parametrize("kind", ENVS)
def test_doubt_comes_from_the_slow_networks_in_the_next_state(kind: str) -> None:
    agent, state, batch = _agent(ENVS[kind])
    policy = agent.policy(state, state.params.policy, batch.next_obs)
    if kind == "discrete":
        errors = agent.error_network.apply(state.params.target_error, batch.next_obs)
        errors = (policy.probs * errors).sum(axis=-1)
    else:
        errors = agent.error_network.apply(state.params.target_error, batch.next_obs, policy.sample(KEYS))
    doubt = jax.jit(agent.discounted_next_errors)(state, batch, KEYS)
    assert doubt.shape == (2, 6)
    assert 0 < (np.asarray(batch.extras.discounts) == 0.0).sum() < 6  # a terminated step has no error in its target
    np.testing.assert_allclose(doubt, batch.extras.discounts * errors, rtol=1e-5)


@pytest.mark.parametrize("kind", ENVS)
def test_errors_accumulate(kind: str) -> None:
    agent, state, batch = _agent(ENVS[kind])
    td_errors, doubt = jnp.array([[-2.0] * 6, [1.0] * 6]), jnp.full((2, 6), 0.5)
    loss, losses = agent.error_loss(state.params.error, state, batch, td_errors, doubt)
    if kind == "discrete":
        errors = np.asarray(agent.error_network.apply(state.params.error, batch.obs))[:, np.arange(6), batch.actions]
    else:
        errors = np.asarray(agent.error_network.apply(state.params.error, batch.obs, batch.actions))
    expected = ((errors - np.array([[2.5], [1.5]])) ** 2).mean(axis=1).sum()
    np.testing.assert_allclose([losses.error_loss, 2 * loss], expected, rtol=1e-5)
    np.testing.assert_allclose(losses.errors, np.maximum(errors, 0.0).mean(axis=1), rtol=1e-5)


def test_an_update_weighs_learns_errors_and_follows() -> None:
    workflow = small("discor", "Pendulum-v1", tau=0.25, agent={**TestContract.SMALL["agent"], "error_temperature": 0.1})
    state, batch = workflow.init(0), transitions(workflow.env, 6)
    agent, first = workflow.agent, moved_apart(state.agent_state, "target_error")
    given = (batch, KEYS, jnp.float32(0.0))
    after, _, losses = jax.jit(workflow.update_critics)(first, state.opt_state, *given)

    _, error_keys = split_rows(KEYS)
    logits = -np.asarray(jax.jit(agent.discounted_next_errors)(first, batch, error_keys)) / 0.1
    weights = np.exp(logits) / np.exp(logits).mean(axis=1, keepdims=True)
    assert np.ptp(weights) > 0.1
    errors = np.asarray(losses.td_errors)
    np.testing.assert_allclose(
        losses.critic_loss, (weights * np.asarray(batch.extras.weights) * errors**2).mean(axis=1).sum(), rtol=1e-4
    )
    predicted = agent.error_network.apply(first.params.error, batch.obs, batch.actions)
    predicted = np.maximum(predicted, 0.0).mean(axis=1)
    np.testing.assert_allclose(after.params.error_temperature, 0.75 * 0.1 + 0.25 * predicted, rtol=1e-4)
    assert not np.allclose(after.params.error["params"]["members"]["head"]["bias"], 0.0)

    last = with_target_networks(after.params, 0.25)
    for name in ("critic", "error"):
        target = jax.tree.map(lambda t, x: 0.75 * t + 0.25 * x, after.params[f"target_{name}"], after.params[name])
        assert_close(last[f"target_{name}"], target, 1e-6)


def test_weights_are_finite_after_only_negative_errors() -> None:
    """With a Polyak step size of 1, the temperature is that of the last batch, in which all outputs may be negative."""
    workflow = small("discor", "Pendulum-v1", tau=1.0)
    state, batch = workflow.init(0), transitions(workflow.env, 6)
    agent_state, opt_state = state.agent_state, state.opt_state
    params = jax.tree.map(jnp.copy, agent_state.params)
    for name in ("error", "target_error"):
        head = params[name]["params"]["members"]["head"]
        head["bias"] -= 10.0
    agent_state, update = agent_state.replace(params=params), jax.jit(workflow.update_critics)
    for _ in range(2):
        agent_state, opt_state, losses = update(agent_state, opt_state, batch, KEYS, jnp.float32(0.0))
        assert np.isfinite(losses.critic_loss)
    assert (np.asarray(agent_state.params.error_temperature) > 0.0).all()


def test_networks_of_errors_may_be_deeper() -> None:
    agent, _, _ = _agent("Pendulum-v1", error_network={"torso": [8, 4]})
    assert [len(n.torso.layers) for n in (agent.policy_network, agent.critic_network, agent.error_network)] == [1, 1, 2]
    with raises_naming(ValueError, "agent.error_temperature", "above 0, got 0"):
        _agent("Pendulum-v1", error_temperature=0)

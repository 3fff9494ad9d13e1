"""The base agent of soft actor-critics: losses computed by hand, networks, target entropy, and invalid settings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.sac import SACAgent
from evorl.algorithms.tqc import TQCAgent
from evorl.envs import create_env
from evorl.ops.random import split_rows
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import fresh_state, moved_apart, transitions

ENVS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}
KEYS = jax.random.split(jax.random.key(5), 6)


def _agent(env: str, **settings: Any) -> tuple[Any, AgentState, SampleBatch]:
    """Return an agent whose target critics differ from the online ones, and six transitions."""
    vector_env = create_env(env, parallel=2)
    agent = SACAgent.from_config({"network": {"torso": [8]}, **settings}, vector_env)
    state = moved_apart(fresh_state(agent, vector_env), "target_critic")
    return agent, state, transitions(vector_env, 6)


@pytest.mark.parametrize("num_critics", [1, 3])
def test_the_critics_learn_soft_values_of_drawn_actions(num_critics: int) -> None:
    agent, state, batch = _agent("Pendulum-v1", num_critics=num_critics, temperature=0.3)
    loss, losses = jax.jit(agent.critic_loss)(state.params.critic, state, batch, KEYS)
    policy = agent.policy(state, state.params.policy, batch.next_obs)
    actions, log_prob = policy.sample_and_log_prob(KEYS)
    next_q = np.asarray(agent.critic_network.apply(state.params.target_critic, batch.next_obs, actions))
    q = np.asarray(agent.critic_network.apply(state.params.critic, batch.obs, batch.actions))
    targets = batch.rewards + batch.extras.discounts * (next_q.min(axis=0) - 0.3 * log_prob)
    errors = np.asarray(targets) - q
    np.testing.assert_allclose(losses.td_errors, errors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, 0.5 * (batch.extras.weights * errors**2).mean(axis=1).sum(), rtol=1e-4)
    np.testing.assert_allclose(losses.critic_loss, 2 * loss, rtol=1e-6)


def test_discrete_values_are_expectations() -> None:
    agent, state, batch = _agent("CartPole-v1", temperature=0.3)
    _, losses = jax.jit(agent.critic_loss)(state.params.critic, state, batch, KEYS)
    probs = np.asarray(agent.policy(state, state.params.policy, batch.next_obs).probs)
    next_q = np.asarray(agent.critic_network.apply(state.params.target_critic, batch.next_obs)).min(axis=0)
    next_values = (probs * (next_q - 0.3 * np.log(probs))).sum(axis=1)
    q = np.asarray(agent.critic_network.apply(state.params.critic, batch.obs))[:, np.arange(6), batch.actions]
    targets = np.asarray(batch.rewards) + np.asarray(batch.extras.discounts) * next_values
    np.testing.assert_allclose(losses.td_errors, targets - q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ENVS)
def test_the_policy_trades_values_for_entropy(kind: str) -> None:
    agent, state, batch = _agent(ENVS[kind], temperature=0.3)
    loss, losses = jax.jit(agent.actor_loss)(state.params.policy, state, batch, KEYS)
    policy = agent.policy(state, state.params.policy, batch.obs)
    if kind == "discrete":
        q = agent.critic_network.apply(state.params.critic, batch.obs).min(axis=0)
        expected = (policy.probs * (0.3 * policy.log_probs - q)).sum(axis=1).mean()
        entropy = policy.entropy().mean()
    else:
        actions, log_prob = policy.sample_and_log_prob(KEYS)
        q = agent.critic_network.apply(state.params.critic, batch.obs, actions).min(axis=0)
        expected, entropy = (0.3 * log_prob - q).mean(), -log_prob.mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(losses.entropy, entropy, rtol=1e-5)


@pytest.mark.parametrize(("entropy", "sign"), [(-3.0, -1.0), (2.0, 1.0)])
def test_the_temperature_rises_while_entropy_is_short(entropy: float, sign: float) -> None:
    agent, _, _ = _agent("Pendulum-v1")
    assert agent.target_entropy == -1.0
    gradient, _ = jax.grad(agent.temperature_loss, has_aux=True)(jnp.float32(0.0), jnp.float32(entropy))
    np.testing.assert_allclose(gradient, entropy + 1.0)
    assert np.sign(gradient) == sign


def test_target_entropy_by_kind_of_action() -> None:
    box, discrete = _agent("Pendulum-v1")[0], _agent("CartPole-v1")[0]
    assert box.target_entropy == -box.distribution.size
    np.testing.assert_allclose(discrete.target_entropy, 0.5 * np.log(2))
    np.testing.assert_allclose(discrete.replace(target_entropy_scale=0.9).target_entropy, 0.9 * np.log(2))


@pytest.mark.parametrize("kind", ENVS)
def test_values_are_those_of_evaluated_actions(kind: str) -> None:
    agent, state, batch = _agent(ENVS[kind], num_critics=3)
    values = agent.values(state, state.params, batch.obs)
    actions, _ = agent.evaluate_actions(state, batch, jax.random.key(0))
    if kind == "discrete":
        expected = np.asarray(agent.critic_network.apply(state.params.critic, batch.obs))[:, np.arange(6), actions]
    else:
        expected = agent.critic_network.apply(state.params.critic, batch.obs, actions)
    assert values.shape == (3, 6)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_weights_may_be_of_each_critic() -> None:
    batch = SampleBatch(
        rewards=jnp.zeros(2), extras=PyTreeDict(discounts=jnp.ones(2), weights=jnp.array([[1.0, 0.0], [0.0, 3.0]]))
    )
    agent, _, _ = _agent("Pendulum-v1")
    q_values, zeros = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.zeros(2)
    loss, _ = agent.soft_bellman_loss(q_values, zeros, zeros, batch)
    np.testing.assert_allclose(loss, 0.5 * (1.0 / 2 + 3 * 16.0 / 2))


def test_critics_may_have_networks_of_their_own() -> None:
    network = {"torso": [8], "activation": "tanh"}
    agent, state, _ = _agent("Pendulum-v1", network=network, critic_network={"torso": [16, 4]})
    assert agent.critic_network.torso.activation == agent.policy_network.torso.activation == "tanh"
    critics, policy = state.params.critic["params"]["members"], state.params.policy["params"]
    assert critics["torso"]["Dense_0"]["kernel"].shape == (2, 3 + 1, 16)
    assert policy["torso"]["Dense_0"]["kernel"].shape == (3, 8)


def test_acting_draws_and_evaluating_does_not() -> None:
    agent, state, batch = _agent("Pendulum-v1")
    first, second = split_rows(KEYS)
    assert (agent.compute_actions(state, batch, first)[0] != agent.compute_actions(state, batch, second)[0]).all()
    policy = agent.policy(state, state.params.policy, batch.obs)
    np.testing.assert_allclose(agent.evaluate_actions(state, batch, first)[0], np.tanh(policy.loc), rtol=1e-5)


@pytest.mark.parametrize(
    ("cls", "env", "settings", "parts"),
    [
        (SACAgent, "Pendulum-v1", {"num_critics": 0}, ("agent.num_critics", "got 0")),
        (SACAgent, "Pendulum-v1", {"critic_network": [8]}, ("agent.critic_network", "mapping", "got [8]")),
        (SACAgent, "Pendulum-v1", {"critic_network": {"torsos": [8]}}, ("'torsos'", "'torso'")),
        (TQCAgent, "CartPole-v1", {}, ("TQC acts in flat Boxes", "Discrete(2)", "A2C, CrossQ, DQN")),
    ],
)
def test_impossible_agents_are_refused(cls: type[SACAgent], env: str, settings: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        cls.from_config(settings, create_env(env, parallel=2))

"""BRO solves problems with closed-form solutions; losses, exploration and settings match the paper."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.bro import BROAgent, BROWorkflow, factor_of_number, number_of_factor
from evorl.assembly import workflow_from_config
from evorl.envs import create_env
from evorl.execution.first_update import num_updates
from evorl.networks.blocks import Bro
from evorl.sample_batch import SampleBatch
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.config_files import composed
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, train_soft_actor_critic
from tests.support.small_workflows import SAC_CONFIG, fresh_state, moved_apart, small, transitions

KEYS = jax.random.split(jax.random.key(5), 6)


class TestContract(WorkflowContract):
    workflow = BROWorkflow
    has_other_products = True  # orthogonal initial weights after the reset
    SMALL = {
        **SAC_CONFIG,
        "resets": [5],  # in the middle of the contract's runs
        "agent": {
            "network": {"torso": [8, {"bro": 1}], "orthogonal": False},
            "critic_network": {"torso": [8, {"bro": 1}]},
            "num_atoms": 5,
        },
    }


class TestAgent(AgentContract):
    workflow = BROWorkflow
    settings = TestContract.SMALL["agent"]


class TestProbes(ActorCriticProbes):
    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls) -> tuple:
        return train_soft_actor_critic(
            BROWorkflow,
            {"num_atoms": 5, "critic_network": {"torso": [64, 64]}},
            continuous=True,
            runs_long=True,
            resets=(),
            tau=0.05,
            total_timesteps=16 * 1200,
        )


def _agent(**settings: Any) -> tuple[BROAgent, AgentState, SampleBatch]:
    """Return an agent whose target critics and shifts differ from the initial ones, and six transitions."""
    env = create_env("Pendulum-v1", parallel=2)
    agent = BROAgent.from_config({"network": {"torso": [8]}, "num_atoms": 4, "temperature": 0.3, **settings}, env)
    return agent, moved_apart(fresh_state(agent, env), "target_critic", "shift"), transitions(env, 6)


def _quantile_huber(errors: np.ndarray, fraction: float) -> np.ndarray:
    size = np.abs(errors)
    huber = np.where(size <= 1.0, 0.5 * size**2, size - 0.5)
    return np.abs(fraction - (errors < 0.0)) * huber


def test_targets_are_the_means_of_each_quantile_over_critics() -> None:
    """Not the minimum over critics, and not the mixture of their quantiles; losses are summed over quantiles."""
    agent, state, batch = _agent(critic_network={"torso": [8]})
    loss, losses = jax.jit(agent.critic_loss)(state.params.critic, state, batch, KEYS)
    actions, log_prob = agent.policy(state, state.params.policy, batch.next_obs).sample_and_log_prob(KEYS)
    next_atoms = np.asarray(agent.critic_network.apply(state.params.target_critic, batch.next_obs, actions))
    atoms = np.asarray(agent.critic_network.apply(state.params.critic, batch.obs, batch.actions))
    expected = 0.0
    for i in range(6):
        pooled = 0.5 * (next_atoms[0, i] + next_atoms[1, i])
        targets = np.asarray(batch.rewards[i] + batch.extras.discounts[i] * (pooled - 0.3 * log_prob[i]))
        for critic in range(2):
            np.testing.assert_allclose(
                losses.td_errors[critic, i], targets.mean() - atoms[critic, i].mean(), rtol=1e-4, atol=1e-5
            )
            for m in range(4):
                errors = targets - atoms[critic, i, m]
                expected += batch.extras.weights[i] / 6 * _quantile_huber(errors, (2 * m + 1) / 8).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_the_policy_follows_the_mean_over_critics() -> None:
    agent, state, batch = _agent()
    loss, _ = jax.jit(agent.actor_loss)(state.params.policy, state, batch, KEYS)
    actions, log_prob = agent.policy(state, state.params.policy, batch.obs).sample_and_log_prob(KEYS)
    atoms = agent.critic_network.apply(state.params.critic, batch.obs, actions)
    np.testing.assert_allclose(loss, (0.3 * log_prob - atoms.mean(axis=(0, 2))).mean(), rtol=1e-5)


def test_standard_deviations_are_bounded_smoothly() -> None:
    """``exp`` of ``tanh`` within [-10, 2]: outputs far outside still have distinct deviations, unlike clipped ones."""
    agent, state, batch = _agent()
    far = jax.tree.map(lambda x: 3.0 * x, state.params.policy)
    raw = np.asarray(agent.policy_network.apply(far, batch.obs))[:, 1]
    policy = agent.policy(state, far, batch.obs)
    np.testing.assert_allclose(policy.scale[:, 0], np.exp(-10.0 + 6.0 * (1.0 + np.tanh(raw))), rtol=1e-5)


def test_exploration_shifts_the_means_and_narrows_the_deviation() -> None:
    agent, state, batch = _agent()
    policy = agent.policy(state, state.params.policy, batch.obs)
    optimistic, divergence = agent.optimistic_policy(state, state.params.shift, batch.obs)
    shifts = np.asarray(agent.shift_network.apply(state.params.shift, batch.obs, policy.loc))
    assert np.abs(shifts).min() > 1e-3
    np.testing.assert_allclose(optimistic.loc, policy.loc + shifts, rtol=1e-5)
    np.testing.assert_allclose(optimistic.scale, 0.75 * policy.scale, rtol=1e-5)
    # The divergence has the deviation of the policy, not the smaller one.
    np.testing.assert_allclose(divergence, optimistic.replace(scale=policy.scale).kl(policy), rtol=1e-3, atol=1e-6)
    acted, _ = agent.compute_actions(state, batch, KEYS)
    np.testing.assert_allclose(acted, optimistic.sample(KEYS), rtol=1e-5)
    greedy, _ = agent.evaluate_actions(state, batch, KEYS)
    np.testing.assert_allclose(greedy, np.tanh(policy.loc), rtol=1e-5)


def test_the_optimistic_policy_seeks_disagreement_near_the_policy() -> None:
    agent, state, batch = _agent(optimism=2.0, divergence_weight=0.7, min_log_std=-1.0)
    state = moved_apart(state, "critic")
    loss, losses = jax.jit(agent.shift_loss)(state.params.shift, state, batch, KEYS)
    optimistic, divergence = agent.optimistic_policy(state, state.params.shift, batch.obs)
    first, second = np.asarray(agent.critic_network.apply(state.params.critic, batch.obs, optimistic.sample(KEYS)))
    bonus = 2.0 * np.abs(first - second) / 2
    parts = np.array([-(first + second).mean() / 2, -bonus.mean(), 0.7 * divergence.mean()])
    assert np.abs(parts).min() > 0.01 * np.abs(parts).max()  # no part hides another
    np.testing.assert_allclose(loss, parts.sum(), rtol=1e-4)
    np.testing.assert_allclose(losses.divergence, divergence.mean(), rtol=1e-5)

    def loss_of(params: Any) -> jax.Array:
        return agent.shift_loss(state.params.shift, state.replace(params=params), batch, KEYS)[0]

    gradient = jax.jit(jax.grad(loss_of))(state.params)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(gradient.policy))


@pytest.mark.parametrize(("divergence", "sign"), [(0.2, -1.0), (0.01, 1.0)])
def test_a_divergence_above_its_target_lowers_the_optimism(divergence: float, sign: float) -> None:
    """The target 0.05 is per action dimension; steps go against the gradient."""
    agent, _, _ = _agent()
    number = jnp.float32(0.3)
    optimism = jax.grad(agent.optimism_loss, has_aux=True)(number, jnp.float32(divergence))[0]
    weight = jax.grad(agent.divergence_weight_loss, has_aux=True)(number, jnp.float32(divergence))[0]
    assert np.sign(-optimism) == sign == -np.sign(-weight)
    slope = jax.grad(factor_of_number)(number)
    np.testing.assert_allclose(optimism, slope * (divergence - 0.05), rtol=1e-4)


@pytest.mark.parametrize("factor", [1e-4, 0.25, 1.0, 1e3])
def test_factors_are_stored_as_numbers(factor: float) -> None:
    np.testing.assert_allclose(factor_of_number(number_of_factor(factor)), factor, rtol=1e-3)
    assert np.exp(-10.0) < float(factor_of_number(jnp.float32(-3.0))) < float(factor_of_number(jnp.float32(3.0)))


def test_the_optimistic_policy_is_updated_around_the_new_policy() -> None:
    workflow = small("bro", "Pendulum-v1", resets=[])
    state, batch = workflow.init(0), transitions(workflow.env, 4)
    keys, progress = jax.random.split(jax.random.key(0), 4), jnp.float32(0.0)
    last, _, losses = jax.jit(workflow.learn_from)(state.agent_state, state.opt_state, batch, keys, progress)
    actor_keys = jax.vmap(jax.random.split)(keys)[:, 1]
    shift_keys = jax.vmap(jax.random.split)(actor_keys)[:, 1]
    first = state.agent_state.params
    _, expected = jax.jit(workflow.agent.shift_loss)(first.shift, last, batch, shift_keys)
    np.testing.assert_allclose(losses.divergence, expected.divergence, rtol=1e-5)
    _, before = jax.jit(workflow.agent.shift_loss)(first.shift, state.agent_state, batch, shift_keys)
    assert not np.allclose(losses.divergence, before.divergence, rtol=1e-5)
    np.testing.assert_allclose(losses.optimism, 1.0, rtol=1e-4)
    assert float(last.params.optimism) != float(first.optimism)


def test_settings_are_those_published() -> None:
    workflow: Any = workflow_from_config(composed("agent=bro", "env=pendulum", "~experiment"))
    agent, critic = workflow.agent, workflow.agent.critic_network
    assert (critic.torso.layers, critic.num_critics, critic.num_atoms) == ((Bro(2, size=512),), 2, 100)
    assert agent.policy_network.torso.layers == agent.shift_network.torso.layers == (Bro(1, size=256),)
    assert agent.target_entropy == -0.5
    optimizers = (workflow.actor_optimizer, workflow.critic_optimizer)
    assert [(x.name, x.learning_rate, x.beta1, x.weight_decay) for x in optimizers] == 2 * [("adamw", 3e-4, None, None)]
    factors = (workflow.temperature_optimizer, workflow.factor_optimizer)
    assert [(x.name, x.learning_rate, x.beta1) for x in factors] == [("adam", 3e-4, 0.5), ("adam", 3e-5, 0.5)]
    numbers = (workflow.batch_size, workflow.updates_per_iteration, workflow.discount, workflow.tau)
    assert numbers == (128, 2, 0.99, 0.005)
    assert workflow.resets == (num_updates(workflow, 15_000),)  # the only one with two updates per step


@pytest.mark.parametrize(
    ("env", "settings", "parts"),
    [
        ("CartPole-v1", {}, ("BRO acts in flat Boxes", "Discrete(2)")),
        ("Pendulum-v1", {"num_atoms": 0}, ("agent.num_atoms", "got 0")),
        ("Pendulum-v1", {"optimism": 0.0}, ("agent.optimism", "0")),
        ("Pendulum-v1", {"divergence_weight": 1e4}, ("agent.divergence_weight", "1000")),
    ],
)
def test_impossible_options_are_refused(env: str, settings: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        BROAgent.from_config(settings, create_env(env, parallel=2))

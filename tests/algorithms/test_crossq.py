"""CrossQ solves problems with closed-form solutions; losses, statistics and policy delay match the paper."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.crossq import CrossQAgent, CrossQWorkflow
from evorl.assembly import workflow_from_config
from evorl.envs import create_env
from evorl.networks.blocks import BatchRenormalization, Dense
from evorl.networks.heads import apply_network
from evorl.networks.layers import STATISTICS
from evorl.networks.q_networks import apply_in_training
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.config_files import composed
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, train_soft_actor_critic
from tests.support.small_workflows import (
    BATCH_RENORM,
    SAC_CONFIG,
    arrays,
    assert_identical,
    fresh_state,
    moved_apart,
    small,
    transitions,
)
from tests.support.toy_envs import MASKED, NUM_ACTIONS

KEYS = jax.random.split(jax.random.key(5), 6)


class TestContract(WorkflowContract):
    workflow = CrossQWorkflow
    SMALL = {**SAC_CONFIG, "agent": {"network": BATCH_RENORM, "critic_network": BATCH_RENORM}}


class TestContractDiscrete(TestContract):
    env = "CartPole-v1"
    endless_env = ("Acrobot-v1", 100)


class TestAgent(AgentContract):
    workflow = CrossQWorkflow
    settings = TestContract.SMALL["agent"]


class TestAgentDiscrete(TestAgent):
    env_name = "CartPole-v1"


NORMALIZED = {"torso": ["batch_norm", {"dense": {"size": 8, "batch_norm": True}}]}
# The bias of the first normalization has no gradient, since the second one cancels it. Epsilon keeps adam from scaling
# up rounding errors, which differ between devices.
UNIT_NORM = {"projection": "unit_norm", "epsilon": 1e-4}
XQC_AGENT = {
    "network": {**NORMALIZED, "orthogonal": True},
    "critic_network": NORMALIZED,
    "target_critics": True,
    "values": "categorical",
    "num_atoms": 11,
    "support_low": -5.0,
    "support_high": 5.0,
}


class TestContractXQC(WorkflowContract):
    workflow = CrossQWorkflow
    has_other_products = True  # means of categorical values
    SMALL = {
        **SAC_CONFIG,
        "tau": 0.005,
        "reward_bound": 5.0,
        "actor_optimizer": UNIT_NORM,
        "critic_optimizer": UNIT_NORM,
        "agent": XQC_AGENT,
    }


class TestAgentXQC(AgentContract):
    workflow = CrossQWorkflow
    settings = XQC_AGENT


class TestProbes(ActorCriticProbes):
    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls) -> tuple:
        """Train with batch renormalization, which after warm-up equals evaluation up to noise in the statistics."""
        optimizer = Optimizer(learning_rate=Schedule(1e-2, 0.0), beta1=0.5)
        renorm = {"batch_renorm": {"warmup": 500, "momentum": 0.999}}
        return train_soft_actor_critic(
            CrossQWorkflow,
            {name: {"torso": [renorm, 32, renorm, 32, renorm]} for name in ("network", "critic_network")},
            continuous=True,
            tau=0.0,
            policy_delay=1,
            actor_optimizer=optimizer.replace(learning_rate=2e-3),
            critic_optimizer=optimizer,
            runs_long=True,
            total_timesteps=16 * 2800,
        )


def _agent(env_name: str = "Pendulum-v1", **settings: Any) -> tuple[CrossQAgent, AgentState, SampleBatch]:
    """Return an agent with non-trivial running statistics, and six transitions."""
    env = create_env(env_name, parallel=2)
    agent = CrossQAgent.from_config({**TestContract.SMALL["agent"], "temperature": 0.3, **settings}, env)
    state, batch = fresh_state(agent, env), transitions(env, 6)
    seen = {}
    for name, network, inputs in (
        ("policy", agent.policy_network, (batch.obs,)),
        (
            "critic",
            agent.critic_network,
            (batch.obs,) if agent.distribution.is_discrete else (batch.obs, batch.actions),
        ),
    ):
        seen[name] = state.extra_state[name]
        update = jax.jit(functools.partial(apply_in_training, network))
        for _ in range(100):
            _, seen[name] = update(state.params[name], seen[name], *inputs)
    return agent, state.replace(extra_state=state.extra_state.replace(**seen)), batch


def test_statistics_stand_apart_from_parameters() -> None:
    agent, state, batch = _agent()
    assert set(state.params) == {"policy", "critic", "log_temperature"}
    assert not [path for path in arrays(state.params) if STATISTICS in path or "mean" in path]
    fresh = state.replace(extra_state=jax.tree.map(jnp.zeros_like, state.extra_state))
    acted, _ = agent.evaluate_actions(state, batch, jax.random.key(0))
    assert not np.allclose(acted, agent.evaluate_actions(fresh, batch, jax.random.key(0))[0])
    alone, _ = agent.evaluate_actions(state, batch[:1], jax.random.key(0))
    np.testing.assert_allclose(alone, acted[:1], rtol=1e-5)  # other rows of the batch have no influence


def test_the_critics_see_both_ends_together() -> None:
    """Critic losses equal a pass over all twelve rows, with shared statistics and without gradient through targets."""
    agent, state, batch = _agent(num_critics=3)
    (loss, losses), gradient = jax.jit(jax.value_and_grad(agent.critic_loss, has_aux=True))(
        state.params.critic, state, batch, KEYS
    )
    policy_params = {**state.params.policy, STATISTICS: state.extra_state.policy}
    policy = agent.distribution(apply_network(agent.policy_network, policy_params, batch.next_obs))
    next_actions, log_prob = policy.sample_and_log_prob(KEYS)
    rows = (jnp.concatenate([batch.obs, batch.next_obs]), jnp.concatenate([batch.actions, next_actions]))

    @jax.jit
    def q_values(params: Any) -> tuple[jax.Array, Any]:
        return apply_in_training(agent.critic_network, params, state.extra_state.critic, *rows)

    values, statistics = q_values(state.params.critic)
    next_q = np.asarray(values[:, 6:]).min(axis=0)
    targets = np.asarray(batch.rewards + batch.extras.discounts * (next_q - 0.3 * log_prob))
    errors = targets - np.asarray(values[:, :6])
    np.testing.assert_allclose(losses.td_errors, errors, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss, 0.5 * (batch.extras.weights * errors**2).mean(axis=1).sum(), rtol=1e-4)
    for seen, expected in zip(jax.tree.leaves(losses.statistics), jax.tree.leaves(statistics), strict=True):
        np.testing.assert_allclose(seen, expected, rtol=1e-5)
    fixed = jax.jit(
        jax.grad(lambda p: 0.5 * (batch.extras.weights * (targets - q_values(p)[0][:, :6]) ** 2).mean(axis=1).sum())
    )(state.params.critic)
    for own, expected in zip(jax.tree.leaves(gradient), jax.tree.leaves(fixed), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-2, atol=1e-4)


def test_the_critics_of_discrete_actions_see_both_ends_together() -> None:
    """TD errors belong to the taken actions; targets are exact expectations of values and entropy over the policy."""
    agent, state, batch = _agent("CartPole-v1", num_critics=3)
    (loss, losses), gradient = jax.jit(jax.value_and_grad(agent.critic_loss, has_aux=True))(
        state.params.critic, state, batch, KEYS
    )
    obs = jnp.concatenate([batch.obs, batch.next_obs])

    @jax.jit
    def q_values(params: Any) -> tuple[jax.Array, Any]:
        return apply_in_training(agent.critic_network, params, state.extra_state.critic, obs)

    values, statistics = q_values(state.params.critic)
    assert values.shape == (3, 12, 2)
    policy_params = {**state.params.policy, STATISTICS: state.extra_state.policy}
    logits = np.asarray(apply_network(agent.policy_network, policy_params, batch.next_obs), np.float64)
    targets = np.zeros(6)
    for n in range(6):
        probs = np.exp(logits[n]) / np.exp(logits[n]).sum()
        least = np.asarray(values[:, 6 + n]).min(axis=0)
        next_value = sum(p * (q - 0.3 * np.log(p)) for p, q in zip(probs, least, strict=True))
        targets[n] = batch.rewards[n] + batch.extras.discounts[n] * next_value

    def fixed_loss(params: Any) -> tuple[jax.Array, jax.Array]:
        errors = targets - q_values(params)[0][:, jnp.arange(6), batch.actions]
        return 0.5 * (batch.extras.weights * errors**2).mean(axis=1).sum(), errors

    (expected_loss, errors), fixed = jax.jit(jax.value_and_grad(fixed_loss, has_aux=True))(state.params.critic)
    np.testing.assert_allclose(losses.td_errors, errors, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)
    for own, expected in zip(jax.tree.leaves(gradient), jax.tree.leaves(fixed), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-5)
    for seen, expected in zip(jax.tree.leaves(losses.statistics), jax.tree.leaves(statistics), strict=True):
        np.testing.assert_allclose(seen, expected, rtol=1e-5)


def test_the_policy_loss_ignores_forbidden_actions() -> None:
    """With one allowed action per row, the entropy is 0, and the loss is minus the value of this action."""
    workflow = small("crossq", {"factory": MASKED, "max_episode_steps": 10})
    agent, state = workflow.agent, workflow.init(0).agent_state
    mask = jax.nn.one_hot(jnp.array([0, 2, 1]), NUM_ACTIONS) > 0
    obs = PyTreeDict(observation=jax.random.normal(jax.random.key(2), (3, 3)), action_mask=mask)
    batch = SampleBatch(obs=obs, next_obs=obs)
    loss, losses = agent.actor_loss(state.params.policy, state, batch, KEYS[:3])
    values = agent.critics(state, state.params.critic, obs, None).min(axis=0)
    np.testing.assert_allclose(losses.entropy, 0.0, atol=1e-6)
    np.testing.assert_allclose(loss, -values[mask].mean(), rtol=1e-5)


def test_target_critics_have_their_own_statistics() -> None:
    """Targets are a pass of the target networks over all twelve rows, whose statistics are not copies."""
    agent, state, batch = _agent(target_critics=True)
    state = moved_apart(state, "target_critic")
    loss, losses = jax.jit(agent.critic_loss)(state.params.critic, state, batch, KEYS)
    next_actions, log_prob = agent.policy(state, state.params.policy, batch.next_obs).sample_and_log_prob(KEYS)
    rows = (jnp.concatenate([batch.obs, batch.next_obs]), jnp.concatenate([batch.actions, next_actions]))
    passes = {
        name: apply_in_training(agent.critic_network, state.params[name], state.extra_state[name], *rows)
        for name in ("critic", "target_critic")
    }
    next_q = np.asarray(passes["target_critic"][0][:, 6:]).min(axis=0)
    targets = np.asarray(batch.rewards + batch.extras.discounts * (next_q - 0.3 * log_prob))
    errors = targets - np.asarray(passes["critic"][0][:, :6])
    np.testing.assert_allclose(losses.td_errors, errors, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss, 0.5 * (batch.extras.weights * errors**2).mean(axis=1).sum(), rtol=1e-4)
    for name, (_, statistics) in passes.items():
        for seen, expected in zip(jax.tree.leaves(losses.statistics[name]), jax.tree.leaves(statistics), strict=True):
            np.testing.assert_allclose(seen, expected, rtol=1e-5)
    critic, target = (_flat(losses.statistics[name]) for name in ("critic", "target_critic"))
    assert not np.allclose(critic, target)
    assert not np.allclose(_flat(losses.statistics["target_critic"]), _flat(state.extra_state.target_critic))


def test_a_step_of_xqc_never_copies_statistics() -> None:
    """Target networks average parameters only; their statistics change, and differ from the critics' statistics."""
    fast = {"critic_optimizer": {**UNIT_NORM, "learning_rate": 0.1}, "tau": 0.5}
    workflow = TestContractXQC.make("Pendulum-v1", learning_starts=0, updates_per_iteration=1, **fast)
    state = workflow.init(0)
    for _ in range(4):
        before = state.agent_state
        _, state = workflow.step(state)
        after = state.agent_state
        averages = jax.tree.map(lambda t, c: 0.5 * (t + c), before.params.target_critic, after.params.critic)
        np.testing.assert_allclose(_flat(after.params.target_critic), _flat(averages), rtol=1e-5, atol=1e-6)
        assert not np.allclose(_flat(after.extra_state.target_critic), _flat(before.extra_state.target_critic))
    critic, target = (_flat(state.agent_state.extra_state[name]) for name in ("critic", "target_critic"))
    assert not np.allclose(critic, target, rtol=1e-3)


def test_the_shipped_settings_of_xqc() -> None:
    workflow: Any = workflow_from_config(composed("agent=xqc", "env=pendulum"))
    agent = workflow.agent
    for network, width in ((agent.policy_network, 256), (agent.critic_network, 512)):
        first, *layers = network.torso.layers
        assert first == BatchRenormalization(warmup=None)
        assert layers == 4 * [Dense(width, batch_norm=True)]
        assert network.torso.orthogonal
    assert (agent.target_entropy, agent.critic_network.num_atoms) == (-0.5, 101)
    optimizers = (workflow.actor_optimizer, workflow.critic_optimizer)
    assert [(x.beta1, x.projection) for x in optimizers] == [(0.9, "unit_norm")] * 2
    assert (workflow.policy_delay, workflow.reward_bound, agent.support_low, agent.support_high) == (3, 5.0, -5.0, 5.0)


def test_the_policy_learns_from_critics_at_rest() -> None:
    agent, state, batch = _agent()
    loss, losses = jax.jit(agent.actor_loss)(state.params.policy, state, batch, KEYS)
    outputs, statistics = apply_in_training(
        agent.policy_network, state.params.policy, state.extra_state.policy, batch.obs
    )
    actions, log_prob = agent.distribution(outputs).sample_and_log_prob(KEYS)
    critic = {**state.params.critic, STATISTICS: state.extra_state.critic}
    q_values = apply_network(agent.critic_network, critic, batch.obs, actions).min(axis=0)
    np.testing.assert_allclose(loss, (0.3 * log_prob - q_values).mean(), rtol=1e-4)
    for seen, expected in zip(jax.tree.leaves(losses.statistics), jax.tree.leaves(statistics), strict=True):
        np.testing.assert_allclose(seen, expected, rtol=1e-5)


def test_the_policy_waits() -> None:
    """Critics change at every update; policy, its statistics and temperature at the first, fourth, ... one."""
    workflow = small("crossq", "Pendulum-v1", learning_starts=0, updates_per_iteration=1)
    state = workflow.init(0)
    moved = []
    for _ in range(5):
        before = state.agent_state
        _, state = workflow.step(state)
        assert any(
            (arrays(state.agent_state.params.critic)[k] != v).any() for k, v in arrays(before.params.critic).items()
        )
        own = [(x.params.policy, x.params.log_temperature, x.extra_state.policy) for x in (before, state.agent_state)]
        same = {np.array_equal(a, b) for part in (0, 1, 2) for a, b in [(_flat(own[0][part]), _flat(own[1][part]))]}
        assert len(same) == 1
        moved.append(not same.pop())
    assert moved == [True, False, False, True, False]
    assert_identical(
        state.agent_state.extra_state.critic["members"]["torso"]["BatchRenorm_0"]["num_batches"], np.int32([5, 5])
    )


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def test_it_also_learns_without_batch_renormalization() -> None:
    workflow = small("crossq", "Pendulum-v1", agent={name: {"torso": [8]} for name in ("network", "critic_network")})
    _, state = workflow.step(workflow.step(workflow.init(0))[1])
    assert not jax.tree.leaves(state.agent_state.extra_state)


@pytest.mark.parametrize(
    ("env", "changes", "parts"),
    [
        ("CartPole-v1", {"tau": 0.005, "agent": XQC_AGENT}, ("values=categorical", "Discrete(2)", "values=expected")),
        ("Pendulum-v1", {"policy_delay": 0}, ("policy_delay", "got 0")),
        ("Pendulum-v1", {"tau": 0.005}, ("tau=0.005", "target_critics=false")),
        ("Pendulum-v1", {"agent": {"target_critics": True}}, ("tau=0", "target_critics=true")),
        ("Pendulum-v1", {"agent": {"network": {"torso": ["batch_nrm"]}}}, ("batch_nrm", "batch_norm")),
    ],
)
def test_impossible_options_are_refused(env: str, changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("crossq", env, **changes)

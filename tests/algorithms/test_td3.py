"""TD3, DDPG and FastTD3 solve problems with closed-form solutions, and Pendulum; their losses match the papers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.td3 import TD3Agent, TD3Workflow
from evorl.envs import Discrete, create_env
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import (
    ACTION_NAMES,
    NAMES,
    Answers,
    every_probe,
    train_on_every_probe,
)
from tests.support.small_workflows import (
    SAC_CONFIG,
    assert_close,
    fresh_state,
    small,
)

NETWORK = {"torso": [64, 64]}
WIDTH = 0.25
GRID = {"num_atoms": 61, "support_low": -2.0, "support_high": 13.0}  # atoms at intervals of WIDTH
OU = {"kind": "ornstein_uhlenbeck", "scale": 0.2}
SETTINGS: dict[str, dict[str, Any]] = {
    "td3": {"network": NETWORK, "num_critics": 3, "target_noise": 0.05},
    "ddpg": {"network": NETWORK, "num_critics": 1, "target_noise": 0.0, "noise": OU},
    "fast_td3": {
        "network": {**NETWORK, "layer_norm": True},
        "values": "categorical",
        "target_noise": 0.001,
        "noise": {"scale": 0.001, "max_scale": 0.4},
        **GRID,
    },
}
FIELDS: dict[str, dict[str, Any]] = {
    "td3": {
        "prioritized": True,
        "priority_exponent": 0.3,
        "n_step": 2,
        "total_timesteps": 16 * 1500,
        "runs_long": True,
    },
    "ddpg": {"policy_delay": 1, "batch_size": 128, "total_timesteps": 16 * 1000},
    "fast_td3": {"n_step": 3, "total_timesteps": 16 * 500, "runs_long": True},
}


class TestContract(WorkflowContract):
    workflow = TD3Workflow
    SMALL = SAC_CONFIG


class TestAgent(AgentContract):
    workflow = TD3Workflow
    settings = TestContract.SMALL["agent"]


@pytest.fixture(scope="module", params=SETTINGS)
def trained(request: pytest.FixtureRequest) -> tuple:
    kind = request.param
    optimizer = Optimizer(learning_rate=Schedule(5e-3, 0.0))
    continuous, agent, state = train_on_every_probe(
        TD3Workflow,
        SETTINGS[kind],
        continuous=True,
        num_envs=16,
        updates_per_iteration=4,
        learning_starts=800.0,
        replay_capacity=8000,
        tau=0.03,
        actor_optimizer=optimizer.replace(learning_rate=6e-4),
        critic_optimizer=optimizer,
        **{"batch_size": 64, **FIELDS[kind]},
    )
    return kind, Answers(continuous, agent, state)


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_probe(trained: tuple, name: str) -> None:
    kind, answers = trained
    answers.assert_values_are_known(name, atol=WIDTH if kind == "fast_td3" else 0.0)


@pytest.mark.parametrize("name", ACTION_NAMES)
def test_actions_in_a_probe(trained: tuple, name: str) -> None:
    trained[1].assert_actions_are_best(name)


def _agent(**settings: Any) -> tuple[TD3Agent, AgentState]:
    """Return an agent for Pendulum whose target networks differ from the online ones."""
    env = create_env("Pendulum-v1", parallel=2)
    agent = TD3Agent.from_config({"network": {"torso": [8]}, **settings}, env)
    state = fresh_state(agent, env)
    leaves, structure = jax.tree.flatten(state.params)
    keys = jax.random.split(jax.random.key(104), len(leaves))
    # Small biases, so that each critic is the minimum somewhere.
    scales = [0.5 if x.shape[-1] > 1 or x.shape[-2:] == (8, 1) else 0.05 for x in leaves]
    moved = [x + s * jax.random.normal(key, x.shape) for x, s, key in zip(leaves, scales, keys, strict=True)]
    return agent, state.replace(params=jax.tree.unflatten(structure, moved))


@functools.partial(jax.jit, static_argnums=0)
def _batch(num_rows: int = 24) -> SampleBatch:
    keys = jax.random.split(jax.random.key(2), 5)
    return SampleBatch(
        obs=jax.random.normal(keys[0], (num_rows, 3)),
        actions=jax.random.uniform(keys[1], (num_rows, 1), minval=-1.0),
        rewards=jax.random.normal(keys[2], (num_rows,)),
        next_obs=jax.random.normal(keys[3], (num_rows, 3)),
        extras=PyTreeDict(
            discounts=0.9 * jax.random.bernoulli(keys[4], 0.7, (num_rows,)), weights=jnp.linspace(0.5, 1.0, num_rows)
        ),
    )


def _by_hand(params: Any, *inputs: Any) -> np.ndarray:
    """Return the outputs of a network with one hidden layer, computed in NumPy."""
    torso, head = params["torso"]["Dense_0"], params["head"]
    x = np.concatenate([np.asarray(value) for value in inputs], axis=-1)
    hidden = np.maximum(x @ np.asarray(torso["kernel"]) + np.asarray(torso["bias"]), 0.0)
    return hidden @ np.asarray(head["kernel"]) + np.asarray(head["bias"])


def _members(params: Any) -> list[Any]:
    members = params["params"]["members"]
    count = jax.tree.leaves(members)[0].shape[0]
    return [jax.tree.map(lambda x, i=i: x[i], members) for i in range(count)]


def _smoothed_actions(agent: TD3Agent, state: AgentState, batch: SampleBatch, keys: jax.Array) -> np.ndarray:
    """Return ``clip(pi'(s') + clip(noise))``, with each row's key for its noise."""
    rows = []
    for i, action in enumerate(np.tanh(_by_hand(state.params.target_policy["params"], batch.next_obs))):
        noise = agent.target_noise * np.asarray(jax.random.normal(keys[i], (1,)))
        rows.append(np.clip(action + np.clip(noise, -agent.target_noise_bound, agent.target_noise_bound), -1.0, 1.0))
    return np.stack(rows)


@pytest.mark.parametrize("num_critics", [1, 2, 3])
def test_the_target_is_the_least_of_the_slow_critics_at_a_smoothed_action(num_critics: int) -> None:
    agent, state = _agent(num_critics=num_critics, target_noise=0.5, target_noise_bound=0.3)
    batch, keys = _batch(), jax.random.split(jax.random.key(3), 24)
    loss, losses = jax.jit(agent.critic_loss)(state.params.critic, state, batch, keys)
    actions = _smoothed_actions(agent, state, batch, keys)
    assert (np.abs(actions - np.tanh(_by_hand(state.params.target_policy["params"], batch.next_obs))) > 0.29).any()
    next_q = np.stack([_by_hand(m, batch.next_obs, actions)[:, 0] for m in _members(state.params.target_critic)])
    assert len(set(next_q.argmin(axis=0))) == num_critics
    targets = np.asarray(batch.rewards) + np.asarray(batch.extras.discounts) * next_q.min(axis=0)
    q = np.stack([_by_hand(m, batch.obs, batch.actions)[:, 0] for m in _members(state.params.critic)])
    np.testing.assert_allclose(losses.td_errors, (targets - q).mean(axis=0), rtol=1e-4, atol=1e-5)
    expected = sum(np.mean(np.asarray(batch.extras.weights) * (targets - member) ** 2) for member in q)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_the_target_of_distributions_is_that_of_the_least_mean() -> None:
    agent, state = _agent(values="categorical", num_atoms=5, support_low=-2.0, support_high=2.0, target_noise=0.0)
    batch, keys = _batch(), jax.random.split(jax.random.key(3), 24)
    loss, losses = jax.jit(agent.critic_loss)(state.params.critic, state, batch, keys)
    support = np.linspace(-2.0, 2.0, 5)
    actions = _smoothed_actions(agent, state, batch, keys)
    slow = [np.asarray(_by_hand(m, batch.next_obs, actions)) for m in _members(state.params.target_critic)]
    probs = np.exp(slow) / np.exp(slow).sum(axis=-1, keepdims=True)  # [K, N, M]
    chosen = (probs @ support).argmin(axis=0)
    assert set(chosen) == {0, 1}
    logits = [_by_hand(m, batch.obs, batch.actions) for m in _members(state.params.critic)]
    log_probs = [x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in logits]
    expected, divergences = 0.0, np.zeros(24)
    for i, member in enumerate(chosen):
        target = np.zeros(5)
        for atom, prob in zip(support, probs[member, i], strict=True):
            place = np.clip(float(batch.rewards[i]) + float(batch.extras.discounts[i]) * atom, -2.0, 2.0) + 2.0
            low = min(int(place), 3)
            target[low] += prob * (low + 1 - place)
            target[low + 1] += prob * (place - low)
        for own in log_probs:
            expected -= float(batch.extras.weights[i]) * (target * own[i]).sum() / 24
            divergences[i] += (target * (np.log(np.maximum(target, 1e-12)) - own[i])).sum() / 2
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(losses.td_errors, divergences, rtol=1e-3, atol=1e-5)


def test_the_policy_climbs_the_first_critic() -> None:
    """The policy loss is ``-mean Q_1(s, pi(s))`` with its gradient through the action; other critics are unused."""
    agent, state = _agent(num_critics=2)
    batch = _batch()
    first, _ = _members(state.params.critic)
    actions = np.tanh(_by_hand(state.params.policy["params"], batch.obs))
    loss, _ = agent.actor_loss(state.params.policy, state, batch)
    np.testing.assert_allclose(loss, -_by_hand(first, batch.obs, actions).mean(), rtol=1e-4)
    gradient = jax.grad(lambda params: agent.actor_loss(params, state, batch)[0])(state.params.policy)
    step = jax.tree.map(lambda x: 1e-3 * x, gradient)
    lower, _ = agent.actor_loss(jax.tree.map(jnp.subtract, state.params.policy, step), state, batch)
    slope = sum(float(jnp.vdot(g, g)) for g in jax.tree.leaves(gradient))
    np.testing.assert_allclose(float(loss) - float(lower), 1e-3 * slope, rtol=0.05)


@pytest.mark.parametrize("values", [{}, {"values": "categorical", **GRID}])
def test_policy_and_slow_networks_wait_for_their_turn(values: dict) -> None:
    agent = {"network": {"torso": [8]}, **values}
    workflow = small("td3", "Pendulum-v1", learning_starts=0, updates_per_iteration=1, policy_delay=3, agent=agent)
    state = workflow.init(0)
    changed, losses = [], []
    for _ in range(7):
        before = state.agent_state.params
        metrics, state = workflow.step(state)
        changed.append({name for name, params in state.agent_state.params.items() if _differ(params, before[name])})
        losses.append(float(metrics.actor_loss))
    first, every = {"critic"}, {"policy", "critic", "target_policy", "target_critic"}
    assert changed == [first, first, every, first, first, every, first]
    assert losses[:2] == [0.0, 0.0]
    assert losses[2] == losses[3] == losses[4] != losses[5] == losses[6]


def _differ(tree: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return any(bool((x != y).any()) for x, y in pairs)


def test_the_slow_networks_follow_by_tau() -> None:
    workflow = small("td3", "Pendulum-v1", learning_starts=0, updates_per_iteration=1, policy_delay=1, tau=0.25)
    state = workflow.init(0)
    before = state.agent_state.params
    _, state = workflow.step(state)
    after = state.agent_state.params
    for name in ("policy", "critic"):
        expected = jax.tree.map(lambda t, o: 0.75 * t + 0.25 * o, before[f"target_{name}"], after[name])
        assert_close(after[f"target_{name}"], expected, 1e-5)


@pytest.mark.parametrize(
    ("env", "settings", "parts"),
    [
        ("CartPole-v1", {}, ("TD3 acts in flat, bounded Boxes", "Discrete(2)", "A2C, CrossQ, DQN")),
        ("Pendulum-v1", {"values": "categorical"}, ("num_atoms=null", "agent.values=categorical")),
        ("Pendulum-v1", {"num_atoms": 51}, ("num_atoms=51", "agent.values=expected")),
        (
            "Pendulum-v1",
            {"values": "quantile", "num_atoms": 5},
            ("agent.values", "categorical, expected", "'quantile'"),
        ),
        ("Pendulum-v1", {"num_critics": 0}, ("agent.num_critics", "got 0")),
        ("Pendulum-v1", {"noise": {"kind": "gausian"}}, ("'gausian'", "'gaussian'")),
        (
            "Pendulum-v1",
            {"noise": {"kind": "gaussian", "scale": 0.3, "max_scale": 0.2}},
            ("max_scale=0.2", "scale=0.3"),
        ),
        (
            "Pendulum-v1",
            {"values": "categorical", "num_atoms": 5, "support_low": 10.0},
            ("agent.support_low=10", "agent.support_high="),
        ),
    ],
)
def test_impossible_options_are_refused(env: str, settings: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        TD3Agent.from_config(settings, create_env(env, parallel=2))


def test_a_discrete_space_is_refused_by_the_workflow() -> None:
    assert isinstance(every_probe(False, 1).action_space, Discrete)
    with raises_naming(ValueError, "TD3 acts in flat, bounded Boxes", "Discrete(2)"):
        small("td3", "CartPole-v1")


def test_pendulum_is_learned() -> None:
    """A small network learns Pendulum in few steps, far above the -1200 of uniformly random actions."""
    workflow = TD3Workflow.build_from_config(
        {
            "env": "Pendulum-v1",
            "num_envs": 2,
            "devices": 1,
            "agent": {"network": {"torso": [64, 64], "orthogonal": True}},
            "batch_size": 128,
            "learning_starts": 500,
            "replay_capacity": 20_000,
            "total_timesteps": 12_000,
            "eval_interval": 0,
            "actor_optimizer": {"learning_rate": 2e-3},
            "critic_optimizer": {"learning_rate": 2e-3},
        }
    )
    assert float(workflow.evaluate(workflow.learn()).episode_return) >= -250.0

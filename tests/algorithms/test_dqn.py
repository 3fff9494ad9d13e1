"""DQN solves problems with closed-form solutions, with every part of Rainbow; its losses match the papers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.dqn import DQNAgent, DQNWorkflow
from evorl.envs import create_env
from evorl.networks.implicit_quantiles import sample_fractions
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ACTION_NAMES, NAMES, Answers, train_on_every_probe
from tests.support.probe_envs import PROBES
from tests.support.small_workflows import SAC_CONFIG, assert_identical, fresh_state, moved_apart, small

GRID = {"num_atoms": 61, "support_low": -2.0, "support_high": 13.0}  # atoms at intervals of 0.25
SETTINGS: dict[str, dict[str, Any]] = {
    "expected": {"network": {"torso": [32, 32], "orthogonal": True}, "huber_delta": 1.0},
    "quantile": {
        "network": {"torso": [32, 32], "orthogonal": True},
        "values": "quantile",
        "num_atoms": 8,
        "huber_delta": 1.0,
    },
    "implicit": {
        "network": {"torso": [32, 32], "orthogonal": True},
        "values": "implicit",
        "num_atoms": 8,
        "huber_delta": 1.0,
    },
    "rainbow": {
        "network": {"torso": [32, 32], "orthogonal": True, "heads": {"dueling": True, "noisy": True}},
        "values": "categorical",
        "epsilon": {"start": 0.0},
        **GRID,
    },
}
FIELDS: dict[str, dict[str, Any]] = {
    "rainbow": {"prioritized": True, "n_step": 3, "total_timesteps": 16 * 500, "runs_long": True}
}


class TestContract(WorkflowContract):
    workflow = DQNWorkflow
    SMALL = SAC_CONFIG
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


class TestAgent(AgentContract):
    workflow = DQNWorkflow
    settings = TestContract.SMALL["agent"]
    env_name = "CartPole-v1"


class TestMunchausenContract(TestContract):
    """Implicit quantiles with Munchausen targets."""

    SMALL = {
        **SAC_CONFIG,
        "agent": {
            "network": {"torso": [8], "heads": {"dueling": True, "noisy": True}},
            "values": "implicit",
            "num_atoms": 4,
            "huber_delta": 1.0,
            "munchausen": {},
        },
    }


@pytest.fixture(scope="module", params=SETTINGS)
def trained(request: pytest.FixtureRequest) -> tuple:
    kind = request.param
    continuous, agent, state = train_on_every_probe(
        DQNWorkflow,
        SETTINGS[kind],
        continuous=False,
        num_envs=16,
        rollout_length=1,
        updates_per_iteration=4,
        batch_size=64,
        learning_starts=800.0,
        replay_capacity=8000,
        tau=0.03,
        target_update_interval=1,
        optimizer=Optimizer(learning_rate=Schedule(1e-2, 0.0)),
        **{"total_timesteps": 16 * 800, **FIELDS.get(kind, {})},
    )
    return kind, Answers(continuous, agent, state, lambda s, obs: agent.q_values(s, s.params.online, obs).max(axis=-1))


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_probe(trained: tuple, name: str) -> None:
    kind, answers = trained
    answers.assert_values_are_known(name, atol=0.25 if kind == "rainbow" else 0.0)


@pytest.mark.parametrize("name", ACTION_NAMES)
def test_actions_in_a_probe(trained: tuple, name: str) -> None:
    trained[1].assert_actions_are_best(name)


def test_probes_have_time_limits_and_terminations() -> None:
    assert {probe.num_steps is None for probe in PROBES.values()} == {True, False}


def _agent(**settings: Any) -> tuple[DQNAgent, Any]:
    env = create_env("CartPole-v1", parallel=2)
    agent = DQNAgent.from_config({"network": {"torso": [8]}, **settings}, env)
    state = fresh_state(agent, env)
    return agent, moved_apart(state, "target")


@functools.partial(jax.jit, static_argnums=0)
def _batch(num_rows: int = 6) -> SampleBatch:
    keys = jax.random.split(jax.random.key(2), 4)
    return SampleBatch(
        obs=jax.random.normal(keys[0], (num_rows, 4)),
        actions=jnp.arange(num_rows) % 2,
        rewards=jax.random.normal(keys[1], (num_rows,)),
        next_obs=jax.random.normal(keys[2], (num_rows, 4)),
        extras=PyTreeDict(
            discounts=0.9 * jax.random.bernoulli(keys[3], 0.7, (num_rows,)), weights=jnp.linspace(0.5, 1.0, num_rows)
        ),
    )


@jax.jit
def _loss(agent: DQNAgent, state: Any, batch: SampleBatch) -> tuple[jax.Array, PyTreeDict]:
    return agent.loss(state.params.online, state, batch, jax.random.split(jax.random.key(3), len(batch)))


@pytest.mark.parametrize("double", [True, False])
def test_the_target_of_expected_values(double: bool) -> None:
    agent, state = _agent(double=double, huber_delta=None)
    batch = _batch()
    loss, losses = _loss(agent, state, batch)
    q = np.asarray(agent.q_values(state, state.params.online, batch.obs))
    next_q = np.asarray(agent.q_values(state, state.params.target, batch.next_obs))
    choosing = np.asarray(agent.q_values(state, state.params.online, batch.next_obs)) if double else next_q
    assert (choosing.argmax(axis=1) != next_q.argmax(axis=1)).any() == double
    expected = []
    for i, action in enumerate(np.asarray(batch.actions)):
        target = batch.rewards[i] + batch.extras.discounts[i] * next_q[i, choosing[i].argmax()]
        expected.append(float(target - q[i, action]))
    np.testing.assert_allclose(losses.td_errors, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, np.mean(batch.extras.weights * 0.5 * np.square(expected)), rtol=1e-4)


MUNCHAUSEN = {"weight": 0.7, "temperature": 0.3}


def _soft_target(agent: DQNAgent, state: Any, batch: SampleBatch) -> np.ndarray:
    """Return ``r + 0.7 clip(0.3 log pi(a|s), -1, 0) + discount 0.3 logsumexp(Q' / 0.3)`` of the target network."""
    q, next_q = (agent.q_values(state, state.params.target, obs) for obs in (batch.obs, batch.next_obs))
    log_policy = 0.3 * jax.nn.log_softmax(q / 0.3)[np.arange(len(batch)), batch.actions]
    soft = 0.3 * jax.nn.logsumexp(next_q / 0.3, axis=-1)
    return np.asarray(batch.rewards + 0.7 * jnp.clip(log_policy, -1.0, 0.0) + batch.extras.discounts * soft)


@pytest.mark.parametrize("double", [True, False])
def test_the_munchausen_target_of_expected_values(double: bool) -> None:
    """The policy is that of the target network, at both ends, with and without ``double``."""
    agent, state = _agent(double=double, huber_delta=None, munchausen=MUNCHAUSEN)
    batch = _batch()
    _, losses = _loss(agent, state, batch)
    chosen = np.asarray(agent.q_values(state, state.params.online, batch.obs))[np.arange(6), batch.actions]
    np.testing.assert_allclose(losses.td_errors, _soft_target(agent, state, batch) - chosen, rtol=1e-4, atol=1e-5)
    assert (np.abs(losses.td_errors - _loss(agent.replace(munchausen=None), state, batch)[1].td_errors) > 1e-3).any()


def test_the_munchausen_target_of_quantiles_has_that_mean() -> None:
    agent, state = _agent(values="quantile", num_atoms=5, huber_delta=1.0, munchausen=MUNCHAUSEN)
    batch = _batch()
    _, losses = _loss(agent, state, batch)
    chosen = np.asarray(agent.q_values(state, state.params.online, batch.obs))[np.arange(6), batch.actions]
    np.testing.assert_allclose(losses.td_errors, _soft_target(agent, state, batch) - chosen, rtol=1e-4, atol=1e-5)


def test_the_loss_of_implicit_quantiles_weights_errors_by_the_sampled_fractions() -> None:
    """By hand, for the fractions that the keys of the transitions give; midpoints would give another loss."""
    agent, state = _agent(values="implicit", num_atoms=4, huber_delta=0.5, double=False)
    batch = _batch()
    loss, losses = _loss(agent, state, batch)
    _, fractions, next_fractions = sample_fractions(jax.random.split(jax.random.key(3), 6), 4)
    quantiles = agent.outputs(state, state.params.online, batch.obs, None, fractions)
    next_quantiles = np.asarray(agent.outputs(state, state.params.target, batch.next_obs, None, next_fractions))
    rows, actions = np.arange(6), np.asarray(batch.actions)
    chosen, next_chosen = np.asarray(quantiles)[rows, actions], next_quantiles[rows, next_quantiles.mean(-1).argmax(-1)]
    targets = np.asarray(batch.rewards)[:, None] + np.asarray(batch.extras.discounts)[:, None] * next_chosen
    errors = targets[:, None, :] - chosen[:, :, None]  # [N, fraction, target]
    huber = np.where(np.abs(errors) <= 0.5, 0.5 * errors**2, 0.5 * (np.abs(errors) - 0.25)) / 0.5

    def loss_at(taus: np.ndarray) -> float:
        of_pairs = np.abs(taus[..., None] - (errors < 0.0)) * huber
        return float((np.asarray(batch.extras.weights) * of_pairs.mean(axis=-1).sum(axis=-1)).mean())

    np.testing.assert_allclose(loss, loss_at(np.asarray(fractions)), rtol=1e-4)
    assert abs(float(loss) - loss_at((np.arange(4) + 0.5) / 4 * np.ones((6, 1)))) > 1e-3
    np.testing.assert_allclose(losses.td_errors, targets.mean(-1) - chosen.mean(-1), rtol=1e-4, atol=1e-5)


def test_errors_may_count_by_their_size() -> None:
    agent, state = _agent(absolute_errors=True, huber_delta=None)
    batch = _batch()
    loss, losses = _loss(agent, state, batch)
    np.testing.assert_allclose(loss, np.mean(batch.extras.weights * np.abs(losses.td_errors)), rtol=1e-5)


def test_the_loss_of_categories_is_least_at_its_target() -> None:
    """The gradient on the logits is ``softmax - target``; the priority is the divergence, which is zero at
    the target.
    """
    agent, state = _agent(values="categorical", num_atoms=11, support_low=-2.0, support_high=2.0)
    batch = _batch()
    _, losses = _loss(agent, state, batch)
    assert (np.asarray(losses.td_errors) > 0).all()
    chosen = jax.nn.log_softmax(jax.random.normal(jax.random.key(4), (6, 11)))
    none = jnp.zeros(6)
    cross_entropy, divergence = agent._losses(chosen, none, none + 1.0, chosen)  # its own target: reward 0, discount 1
    np.testing.assert_allclose(divergence, 0.0, atol=1e-5)
    np.testing.assert_allclose(cross_entropy, -(jnp.exp(chosen) * chosen).sum(axis=-1), rtol=1e-5)


def test_dueling_values_are_value_plus_advantages() -> None:
    agent, state = _agent(network={"torso": [8], "heads": {"dueling": True}})
    obs = _batch().obs
    params = state.params.online["params"]
    hidden = jnp.maximum(obs @ params["torso"]["Dense_0"]["kernel"] + params["torso"]["Dense_0"]["bias"], 0.0)
    value = hidden @ params["state_value"]["kernel"] + params["state_value"]["bias"]
    advantages = hidden @ params["head"]["kernel"] + params["head"]["bias"]
    expected = value + advantages - advantages.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(agent.q_values(state, state.params.online, obs), expected, rtol=1e-4, atol=1e-6)


def test_exploration_ends_where_its_schedule_does() -> None:
    agent, state = _agent(epsilon={"start": 1.0, "end": 0.1, "share": 0.5})
    obs = jnp.broadcast_to(_batch().obs[:1], (20_000, 4))
    greedy = int(agent.evaluate_actions(state, SampleBatch(obs=obs[:1]), jax.random.key(0))[0][0])
    for progress, epsilon in ((0.0, 1.0), (0.25, 0.55), (0.5, 0.1), (1.0, 0.1)):
        acting = agent.at_progress(state, jnp.float32(progress))
        actions, _ = agent.compute_actions(acting, SampleBatch(obs=obs), jax.random.key(5))
        np.testing.assert_allclose((np.asarray(actions) != greedy).mean(), epsilon / 2, atol=0.015)


def test_a_noisy_network_explores_by_itself_and_is_evaluated_without_noise() -> None:
    agent, state = _agent(network={"torso": [8], "heads": {"noisy": True}}, epsilon={"start": 0.0})
    batch = SampleBatch(obs=jnp.zeros((200, 4)))
    rows = jax.random.split(jax.random.key(0), 200)
    assert len(np.unique(agent.compute_actions(state, batch, rows)[0])) == 2
    assert len(np.unique(agent.evaluate_actions(state, batch, rows)[0])) == 1


def test_the_slow_network_is_copied_at_intervals() -> None:
    workflow = small("dqn", learning_starts=0, updates_per_iteration=1, target_update_interval=3)
    state = workflow.init(0)
    online = [jax.tree.map(np.asarray, state.agent_state.params.online)]
    for copied in (0, 0, 0, 3, 3, 3, 6):
        _, state = workflow.step(state)
        online.append(jax.tree.map(np.asarray, state.agent_state.params.online))
        assert_identical(state.agent_state.params.target, online[copied])


@pytest.mark.parametrize(
    ("env", "settings", "parts"),
    [
        ("Pendulum-v1", {}, ("DQN acts in Discrete", "A2C, BRO, CrossQ")),
        ("CartPole-v1", {"values": "categorical"}, ("num_atoms=null", "agent.values=categorical")),
        ("CartPole-v1", {"values": "implicit"}, ("num_atoms=null", "agent.values=implicit")),
        ("CartPole-v1", {"values": "implicit", "num_atoms": 8}, ("agent.values=implicit", "agent.huber_delta")),
        ("CartPole-v1", {"munchausen": {"weight": 2.0}}, ("agent.munchausen.weight", "got 2")),
        (
            "CartPole-v1",
            {"munchausen": {}, "values": "categorical", "num_atoms": 11},
            ("agent.munchausen", "agent.values=categorical"),
        ),
        ("CartPole-v1", {"num_atoms": 51}, ("num_atoms=51", "agent.values=expected")),
        ("CartPole-v1", {"values": "categorical", "num_atoms": 1}, ("num_atoms", "at least 2")),
        ("CartPole-v1", {"network": {"heads": {"noisy": 1}}}, ("heads.noisy", "true or false, got 1")),
        ("CartPole-v1", {"absolute_errors": True, "huber_delta": 1.0}, ("absolute_errors=true", "huber_delta")),
        ("CartPole-v1", {"values": "categoric"}, ("'categoric'", "'categorical'")),
    ],
)
def test_impossible_options_are_refused(env: str, settings: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        DQNAgent.from_config(settings, create_env(env, parallel=2))

"""SAC solves problems with closed-form solutions, and Pendulum."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.envs import create_env
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.compilation import compiled_to_run_long
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, train_soft_actor_critic
from tests.support.small_workflows import SAC_CONFIG, arrays, fresh_state, moved_apart, small, transitions


class TestContract(WorkflowContract):
    workflow = SACWorkflow
    as_for_users = True
    SMALL = SAC_CONFIG


class TestAgent(AgentContract):
    workflow = SACWorkflow
    settings = TestContract.SMALL["agent"]


class TestProbes(ActorCriticProbes):
    @staticmethod
    def train(continuous: bool) -> tuple:
        return train_soft_actor_critic(SACWorkflow, {}, continuous)


CATEGORICAL = {"values": "categorical", "num_atoms": 11, "support_low": -5.0, "support_high": 5.0}


def test_every_atom_of_a_categorical_target_contains_the_entropy() -> None:
    """Losses equal a loop over transitions and atoms: ``r + discount (z - alpha log pi)`` of the least critic."""
    env = create_env("Pendulum-v1", parallel=2)
    settings = {**SAC_CONFIG["agent"], **CATEGORICAL, "temperature": 0.7, "num_critics": 3}
    agent = SACAgent.from_config(settings, env)
    batch, keys = transitions(env, 6), jax.random.split(jax.random.key(5), 6)
    state = moved_apart(fresh_state(agent, env), "critic", "target_critic")
    params, support = state.params, np.linspace(-5.0, 5.0, 11)
    actions, log_prob = agent.policy(state, params.policy, batch.next_obs).sample_and_log_prob(keys)
    outputs, next_outputs = (
        np.asarray(jax.nn.softmax(agent.critics(state, *inputs)))
        for inputs in (
            (params.critic, batch.obs, batch.actions),
            (params.target_critic, batch.next_obs, actions),
        )
    )
    assert (np.abs(log_prob) > 0.1).all()
    expected = np.zeros((3, 6))
    for n in range(6):
        least = next_outputs[np.argmin(next_outputs[:, n] @ support), n]
        target = np.zeros(11)
        for z, mass in zip(support, least, strict=True):
            atom = batch.rewards[n] + batch.extras.discounts[n] * (z - 0.7 * log_prob[n])
            place = np.clip(atom + 5.0, 0.0, 10.0)  # atoms are at distance 1
            low = int(np.floor(place))
            target[low] += mass * (1.0 - (place - low))
            target[min(low + 1, 10)] += mass * (place - low)
        np.testing.assert_allclose(target.sum(), 1.0, rtol=1e-5)
        expected[:, n] = -(target * np.log(outputs[:, n])).sum(axis=-1)
    loss, losses = jax.jit(agent.critic_loss)(params.critic, state, batch, keys)
    np.testing.assert_allclose(loss, (batch.extras.weights * expected).mean(axis=-1).sum(), rtol=1e-4)
    np.testing.assert_allclose(losses.q_value, (outputs @ support).mean(), rtol=1e-4, atol=1e-5)
    assert losses.td_errors.shape == (3, 6)


def test_the_policy_maximizes_the_least_expected_value() -> None:
    env = create_env("Pendulum-v1", parallel=2)
    agent = SACAgent.from_config({**SAC_CONFIG["agent"], **CATEGORICAL, "temperature": 0.7}, env)
    batch, keys = transitions(env, 6), jax.random.split(jax.random.key(5), 6)
    state = moved_apart(fresh_state(agent, env), "critic")
    actions, log_prob = agent.policy(state, state.params.policy, batch.obs).sample_and_log_prob(keys)
    values = jax.nn.softmax(agent.critics(state, state.params.critic, batch.obs, actions)) @ np.linspace(-5.0, 5.0, 11)
    loss, _ = jax.jit(agent.actor_loss)(state.params.policy, state, batch, keys)
    np.testing.assert_allclose(loss, (0.7 * log_prob - values.min(axis=0)).mean(), rtol=1e-4)
    assert agent.values(state, state.params, batch.obs).shape == (2, 6)


def test_policy_and_temperature_wait_for_their_turn() -> None:
    """With ``policy_delay=2``, they change at the first and third update; critics and targets at each."""
    workflow = small("sac", "Pendulum-v1", learning_starts=0, updates_per_iteration=1, policy_delay=2)
    state = workflow.init(0)
    changed = []
    for _ in range(4):
        before = state.agent_state.params
        _, state = workflow.step(state)
        after = state.agent_state.params
        changed.append({name for name in after if _differ(before[name], after[name])})
    always = {"critic", "target_critic"}
    assert changed == [always | {"policy", "log_temperature"}, always, always | {"policy", "log_temperature"}, always]


def _differ(first: Any, second: Any) -> bool:
    return any((arrays(first)[path] != x).any() for path, x in arrays(second).items())


def test_weights_are_projected_initially_and_after_each_update() -> None:
    unit_norm = {"projection": "unit_norm"}
    optimizers = {"actor_optimizer": unit_norm, "critic_optimizer": {**unit_norm, "learning_rate": 0.1}}
    workflow = small("sac", "Pendulum-v1", learning_starts=0, tau=0.5, **optimizers)
    state = workflow.init(0)
    assert not _differ(state.agent_state.params.critic, state.agent_state.params.target_critic)  # copies
    for names in (("policy", "critic", "target_critic"), ("policy", "critic")):
        kernels = {k: x for name in names for k, x in arrays({name: state.agent_state.params[name]}).items()}
        for x in (x for path, x in kernels.items() if "kernel" in path):
            np.testing.assert_allclose(np.linalg.norm(x, axis=-2), 1.0, rtol=1e-5)
        _, state = workflow.step(state)
    target = [x for path, x in arrays(state.agent_state.params.target_critic).items() if "kernel" in path]
    assert any(not np.allclose(np.linalg.norm(x, axis=-2), 1.0, rtol=1e-4) for x in target)  # averages, not projected


@pytest.mark.parametrize(
    ("env", "changes", "parts"),
    [
        ("CartPole-v1", {"agent": CATEGORICAL}, ("agent.values=categorical", "Discrete(2)", "values=expected")),
        ("Pendulum-v1", {"agent": {**CATEGORICAL, "num_atoms": None}}, ("num_atoms", "categorical")),
        ("Pendulum-v1", {"agent": {**CATEGORICAL, "support_low": 5.0}}, ("support_low=5", "support_high=5")),
        ("Pendulum-v1", {"policy_delay": 0}, ("policy_delay", "got 0")),
    ],
)
def test_impossible_options_are_refused(env: str, changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("sac", env, **changes)


@compiled_to_run_long()
def test_pendulum_is_learned() -> None:
    """A small network learns Pendulum in few steps, far above the -1200 of uniformly random actions."""
    rates = {f"{part}_optimizer": {"learning_rate": 2e-3} for part in ("actor", "critic", "temperature")}
    workflow = SACWorkflow.build_from_config(
        {
            "env": "Pendulum-v1",
            "num_envs": 2,
            "devices": 1,
            "agent": {"network": {"torso": [64, 64]}},
            "batch_size": 128,
            "learning_starts": 500,
            "replay_capacity": 20_000,
            "total_timesteps": 12_000,
            "eval_interval": 0,
            **rates,
        }
    )
    assert float(workflow.evaluate(workflow.learn()).episode_return) >= -250.0

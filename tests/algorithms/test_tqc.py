"""TQC solves problems with closed-form solutions; its losses match the paper."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.tqc import TQCAgent, TQCWorkflow
from evorl.envs import create_env
from evorl.sample_batch import SampleBatch
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, train_soft_actor_critic
from tests.support.small_workflows import SAC_CONFIG, fresh_state, moved_apart, transitions

KEYS = jax.random.split(jax.random.key(5), 6)
# Values are unbiased without truncation; with it, where the returns are deterministic.
SETTINGS = {
    "none dropped": {"num_atoms": 5, "dropped_atoms": None},
    "one of five dropped": {"num_atoms": 5, "dropped_atoms": 1},
}


class TestContract(WorkflowContract):
    workflow = TQCWorkflow
    SMALL = {**SAC_CONFIG, "agent": {"network": {"torso": [8]}, "num_critics": 2}}


class TestAgent(AgentContract):
    workflow = TQCWorkflow
    settings = TestContract.SMALL["agent"]


class TestProbes(ActorCriticProbes):
    @pytest.fixture(scope="class", params=SETTINGS)
    @classmethod
    def trained(cls, request: pytest.FixtureRequest) -> tuple:
        return train_soft_actor_critic(
            TQCWorkflow,
            {"num_critics": 2, **SETTINGS[request.param]},
            continuous=True,
            runs_long=True,
            tau=0.05,
            total_timesteps=16 * 1800,
        )


def _agent(**settings: Any) -> tuple[TQCAgent, AgentState, SampleBatch]:
    env = create_env("Pendulum-v1", parallel=2)
    agent = TQCAgent.from_config({"network": {"torso": [8]}, "temperature": 0.3, **settings}, env)
    state = fresh_state(agent, env)
    return agent, moved_apart(state, "target_critic"), transitions(env, 6)


def _quantile_huber(errors: np.ndarray, fraction: float) -> np.ndarray:
    size = np.abs(errors)
    huber = np.where(size <= 1.0, 0.5 * size**2, size - 0.5)
    return np.abs(fraction - (errors < 0.0)) * huber


@pytest.mark.parametrize("dropped", [None, 1, 3])
def test_the_targets_are_the_least_atoms_of_all_critics(dropped: int | None) -> None:
    """Targets are the smallest of the 12 pooled atoms of 3 critics; every atom regresses on every target."""
    agent, state, batch = _agent(num_critics=3, num_atoms=4, dropped_atoms=dropped)
    loss, losses = jax.jit(agent.critic_loss)(state.params.critic, state, batch, KEYS)
    actions, log_prob = agent.policy(state, state.params.policy, batch.next_obs).sample_and_log_prob(KEYS)
    next_atoms = np.asarray(agent.critic_network.apply(state.params.target_critic, batch.next_obs, actions))
    atoms = np.asarray(agent.critic_network.apply(state.params.critic, batch.obs, batch.actions))
    expected, kept = 0.0, 12 - 3 * (dropped or 0)
    for i in range(6):
        pooled = np.sort(next_atoms[:, i].reshape(-1))[:kept]
        targets = batch.rewards[i] + batch.extras.discounts[i] * (pooled - 0.3 * log_prob[i])
        for critic in range(3):
            np.testing.assert_allclose(
                losses.td_errors[critic, i], targets.mean() - atoms[critic, i].mean(), rtol=1e-4, atol=1e-5
            )
            for m in range(4):
                errors = np.asarray(targets) - atoms[critic, i, m]
                expected += batch.extras.weights[i] / 6 * _quantile_huber(errors, (2 * m + 1) / 8).sum() / (kept * 4)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_the_policy_follows_the_mean_of_all_atoms() -> None:
    agent, state, batch = _agent(num_critics=3, num_atoms=4)
    loss, _ = jax.jit(agent.actor_loss)(state.params.policy, state, batch, KEYS)
    actions, log_prob = agent.policy(state, state.params.policy, batch.obs).sample_and_log_prob(KEYS)
    atoms = agent.critic_network.apply(state.params.critic, batch.obs, actions)
    assert atoms.shape == (3, 6, 4)
    np.testing.assert_allclose(loss, (0.3 * log_prob - atoms.mean(axis=(0, 2))).mean(), rtol=1e-5)
    mode, _ = agent.evaluate_actions(state, batch, jax.random.key(0))
    expected = agent.critic_network.apply(state.params.critic, batch.obs, mode).mean(axis=-1)
    np.testing.assert_allclose(agent.values(state, state.params, batch.obs), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("env", "settings", "parts"),
    [
        ("CartPole-v1", {}, ("TQC acts in flat Boxes", "Discrete(2)", "A2C, CrossQ, DQN, DisCor")),
        ("Pendulum-v1", {"num_atoms": 0}, ("agent.num_atoms", "got 0")),
        ("Pendulum-v1", {"num_atoms": 3, "dropped_atoms": 3}, ("dropped_atoms=3", "agent.num_atoms=3")),
        ("Pendulum-v1", {"dropped_atoms": -1}, ("agent.dropped_atoms", "got -1")),
    ],
)
def test_impossible_options_are_refused(env: str, settings: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        TQCAgent.from_config(settings, create_env(env, parallel=2))

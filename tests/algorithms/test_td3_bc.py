"""TD3+BC: the policy loss matches the paper, and its weight interpolates between imitation and TD3."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.algorithms.td3 import TD3Workflow
from evorl.algorithms.td3_bc import TD3BCAgent, TD3BCWorkflow
from evorl.config.values import declared_ranges
from evorl.envs import create_env
from evorl.execution.collector import iterate
from tests.conformance.agent import AgentContract
from tests.support.errors import raises_naming
from tests.support.recorded_pendulum import recorded_pendulum
from tests.support.small_workflows import SAC_CONFIG, assert_identical, fresh_state, moved_apart, transitions

SMALL = {**SAC_CONFIG, "replay_capacity": 256, "replay": {"load": recorded_pendulum(), "other_env": True}}


class TestAgent(AgentContract):
    workflow = TD3BCWorkflow
    settings = SMALL["agent"]


def test_the_loss_by_hand() -> None:
    env = create_env("Pendulum-v1", parallel=2)
    agent = TD3BCAgent.from_config({"network": {"torso": [8]}, "normalize_obs": False, "value_weight": 1.5}, env)
    state, batch = moved_apart(fresh_state(agent, env), "critic"), transitions(env, 6)
    actions = np.tanh(np.asarray(agent.policy_network.apply(state.params.policy, batch.obs)))
    values = np.asarray(agent.critic_network.apply(state.params.critic, batch.obs, actions))[0]
    distance = ((actions - np.asarray(batch.actions)) ** 2).mean()
    loss, _ = agent.actor_loss(state.params.policy, state, batch)
    np.testing.assert_allclose(loss, distance - 1.5 * values.mean() / np.abs(values).mean(), rtol=1e-5)
    assert declared_ranges(TD3BCAgent)["target_noise"]  # includes the settings of TD3


def test_it_imitates_without_values_and_learns_offline() -> None:
    """Without weight on values, the policy learns the mean of the recorded actions."""
    config = {**SMALL, "env": {"name": "Pendulum-v1"}, "agent": {"network": {"torso": [16]}, "value_weight": 0.0}}
    workflow = TD3BCWorkflow.build_from_config(
        {
            **config,
            "updates_per_iteration": 50,
            "policy_delay": 1,
            "batch_size": 128,
            "actor_optimizer": {"learning_rate": 1e-2},
        }
    )
    assert workflow.offline
    assert workflow.timesteps_per_iteration == 50
    state = workflow.init(0)
    assert int(state.replay_state.size) * workflow.env.num_envs == 256
    stored = jax.tree.map(jnp.copy, state.replay_state)
    env_state = jax.tree.map(jnp.copy, state.env_state)
    _, state = iterate(workflow, state, 8)
    actions, _ = workflow.agent.evaluate_actions(
        state.agent_state, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stored.data), jax.random.key(0)
    )
    assert np.abs(np.asarray(actions).mean() - np.asarray(stored.data.actions).mean()) < 0.1
    assert np.abs(np.asarray(actions)).mean() < 0.25
    assert_identical((stored, env_state), (state.replay_state, state.env_state))  # nothing is collected


def test_offline_needs_recorded_transitions() -> None:
    config = {"env": {"name": "Pendulum-v1"}, "devices": 1}
    with raises_naming(ValueError, "replay.load", "evorl save-replay"):
        TD3BCWorkflow.build_from_config(config)
    with raises_naming(ValueError, "updates_per_iteration=0.5", "integer", "offline=true"):
        TD3BCWorkflow.build_from_config({**SMALL, **config, "updates_per_iteration": 0.5})
    with raises_naming(ValueError, "offline=true", "remove actors"):
        TD3Workflow.build_from_config({**SMALL, **config, "offline": True, "actors": {"kind": "inline", "count": 1}})
    assert not TD3BCWorkflow.build_from_config({**config, "offline": False}).offline

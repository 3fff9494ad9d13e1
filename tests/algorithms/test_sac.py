"""SAC learns what can be known in closed form, and Pendulum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.envs.wrappers import VmapWrapper
from evorl.ops.optimization import Optimizer
from evorl.sample_batch import SampleBatch
from tests.every_probe import DISCOUNT, NAMES, every_probe, questions

KINDS = {"discrete": False, "continuous": True}


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> tuple[bool, SACAgent, AgentState]:
    continuous = KINDS[request.param]
    env = every_probe(continuous, num_envs=16)
    # Entropy hardly counts, so that soft values are the values.
    settings = {"network": {"torso": [64, 64]}, "temperature": 1e-3, "adaptive_temperature": False}
    optimizer = Optimizer(learning_rate=3e-3, final_learning_rate=0.0)
    workflow = SACWorkflow(
        env=env,
        eval_env=VmapWrapper(env.env, 4),
        agent=SACWorkflow.make_agent(settings, env),
        discount=DISCOUNT,
        updates_per_iteration=4,
        batch_size=256,
        learning_starts=1600.0,
        replay_capacity=16_000,
        tau=0.02,
        actor_optimizer=optimizer.replace(learning_rate=1e-3),
        critic_optimizer=optimizer,
        total_timesteps=16 * 1000,
        eval_interval=0.0,
    )
    state = workflow.learn()
    return continuous, workflow.agent, state.agent_state


def _values(agent: SACAgent, agent_state: AgentState, obs: jax.Array) -> Any:
    """Of the critics, ``[K, N]``, at the actions of the policy."""
    actions, _ = agent.evaluate_actions(agent_state, SampleBatch(obs=obs), jax.random.key(0))
    critic = agent_state.params.critic
    if agent.distribution.is_discrete:
        q_values = agent.critic_network.apply(critic, obs)
        return jnp.take_along_axis(q_values, actions[None, :, None], axis=-1)[..., 0]
    return agent.critic_network.apply(critic, obs, actions)


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_probe(trained: tuple, name: str) -> None:
    continuous, agent, agent_state = trained
    obs, values, _ = questions(name, continuous)
    for learned in _values(agent, agent_state, obs):
        np.testing.assert_allclose(learned, values, rtol=0.01)


@pytest.mark.parametrize("name", ["best_action", "observation_dependent_action"])
def test_actions_in_a_probe(trained: tuple, name: str) -> None:
    continuous, agent, agent_state = trained
    obs, _, best = questions(name, continuous)
    actions, _ = agent.evaluate_actions(agent_state, SampleBatch(obs=obs), jax.random.key(0))
    np.testing.assert_allclose(actions, best, atol=0.05)


def test_target_entropy_by_kind_of_action() -> None:
    box = SACWorkflow.make_agent({}, every_probe(True, num_envs=1))
    discrete = SACWorkflow.make_agent({}, every_probe(False, num_envs=1))
    num_actions = discrete.distribution.size
    assert box.target_entropy == -box.distribution.size
    np.testing.assert_allclose(discrete.target_entropy, 0.5 * np.log(num_actions))
    np.testing.assert_allclose(discrete.replace(target_entropy_scale=0.9).target_entropy, 0.9 * np.log(num_actions))


def test_pendulum_is_learned() -> None:
    """By a small network in few steps; uniformly random actions get -1200 on average."""
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

"""The random baseline acts in every environment and learns nothing."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.algorithms.random_agent import RandomAgentWorkflow
from tests.support.small_workflows import EPISODE_STEPS


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_episodes_of_random_actions_are_counted(env: str) -> None:
    workflow = RandomAgentWorkflow.build_from_config(
        {
            "env": {"name": env, "max_episode_steps": EPISODE_STEPS},
            "num_envs": 4,
            "devices": 1,
            "rollout_length": 2 * EPISODE_STEPS,
            "total_timesteps": 160,
            "eval_interval": 80,
            "eval_episodes": 4,
        }
    )
    state = workflow.learn(key=1)
    assert int(state.iterations) == 2
    assert jax.tree.leaves(state.agent_state) == []
    metrics, _ = workflow.step(state)
    assert float(metrics.episodes.count) >= 8.0
    assert np.isfinite(float(metrics.reward))

"""A notice about flattened images appears exactly when images are flattened."""

from __future__ import annotations

from typing import Any

import pytest

from evorl.agents.flat_images import describe_flat_images
from evorl.assembly import workflow_class
from evorl.envs import create_env


def _agent(workflow: str, torso: Any, env: Any) -> Any:
    return workflow_class(workflow).make_agent({"network": {"torso": torso}}, env)


@pytest.mark.parametrize("workflow", ["evorl.algorithms.ppo.PPOWorkflow", "evorl.algorithms.dqn.DQNWorkflow"])
def test_a_network_without_convolutions_is_told(workflow: str) -> None:
    env = create_env("gymnax/Breakout-MinAtar", parallel=2)
    message = describe_flat_images(_agent(workflow, [8], env), env.obs_space)
    assert message is not None
    assert message.startswith(
        "Observations are images [10, 10, 4], which a network without convolutions sees as one vector"
    )
    assert "of 400 numbers" in message
    assert "agent.network.torso=<one of minatar, nature" in message
    assert describe_flat_images(_agent(workflow, "minatar", env), env.obs_space) is None


def test_vectors_are_no_images() -> None:
    env = create_env("gymnax/CartPole-v1", parallel=2)
    assert describe_flat_images(_agent("evorl.algorithms.ppo.PPOWorkflow", [8], env), env.obs_space) is None
    assert describe_flat_images(None, env.obs_space) is None

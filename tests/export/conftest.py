"""A short training run shared by the export tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evorl.runs.folder import RunFolder
from tests.support.command_line import QUIET


@pytest.fixture
def trained(train_once: Callable[..., RunFolder]) -> RunFolder:
    """Train a run of two seeds in CartPole."""
    return train_once(
        *"agent=ppo env=cartpole num_envs=4 rollout_length=8 num_minibatches=2 num_epochs=1 num_seeds=2".split(),
        *"agent.network.torso=[8] total_timesteps=64 log_interval=0 eval_interval=64 eval_episodes=2".split(),
        "env.max_episode_steps=10",
        *QUIET,
    )

"""One short training that the tests of commands share."""

from __future__ import annotations

import sys

import pytest

from evorl.cli import main as cli
from evorl.runs.folder import RunFolder

SMALL = (
    "agent=ppo env=cartpole num_envs=4 rollout_length=8 num_minibatches=2 num_epochs=1 agent.network.torso=[8] "
    "total_timesteps=64 log_interval=0 eval_interval=64 eval_episodes=2 env.max_episode_steps=10 devices=1 "
    "num_seeds=2 env_chunk=null compilation_cache=false recorders.tensorboard=false "
    "recorders.learning_curve=false recorders.progress=false"
).split()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two seeds in CartPole."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "argv", ["evorl", *SMALL, f"runs_folder={root}"])
        cli.train()
    return RunFolder.latest(root)

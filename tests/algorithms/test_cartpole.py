"""Every algorithm for discrete actions solves CartPole with its shipped config; DQN with its defaults, see CHANGES."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hydra import compose

from evorl.assembly import workflow_from_config
from evorl.cli.composition import initialize_configs
from evorl.runs.recorder import Recorder
from tests.support.compilation import compiled_to_run_long

# Evaluation return that the median seed must reach. Of thirty-two seeds, one or two end at a bad moment; which ones
# depends on the rounding of the processor.
ASKED = {"a2c": 475.0, "dqn": 475.0, "impala": 475.0, "ppo": 475.0, "pqn": 475.0, "reinforce": 400.0, "trpo": 475.0}
NUM_SEEDS = 3
# A smaller network than in its experiment, where one seed takes a minute.
CHANGES = {"dqn": ["~experiment", "n_step=3", "total_timesteps=150000"]}


class Watch(Recorder):
    """Recorder that notices when an evaluation reaches the required return."""

    def __init__(self, required: float) -> None:
        self.required, self.is_reached = required, False

    def write(self, row: Any) -> None:
        """Check a row of metrics that contains an evaluation."""
        if "eval/episode_return" in row:
            returns = [row[f"eval/episode_return_seed_{i}"] for i in range(NUM_SEEDS)]
            self.is_reached = float(np.median(returns)) >= self.required


@pytest.mark.parametrize("agent", ASKED)
@compiled_to_run_long()
def test_cartpole_is_solved(agent: str) -> None:
    """Every agent reaches the required return within its config's steps; training stops as soon as it does."""
    settings = [f"agent={agent}", "env=cartpole", f"num_seeds={NUM_SEEDS}", "devices=1", "eval_interval=25000"]
    with initialize_configs():
        config = compose("config", [*settings, *CHANGES.get(agent, [])])
    workflow, watch = workflow_from_config(config), Watch(ASKED[agent])
    assert workflow.total_timesteps <= 500_000
    metrics = workflow.evaluate(workflow.learn(recorder=watch, should_stop=lambda: watch.is_reached))
    assert metrics.episode_return.size == NUM_SEEDS
    assert float(np.median(metrics.episode_return)) >= ASKED[agent]

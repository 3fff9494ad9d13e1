"""Every algorithm for discrete actions solves CartPole by its shipped config; DQN by its defaults, see CHANGES."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hydra import compose

from evorl.assembly import workflow_from_config
from evorl.cli.composition import initialize_configs
from evorl.runs.recorder import Recorder
from tests.support.compilation import compiled_to_run_long

# The evaluation return that is asked of the middle one of the seeds: of thirty-two, one or two end in a bad moment, and
# which these are depends on how a processor rounds.
ASKED = {"a2c": 475.0, "dqn": 475.0, "impala": 475.0, "ppo": 475.0, "pqn": 475.0, "reinforce": 400.0, "trpo": 475.0}
NUM_SEEDS = 3
# Not the large network of its experiment, of which a seed takes a minute.
CHANGES = {"dqn": ["~experiment", "n_step=3", "total_timesteps=150000"]}


class Watch(Recorder):
    """Sees when an evaluation has what is asked."""

    def __init__(self, asked: float) -> None:
        self.asked, self.is_reached = asked, False

    def write(self, row: Any) -> None:
        """A row of metrics, with those of an evaluation where there is one."""
        if "eval/episode_return" in row:
            returns = [row[f"eval/episode_return_seed_{i}"] for i in range(NUM_SEEDS)]
            self.is_reached = float(np.median(returns)) >= self.asked


@pytest.mark.parametrize("agent", ASKED)
@compiled_to_run_long()
def test_cartpole_is_solved(agent: str) -> None:
    """The training ends once it is: it plans for all of its steps, so up to there it is that of the config."""
    settings = [f"agent={agent}", "env=cartpole", f"num_seeds={NUM_SEEDS}", "devices=1", "eval_interval=25000"]
    with initialize_configs():
        config = compose("config", [*settings, *CHANGES.get(agent, [])])
    workflow, watch = workflow_from_config(config), Watch(ASKED[agent])
    assert workflow.total_timesteps <= 500_000
    metrics = workflow.evaluate(workflow.learn(recorder=watch, should_stop=lambda: watch.is_reached))
    assert metrics.episode_return.size == NUM_SEEDS
    assert float(np.median(metrics.episode_return)) >= ASKED[agent]

"""Every algorithm for discrete actions solves CartPole by its shipped config, in the steps that this gives it."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir

from evorl.cli.main import build_workflow, config_folder
from tests.support.compilation import compiled_to_run_long

# The mean evaluation return that is asked.
ASKED = {"a2c": 475.0, "dqn": 475.0, "impala": 475.0, "ppo": 475.0, "pqn": 475.0, "reinforce": 400.0, "trpo": 475.0}
NUM_SEEDS = dict.fromkeys(ASKED, 3) | {"dqn": 1}  # its networks are large, a seed takes a minute


@pytest.mark.parametrize("agent", ASKED)
@compiled_to_run_long()
def test_cartpole_is_solved(agent: str) -> None:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        seeds = f"num_seeds={NUM_SEEDS[agent]}"
        config = compose("config", [f"agent={agent}", "env=cartpole", seeds, "devices=1", "eval_interval=0"])
    workflow = build_workflow(config)
    assert workflow.total_timesteps <= 500_000
    metrics = workflow.evaluate(workflow.learn())
    assert metrics.episode_return.size == NUM_SEEDS[agent]
    assert float(metrics.episode_return.mean()) >= ASKED[agent]

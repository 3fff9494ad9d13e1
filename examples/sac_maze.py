"""Goal-conditioned navigation in a maze of rooms: soft actor-critic with hindsight (Andrychowicz et al. 2017).

python examples/sac_maze.py --total-timesteps 60000
"""

from __future__ import annotations

import argparse

from evorl.algorithms.sac import SACWorkflow
from evorl.recorders import ProgressRecorder


def train(total_timesteps: int = 60_000, hindsight: str = "future", seed: int = 0) -> float:
    """Train for ``total_timesteps`` steps, and return the fraction of evaluation episodes that end at their goal."""
    workflow = SACWorkflow.build_from_config(
        {
            "env": {"library": "goal", "name": "point_maze", "maze": "rooms"},
            "num_envs": 8,
            "updates_per_iteration": 4,
            "replay": {"hindsight": hindsight},
            "total_timesteps": total_timesteps,
            "eval_interval": total_timesteps // 6,
            "eval_episodes": 64,
            "log_interval": total_timesteps // 12,
        }
    )
    recorder = ProgressRecorder()
    state = workflow.learn(key=seed, recorder=recorder)
    recorder.close()
    success = float(workflow.evaluate(state).success)
    print(f"success {success:.2f}")
    return success


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=60_000)
    parser.add_argument("--hindsight", default="future", help="future, final, episode or none")
    parser.add_argument("--seed", type=int, default=0)
    train(**vars(parser.parse_args()))

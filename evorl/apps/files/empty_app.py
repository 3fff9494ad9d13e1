"""Template for your own simulator, or for a program that Python can control: replace ``Simulator``, keep the rest.

The simulator drives the loop: it sends each observation and receives an action. The example is a walk on a line with
the goal at 1 and two actions, left (0) and right (1).
"""

from __future__ import annotations

import random

from evorl.apps.files.app_options import Options, action_number, read_options
from evorl.serving.client import TrainingBase


class Simulator:
    """The simulator in which the agent learns; ``seed=None`` chooses an arbitrary seed."""

    def __init__(self, seed: int | None) -> None:
        self.random = random.Random(seed)
        self.position = 0.0

    def reset(self) -> list[float]:
        """Start an episode and return the state, which has the shape of ``environment.obs_space`` in app.yaml."""
        self.position = self.random.uniform(-0.5, 0.5)
        return [self.position]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """Apply an action, 0 (left) or 1 (right).

        Returns:
            The state, the reward, and whether the episode has terminated.
        """
        self.position += 0.1 if action == 1 else -0.1
        arrived, lost = self.position > 0.99, self.position < -0.99
        return [self.position], (1.0 if arrived else -0.01), arrived or lost


class Training(TrainingBase):
    """Plays ``run.max_episodes`` episodes, and reconnects if the connection breaks.

    ``options.get("environment/my_option", 1.0)`` reads an option from app.yaml.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(**options.connection())
        self.limit = int(options.get("environment/limit", 200))
        self.simulator = Simulator(options.seed)

    def episode(self, number: int) -> float:
        """Play one episode and return the sum of rewards, shown as ``episode_reward``."""
        total = 0.0
        state = self.simulator.reset()
        action = self.agent.update(None, state, False)  # no reward precedes the first action
        for step in range(1, self.limit + 1):
            state, reward, ended = self.simulator.step(action_number(action, 2))
            total += reward
            cut = step == self.limit and not ended  # a time limit is reported as truncation, not termination
            action = self.agent.update(reward, state, ended or cut, truncated=cut)
            if ended or cut:
                break
        return total


if __name__ == "__main__":
    Training(read_options()).run()

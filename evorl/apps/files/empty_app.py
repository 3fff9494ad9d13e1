"""A simulator of yours, or of a program that Python can talk to: replace ``Simulator``, keep the rest.

The agent asks for nothing: whenever the simulator has something to show it is told, and answers with an action. As it
is here, a walk on a line: the goal is at 1, and the actions are to go left (0) and right (1).
"""

from __future__ import annotations

import random

from evorl.apps.files.app_options import Options, read_options
from evorl.serving.client import TrainingBase


class Simulator:
    """What is to be learned in.

    Args:
        seed: of whatever is random; ``None`` for chance.
    """

    def __init__(self, seed: int | None) -> None:
        self.random = random.Random(seed)
        self.position = 0.0

    def reset(self) -> list[float]:
        """Start an episode, and return the state: numbers in the shape of ``environment.obs_space`` in app.yaml."""
        self.position = self.random.uniform(-0.5, 0.5)
        return [self.position]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """Do what the agent says: an element of ``environment.action_space``.

        Returns:
            The state, a reward for the action, and whether the episode has come to its end.
        """
        self.position += 0.1 if action == 1 else -0.1
        arrived, lost = self.position > 0.99, self.position < -0.99
        return [self.position], (1.0 if arrived else -0.01), arrived or lost


class Training(TrainingBase):
    """Connects, plays the episodes that ``run.max_episodes`` asks for, and connects anew where the connection breaks.

    ``options.get("environment/whatever", 1.0)`` reads what you write in app.yaml.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(**options.connection())
        self.limit = int(options.get("environment/limit", 200))
        self.simulator = Simulator(options.seed)

    def episode(self, number: int) -> float:
        """Play one episode. What is returned is shown as ``episode_reward``."""
        total = 0.0
        state = self.simulator.reset()
        action = self.agent.update(None, state, False)  # the first action has no reward before it
        for step in range(1, self.limit + 1):
            state, reward, ended = self.simulator.step(action)
            total += reward
            cut = step == self.limit and not ended  # ended by the clock, not by the task: the agent is to know
            action = self.agent.update(reward, state, ended or cut, truncated=cut)
            if ended or cut:
                break
        return total


if __name__ == "__main__":
    Training(read_options()).run()

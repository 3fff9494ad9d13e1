"""Multi-armed bandit: a pull pays 1 if a standard normal sample exceeds the threshold of the arm, else -1.

The regret of a pull is the expected reward of the best arm minus that of the pulled arm. It falls as the agent learns.
"""

from __future__ import annotations

import math
import random

from evorl.apps.files.app_options import Options, action_number, read_options
from evorl.serving.client import TrainingBase


class BanditTraining(TrainingBase):
    """Episodes with a fixed number of pulls and empty observations.

    Options in ``app.yaml``: ``environment/thresholds``, ``environment/pulls`` (per episode), ``environment/seed``.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(**options.connection())
        self.thresholds = [float(each) for each in options.get("environment/thresholds", [0.2, 0.0, -0.2, -0.5])]
        self.pulls = int(options.get("environment/pulls", 64))
        self.random = random.Random(options.seed)
        self.regrets: dict[int, float] = {}  # mean regret per pull, by episode

    def win_probability(self, arm: int) -> float:
        """Return the probability that a standard normal sample exceeds the arm's threshold."""
        return 0.5 * math.erfc(self.thresholds[arm] / math.sqrt(2.0))

    def pull(self, arm: int) -> float:
        """Pull an arm and return its reward."""
        return 1.0 if self.random.gauss(0.0, 1.0) > self.thresholds[arm] else -1.0

    def episode(self, number: int) -> float:
        """Play one episode and return the sum of rewards."""
        best = max(map(self.win_probability, range(len(self.thresholds))))
        total = regret = 0.0
        action = self.agent.update(None, [], False)
        for done in range(1, self.pulls + 1):
            arm = action_number(action, len(self.thresholds))
            reward = self.pull(arm)
            total += reward
            regret += 2.0 * (best - self.win_probability(arm))
            action = self.agent.update(reward, [], done == self.pulls)
        self.regrets[number] = regret / self.pulls
        self.agent.metrics.scalar("regret", self.regrets[number])
        return total

    def describe_regret(self) -> str:
        """Describe the mean regret in the first and in the last tenth of the episodes."""
        regrets = [self.regrets[number] for number in sorted(self.regrets)]
        tenth = max(1, len(regrets) // 10)
        first, last = (sum(part) / tenth for part in (regrets[:tenth], regrets[-tenth:]))
        return f"regret per pull: {first:.3f} in the first {tenth} episodes, {last:.3f} in the last {tenth}"


if __name__ == "__main__":
    training = BanditTraining(read_options())
    training.run()
    if training.regrets:
        print(training.describe_regret(), flush=True)

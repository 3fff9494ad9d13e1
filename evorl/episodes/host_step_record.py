"""Records every step of some episodes that are played on the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from evorl.evaluators.step_record import EpisodeSteps
from evorl.ops.trees import stack_trees
from evorl.types import PyTreeDict


class HostStepRecord:
    """NumPy record of the first ``num_episodes`` episodes' steps, like ``evorl.evaluators.step_record.StepRecord``."""

    def __init__(self, num_episodes: int) -> None:
        self.num_episodes = num_episodes
        self._moments: list[list[Any]] = [[] for _ in range(num_episodes)]
        self._steps: list[list[Any]] = [[] for _ in range(num_episodes)]

    def add_moment(self, episode: int, obs: Any, physics: dict[str, np.ndarray]) -> None:
        """Append copies of the observation and the physics at the start of an episode, or after one of its steps."""
        if episode < self.num_episodes:
            moment = {"obs": obs, "physics": {name: np.float64(values) for name, values in physics.items()}}
            self._moments[episode].append(jax.tree.map(np.array, moment))

    def add_step(self, episode: int, action: Any, reward: float, termination: bool) -> None:
        """Append copies of the action, the reward and the termination flag of a step."""
        if episode < self.num_episodes:
            step = (jax.tree.map(np.array, action), np.float32(reward), np.bool_(termination))
            self._steps[episode].append(step)

    def by_episode(self) -> EpisodeSteps | None:
        """Return all episodes, padded to the longest by repeated last entries; ``None`` if no episodes are recorded."""
        if not self._steps:
            return None
        longest = max(map(len, self._steps))
        moments = stack_trees([_padded(rows, longest + 1) for rows in self._moments])
        actions, rewards, terminations = stack_trees([_padded(rows, longest) for rows in self._steps])
        # Represent float64 by bytes, as evaluations in JAX do.
        physics = PyTreeDict({name: np.ascontiguousarray(x).view(np.uint8) for name, x in moments["physics"].items()})
        return EpisodeSteps(
            obs=moments["obs"],
            physics=physics,
            actions=actions,
            rewards=rewards,
            terminations=terminations,
            is_success=None,
        )


def _padded(rows: list[Any], length: int) -> Any:
    return stack_trees([*rows, *[rows[-1]] * (length - len(rows))])

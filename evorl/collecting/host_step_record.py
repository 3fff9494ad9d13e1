"""Every step of a few episodes that are played on the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from evorl.evaluators.step_record import EpisodeSteps
from evorl.ops.trees import stack_trees
from evorl.types import PyTreeDict


class HostStepRecord:
    """The counterpart of ``evorl.evaluators.step_record.StepRecord`` in NumPy: steps are appended, episode by episode.

    Args:
        num_episodes: of episodes 0 to n - 1 every step is kept, of others none.
    """

    def __init__(self, num_episodes: int) -> None:
        self.num_episodes = num_episodes
        self._moments: list[list[Any]] = [[] for _ in range(num_episodes)]
        self._steps: list[list[Any]] = [[] for _ in range(num_episodes)]

    def add_moment(self, episode: int, obs: Any, physics: dict[str, np.ndarray]) -> None:
        """What is observed at the start of an episode, or after a step of it; as copies."""
        if episode < self.num_episodes:
            moment = {"obs": obs, "physics": {name: np.float64(values) for name, values in physics.items()}}
            self._moments[episode].append(jax.tree.map(np.array, moment))

    def add_step(self, episode: int, action: Any, reward: float, termination: bool) -> None:
        """What was done in a step, and what it came to."""
        if episode < self.num_episodes:
            step = (jax.tree.map(np.array, action), np.float32(reward), np.bool_(termination))
            self._steps[episode].append(step)

    def by_episode(self) -> EpisodeSteps | None:
        """All episodes, as long as the longest one; ``None`` of none."""
        if not self._steps:
            return None
        most = max(map(len, self._steps))
        moments = stack_trees([_filled(rows, most + 1) for rows in self._moments])
        actions, rewards, terminations = stack_trees([_filled(rows, most) for rows in self._steps])
        # Numbers of float64 as evaluations in JAX have them: as their bytes.
        physics = PyTreeDict({name: np.ascontiguousarray(x).view(np.uint8) for name, x in moments["physics"].items()})
        return EpisodeSteps(
            obs=moments["obs"],
            physics=physics,
            actions=actions,
            rewards=rewards,
            terminations=terminations,
            is_success=None,
        )


def _filled(rows: list[Any], length: int) -> Any:
    """Rows of one episode as one tree ``[length, ...]``, the last one repeated."""
    return stack_trees([*rows, *[rows[-1]] * (length - len(rows))])

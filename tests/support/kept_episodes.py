"""Episodes of an imaginary evaluation, for the tests of what is made of them."""

from __future__ import annotations

import jax
import numpy as np

from evorl.evaluators.step_record import EpisodeSteps
from evorl.metrics import EvaluationMetrics
from evorl.types import PyTreeDict

NUM_EPISODES, NUM_KEPT, MOST_STEPS = 5, 3, 6
LENGTHS = np.array([6, 4, 6, 2, 6], np.int32)
QPOS = np.linspace(0.0, 1.0, NUM_KEPT * (MOST_STEPS + 1) * 2).reshape(NUM_KEPT, MOST_STEPS + 1, 2)


def kept_episodes(num_seeds: int | None = None) -> EvaluationMetrics:
    """Points that walk to the right; the second one ends at its goal."""
    start = np.zeros((NUM_EPISODES, 2), np.float32)
    end = np.stack([0.1 * LENGTHS, np.zeros(NUM_EPISODES)], axis=1).astype(np.float32)
    desired = np.where(np.arange(NUM_EPISODES)[:, None] == 1, end, 1.0).astype(np.float32)
    way = np.zeros((NUM_KEPT, MOST_STEPS + 1, 2), np.float32)
    way[..., 0] = 0.1 * np.arange(MOST_STEPS + 1)
    is_success = np.zeros((NUM_KEPT, MOST_STEPS), np.bool_)
    is_success[1, LENGTHS[1] - 1] = True
    steps = EpisodeSteps(
        obs=PyTreeDict(observation=way, achieved_goal=way, desired_goal=np.repeat(desired[:NUM_KEPT, None], 7, axis=1)),
        physics=PyTreeDict(qpos=QPOS.view(np.uint8), qvel=(2 * QPOS).view(np.uint8)),
        actions=np.ones((NUM_KEPT, MOST_STEPS, 1), np.float32),
        rewards=is_success - np.float32(1.0),
        terminations=np.zeros_like(is_success),
        is_success=is_success,
    )
    success = np.arange(NUM_EPISODES) == 1
    episodes = EvaluationMetrics(
        episode_returns=success - LENGTHS.astype(np.float32),
        episode_lengths=LENGTHS,
        success_at_end=success,
        success_ever=success,
        goals=PyTreeDict(start=start, achieved=end, desired=desired),
        steps=steps,
    )
    if num_seeds is None:
        return episodes
    return jax.tree.map(lambda x: np.stack([x] * num_seeds), episodes)

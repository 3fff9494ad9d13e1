"""Rows and evaluation episodes of an imaginary run, for the tests of recorders."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.evaluators.step_record import EpisodeSteps
from evorl.metrics import EvaluationMetrics
from evorl.runs.recorder import RunPlan
from evorl.types import PyTreeDict

NUM_ITERATIONS = 12
STEPS = 100


def make_plan(first_iterations: int = 0, num_seeds: int = 1) -> RunPlan:
    return RunPlan(
        name="PPOWorkflow",
        total_timesteps=NUM_ITERATIONS * STEPS,
        first_timesteps=first_iterations * STEPS,
        first_iterations=first_iterations,
        num_seeds=num_seeds,
        num_devices=1,
    )


def make_row(iteration: int) -> dict[str, float | int]:
    """Return a row: losses always, episodes from row 3 on, evaluations in every fifth row."""
    row: dict[str, float | int] = {
        "iterations": iteration,
        "timesteps": iteration * STEPS,
        "train/policy_loss": -0.1 / iteration,
        "train/value_loss": math.sin(iteration) / 3 + 10,
        "train/episodes": iteration % 4,
    }
    if iteration >= 3:
        row["train/episode_return"] = 20.0 * iteration
        row["train/episode_length"] = 20.0 * iteration
    if iteration % 5 == 0:
        row["eval/episode_return"] = 30.0 * iteration
        row["eval/episode_return_std"] = 4.0
    row["time/steps_per_second"] = 1e5 / iteration
    return row


def record(recorder: Any, first: int = 1, last: int = NUM_ITERATIONS) -> None:
    """Send the rows of iterations ``first`` to ``last``, and close."""
    recorder.start(make_plan(first - 1))
    for iteration in range(first, last + 1):
        recorder.write(make_row(iteration))
        recorder.progress(iteration * STEPS, 1e5, make_row(iteration))
    recorder.close()


def record_until_killed(recorder: Any, last: int, *paths: Path) -> None:
    """Send rows and restore the files as they were before closing, as after a kill."""
    recorder.start(make_plan())
    for iteration in range(1, last + 1):
        recorder.write(make_row(iteration))
    left = [path.read_bytes() for path in paths]
    recorder.close()
    for path, data in zip(paths, left, strict=True):
        path.write_bytes(data)


NUM_EPISODES, NUM_KEPT, MOST_STEPS = 5, 3, 6
LENGTHS = np.array([6, 4, 6, 2, 6], np.int32)
QPOS = np.linspace(0.0, 1.0, NUM_KEPT * (MOST_STEPS + 1) * 2).reshape(NUM_KEPT, MOST_STEPS + 1, 2)


def kept_episodes(num_seeds: int | None = None) -> EvaluationMetrics:
    """Return points that move to the right; the second one ends at its goal."""
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

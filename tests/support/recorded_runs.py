"""Rows of an imaginary run, for the tests of recorders."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from evorl.runs.recorder import RunPlan

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
    """Columns come at different times: losses at once, episodes from row 3, evaluations in every fifth row."""
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
    """Send rows, and leave the files as they are on the disk at that moment: closing adds nothing to them."""
    recorder.start(make_plan())
    for iteration in range(1, last + 1):
        recorder.write(make_row(iteration))
    left = [path.read_bytes() for path in paths]
    recorder.close()
    for path, data in zip(paths, left, strict=True):
        path.write_bytes(data)

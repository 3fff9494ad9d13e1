"""Recorded transitions for tests of offline learning, with Pendulum's shapes and a known best action."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np

from evorl.runs.replay_file import write_replay_file

NUM_STEPS, EPISODE = 256, 16
TITLE = "gymnax/Pendulum-v1"
_FOLDER = tempfile.TemporaryDirectory(prefix="recorded")


def pendulum_columns(num_steps: int = NUM_STEPS, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random observations, with larger rewards for actions closer to half of the first entry."""
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.uniform(-1, 1, (2, num_steps, 3)).astype(np.float32)
    actions = rng.uniform(-1, 1, (num_steps, 1)).astype(np.float32)
    ends = np.arange(num_steps) % EPISODE == EPISODE - 1
    return {
        "obs": obs,
        "actions": actions,
        "rewards": -np.abs(actions - obs[:, :1] / 2)[:, 0],
        "next_obs": next_obs,
        "termination": ends & (np.arange(num_steps) % (2 * EPISODE) < EPISODE),
        "truncation": ends & (np.arange(num_steps) % (2 * EPISODE) >= EPISODE),
    }


@functools.cache
def recorded_pendulum() -> str:
    """Return the path of a recorded file, written once per test process and removed at its end."""
    path = Path(_FOLDER.name) / "pendulum"
    write_replay_file(path, pendulum_columns(), TITLE)
    return str(path)

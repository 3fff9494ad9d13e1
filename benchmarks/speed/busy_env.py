"""An environment with an adjustable processor time per step, for which actors and workers are useful."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.space import Box, Discrete, Space

_OBS_SIZE = 4


class BusyEnv(HostVectorEnv):
    """Observations are random; the reward is 1 for the sign of the first entry.

    Args:
        num_envs: number B of environments, which are stepped one after another.
        milliseconds: processor time of one environment's step.
        max_episode_steps: steps after which an episode is truncated.
        waits: steps take wall time instead of processor time.
    """

    def __init__(self, num_envs: int, milliseconds: float, max_episode_steps: int, waits: bool = False) -> None:
        self.num_envs, self._seconds = num_envs, milliseconds / 1e3
        self._pass_time = time.sleep if waits else spin
        self.obs_space: Space = Box(-1.0, 1.0, (_OBS_SIZE,))
        self.action_space: Space = Discrete(2)
        self.max_episode_steps = max_episode_steps
        self._random = [np.random.default_rng(0) for _ in range(num_envs)]
        self._obs = np.zeros((num_envs, _OBS_SIZE), np.float32)
        self._elapsed = np.zeros(num_envs, np.int64)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self.partial_reset(np.ones(self.num_envs, np.bool_), seeds)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        for i in np.flatnonzero(mask):
            self._random[i] = np.random.default_rng(int(seeds[i]))
            self._obs[i] = self._random[i].uniform(-1.0, 1.0, _OBS_SIZE)
        self._elapsed[mask] = 0
        return self._obs.copy()

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        reward = (actions == (self._obs[:, 0] > 0.0)).astype(np.float32)
        for i in range(self.num_envs):
            self._pass_time(self._seconds)
            self._obs[i] = self._random[i].uniform(-1.0, 1.0, _OBS_SIZE)
        self._elapsed += 1
        truncation = self._elapsed >= self.max_episode_steps
        return self._obs.copy(), reward, np.zeros(self.num_envs, np.bool_), truncation, {}


def spin(seconds: float) -> None:
    """Consume this much processor time of the thread; on a busy machine this takes longer."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def make_busy_env(
    num_envs: int, milliseconds: float = 1.0, max_episode_steps: int = 200, waits: bool = False
) -> BusyEnv:
    """Create the simulators of ``env: {factory: "benchmarks.speed.busy_env:make_busy_env"}``."""
    return BusyEnv(num_envs, milliseconds, max_episode_steps, waits)

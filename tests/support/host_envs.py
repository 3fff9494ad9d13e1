"""Host environments for comparison: JAX environments as Gymnasium environments, and faulty ones."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from evorl.envs import create_env
from evorl.envs.gymnasium_export import as_gymnasium


def cartpole(max_steps: int = 500) -> gymnasium.Env:
    """Create gymnax's CartPole as a Gymnasium environment."""
    return as_gymnasium(create_env("gymnax/CartPole-v1", max_episode_steps=max_steps).env)


def pendulum() -> gymnasium.Env:
    """Create gymnax's Pendulum as a Gymnasium environment."""
    return as_gymnasium(create_env("gymnax/Pendulum-v1").env)


class Faulty(gymnasium.Env):
    """An environment with observations of three numbers that fails at a given step.

    Args:
        fault: ``raise``, ``nan``, ``reward`` (not finite), ``shape``, ``info`` (empty) or none.
        at: step of the fault.
        seconds: duration of a step.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)
    max_episode_steps = 7

    def __init__(self, fault: str = "", at: int = 5, seconds: float = 0.0) -> None:
        self.fault, self.at, self.seconds = fault, at, seconds
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        time.sleep(self.seconds)
        self.steps += 1
        now = self.fault if self.steps == self.at else ""
        if now == "raise":
            raise RuntimeError("the motor is burnt")
        obs = np.zeros(4 if now == "shape" else 3, np.float32)
        if now == "nan":
            obs[1] = np.nan
        info = {} if now == "info" else {"height": 0.5}
        return obs, np.inf if now == "reward" else 1.0, self.steps % 7 == 0, False, info


MADE: list[Faulty] = []  # environments whose fault is set after their creation


def faulty_when_told() -> gymnasium.Env:
    """Create a ``Faulty`` in ``MADE`` whose fault is set later."""
    MADE.append(Faulty())
    return MADE[-1]

"""The interface of simulators on the host: B of them, stepped together, with numpy arrays in and out."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from evorl.envs.space import Space


class HostEnvError(OSError):
    """A simulator on the host failed, or answered what it may not answer; the message says which one, and when."""


class HostVectorEnv(abc.ABC):
    """B simulators of one kind; spaces are those of one. An adapter for each library, or a class of the user.

    Observations and actions are arrays, or dicts and tuples of arrays as the spaces say, leading with axis B. The next
    answer may be written into the arrays of the last one, so callers copy what they store. Only ``reset`` and
    ``partial_reset`` start a new episode, so a step always gives the true successor. After a step
    that ended the episode of a row, that row is restarted before the next one.

    Attributes:
        num_envs: B.
        obs_space: of one environment.
        action_space: of one environment.
        max_episode_steps: after so many steps ``step`` says truncation; ``None`` where episodes have no limit.
        info_spec: shape and dtype, by name, of what every ``info`` has of one environment.
        goal_task: what reaching a goal is worth, a ``GoalTask``, where observations have goals and that is known. Goals
            are then asked for, and paid, on our side: of a simulator only the goals it starts with count.
        seed_bits: number of bits of its seeds: 31, which suits any library, or 64.
    """

    num_envs: int
    obs_space: Space
    action_space: Space
    max_episode_steps: int | None = None
    info_spec: Mapping[str, tuple[tuple[int, ...], Any]] = MappingProxyType({})
    goal_task: Any = None
    seed_bits: int = 31

    @abc.abstractmethod
    def reset(self, seeds: np.ndarray) -> Any:
        """Start an episode in every row; observations ``[B, ...]``.

        Args:
            seeds: uint64 ``[B]``, below ``2**seed_bits``. The same seed gives the same episode for the same actions.
        """

    @abc.abstractmethod
    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """One step of every row with ``actions`` ``[B, ...]``.

        Returns:
            ``next_obs``, ``reward``, ``termination``, ``truncation`` and ``info``, each ``[B, ...]``. A row may say
            both that the task ended and that time did: then it counts as ended by the task.

        Raises:
            HostEnvError: a simulator failed.
        """

    @abc.abstractmethod
    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        """Start an episode in the rows where ``mask``, bool ``[B]``, holds; never called without any.

        Returns:
            Observations ``[B, ...]``; those of other rows are not looked at.
        """

    def set_arguments(self, arguments: Mapping[str, np.ndarray]) -> None:
        """What the episodes that start from now on are like: arrays ``[B, ...]`` by name; none is as usual.

        Raises:
            ValueError: these simulators take no arguments, or not these.
        """
        if arguments:
            raise ValueError(
                f"{type(self).__name__} takes no arguments for its episodes, got {', '.join(sorted(arguments))}: leave "
                "them out, or override set_arguments."
            )

    def get_state(self) -> np.ndarray | None:
        """All that the next steps depend on, as bytes: uint8 ``[B, N]``; ``None`` where it cannot be taken."""
        return None

    def set_state(self, state: np.ndarray) -> None:
        """Go on from what ``get_state`` gave."""
        raise NotImplementedError(f"{type(self).__name__} cannot go back to a state.")

    def physics(self) -> dict[str, np.ndarray]:
        """Positions and velocities of simulated bodies, float64 ``[B, k]`` by name; empty where there are none."""
        return {}

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` whose ``qpos`` and ``qvel`` ``physics`` tells; ``None`` where there is none."""
        return None

    def render(self) -> np.ndarray | None:
        """A picture of the first environment, uint8 ``[height, width, 3]``; ``None`` where there is none."""
        return None

    def close(self) -> None:  # noqa: B027  # few hold anything
        """Give back processes and memory. Called once."""

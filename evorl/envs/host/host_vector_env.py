"""The interface of simulators on the host: B of them, stepped together, with NumPy arrays as inputs and outputs."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from evorl.envs.space import Space


class HostEnvError(OSError):
    """Raised if a simulator on the host failed or returned an invalid result; the message names simulator and step."""


class HostVectorEnv(abc.ABC):
    """B simulators of one kind; spaces are those for a single one. Base class for library adapters and for users.

    Observations and actions are arrays, or dicts and tuples of arrays as declared by the spaces, with a leading axis B.
    Results may share memory with the previous ones, so callers must copy stored values. Only ``reset`` and
    ``partial_reset`` start a new episode, so that a step always returns the true successor. A simulator whose episode
    has ended is restarted before the next step.

    Attributes:
        num_envs: B.
        obs_space: observation space of one environment.
        action_space: action space of one environment.
        max_episode_steps: number of environment steps after which ``step`` reports truncation; ``None`` without a
            limit.
        action_repeat: environment steps per action; the simulators repeat it, and sum the rewards, in ``step``.
        info_spec: shape and dtype, by name, of the entries of every ``info``, for one environment.
        goal_task: reward function of goals, a ``GoalTask``, if observations have goals and it is known. evorl then
            chooses and rewards the goals; only the initial goals of the simulator are used.
        seed_bits: number of bits of seeds: 31, which suits any library, or 64.
        is_remote: true if the simulators connect over the network, and cannot be stepped from here.
    """

    num_envs: int
    obs_space: Space
    action_space: Space
    max_episode_steps: int | None = None
    action_repeat: int = 1
    info_spec: Mapping[str, tuple[tuple[int, ...], Any]] = MappingProxyType({})
    goal_task: Any = None
    seed_bits: int = 31
    is_remote: bool = False

    @abc.abstractmethod
    def reset(self, seeds: np.ndarray) -> Any:
        """Start an episode in every simulator; return observations ``[B, ...]``.

        Args:
            seeds: uint64 ``[B]``, below ``2**seed_bits``. The same seed gives the same episode for the same actions.
        """

    @abc.abstractmethod
    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every simulator with ``actions`` ``[B, ...]``.

        Returns:
            ``next_obs``, ``reward``, ``termination``, ``truncation`` and ``info``, each ``[B, ...]``. An episode that
            is both terminated and truncated counts as terminated.

        Raises:
            HostEnvError: a simulator failed.
        """

    @abc.abstractmethod
    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        """Start an episode in the simulators where ``mask``, bool ``[B]``, is True; at least one entry is True.

        Returns:
            Observations ``[B, ...]``; observations of other simulators are ignored.
        """

    def set_arguments(self, arguments: Mapping[str, np.ndarray]) -> None:
        """Set arguments of all episodes that start later: arrays ``[B, ...]`` by name; empty for the defaults.

        Raises:
            ValueError: the simulators do not support arguments, or not these arguments.
        """
        if arguments:
            raise ValueError(
                f"{type(self).__name__} takes no arguments for its episodes, got {', '.join(sorted(arguments))}: "
                "remove them, or override set_arguments."
            )

    def get_state(self) -> np.ndarray | None:
        """Return the complete simulation state as bytes, uint8 ``[B, N]``; ``None`` if it cannot be saved."""
        return None

    def set_state(self, state: np.ndarray) -> None:
        """Restore a result of ``get_state``."""
        raise NotImplementedError(f"{type(self).__name__} cannot restore a state.")

    def physics(self) -> dict[str, np.ndarray]:
        """Return positions and velocities of simulated bodies, float64 ``[B, k]`` by name; empty without bodies."""
        return {}

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` whose ``qpos`` and ``qvel`` ``physics`` returns; ``None`` for other engines."""
        return None

    def render(self) -> np.ndarray | None:
        """Return an image of the first environment, uint8 ``[height, width, 3]``; ``None`` if it cannot be rendered."""
        return None

    def close(self) -> None:  # noqa: B027  # few hold resources
        """Release processes and memory. Called once."""

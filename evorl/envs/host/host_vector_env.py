"""The interface of simulators on the host: B simulators are stepped together, with NumPy arrays."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from evorl.envs.space import Space


class HostEnvError(OSError):
    """Raised if simulators on the host fail, return an invalid result, or cannot be stepped from a state."""


class HostVectorEnv(abc.ABC):
    """Base class for stepping B simulators of one kind, to be subclassed by adapters and users.

    Observations and actions are arrays, or dicts and tuples of arrays as declared by the spaces, with a leading axis B.
    Results may share memory with earlier results, so callers must copy values that they store. Only ``reset`` and
    ``partial_reset`` start a new episode, so that a step always returns the true successor. The caller restarts a
    simulator at the end of an episode before the next step.

    Attributes:
        num_envs: B.
        num_agents: number of agents per copy; the agents of a copy are consecutive environments, and end together.
        obs_space: observation space of one environment.
        action_space: action space of one environment.
        max_episode_steps: number of environment steps after which ``step`` reports truncation; ``None`` without a
            limit.
        action_repeat: environment steps per action; ``step`` repeats each action, and sums the rewards.
        info_spec: shape and dtype, by name, of the entries that every ``info`` must have, for one environment.
        goal_task: reward and success functions of goals, a ``GoalTask``; ``None`` without goals, or if unknown. If set,
            evorl uses the goal that the simulator returns at the start of an episode, and computes the rewards, unless
            actions are repeated.
        seed_bits: number of bits of seeds: 31, which any library accepts, or 64.
        has_channels_last: true if images always have channels last, also if the library has them first.
        is_remote: true if the simulators connect over the network, so that ``step`` raises an error.
    """

    num_envs: int
    num_agents: int = 1
    obs_space: Space
    action_space: Space
    max_episode_steps: int | None = None
    action_repeat: int = 1
    info_spec: Mapping[str, tuple[tuple[int, ...], Any]] = MappingProxyType({})
    goal_task: Any = None
    seed_bits: int = 31
    has_channels_last: bool = False
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
        """Set the arguments of all later episodes: arrays ``[B, ...]`` by name; an empty dict restores the defaults.

        Raises:
            ValueError: the simulators do not support arguments, or one of them is unknown.
        """
        if arguments:
            raise ValueError(
                f"{type(self).__name__} takes no arguments for its episodes, got {', '.join(sorted(arguments))}: "
                "remove them, or override set_arguments."
            )

    def stateful_objects(self) -> list[Any]:
        """Return the objects that contain the simulators' state, which other simulators must not share."""
        return [self]

    def get_state(self) -> np.ndarray | None:
        """Return the complete simulation state as bytes, uint8 ``[B, N]``; ``None`` if it cannot be saved."""
        return None

    def set_state(self, state: np.ndarray) -> None:
        """Restore ``state``, a result of ``get_state``; raise ``NotImplementedError`` if it cannot be restored."""
        raise NotImplementedError(f"{type(self).__name__} lacks set_state: override it, or let get_state return None.")

    def physics(self) -> dict[str, np.ndarray]:
        """Return positions and velocities of simulated bodies, float64 ``[B, k]`` by name; empty without bodies."""
        return {}

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` of the bodies that ``physics`` describes; ``None`` for other engines."""
        return None

    def render(self) -> np.ndarray | None:
        """Return an image of the first environment, uint8 ``[height, width, 3]``; ``None`` if it cannot be rendered."""
        return None

    def close(self) -> None:  # noqa: B027  # few hold resources
        """Release processes and memory. It is called once; by default, it does nothing."""

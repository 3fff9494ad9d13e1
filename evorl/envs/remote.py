"""Placeholders for simulators that connect over the network, with spaces that the config describes.

A training server (``evorl serve``) receives the steps of the simulators. Stepping a placeholder raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from evorl.config.values import check_names, plain, short_repr
from evorl.envs.gymnasium_spaces import JAX_DTYPES
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space

ENV_NAMES = ("simulator",)

_EXAMPLES = "as in {shape: [4]}, {shape: [84, 84], dtype: uint8, low: 0, high: 255}, {n: 3}, or a dict of these"
_MAX_REASON = 300  # maximum number of characters of an error message
_CHOICE_KEYS = ("n", "start")
_BOX_KEYS = ("shape", "low", "high", "dtype")


class RemoteSimulators(HostVectorEnv):
    """Placeholders for remote simulators, which start and end their episodes themselves.

    ``num_envs`` is the number of rows of a training batch.
    """

    is_remote = True

    def __init__(self, num_envs: int, obs_space: Space, action_space: Space) -> None:
        self.num_envs, self.obs_space, self.action_space = num_envs, obs_space, action_space

    def reset(self, seeds: np.ndarray) -> Any:
        """Return zeros, because no observation has arrived yet; the seeds are ignored."""
        return self._blank(len(seeds))

    def step(self, actions: Any) -> Any:
        """Raise ``HostEnvError``: remote simulators step themselves."""
        refuse_remote(self)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        """Return zeros, as ``reset`` does."""
        return self._blank(len(mask))

    def _blank(self, num_rows: int) -> Any:
        return jax.tree.map(lambda spec: np.zeros((num_rows, *spec.shape), spec.dtype), self.obs_space.spec)


def refuse_remote(env: Any) -> None:
    """Raise ``HostEnvError`` if ``env`` has remote simulators, whose episodes this process cannot play."""
    if env.is_remote:
        raise HostEnvError(
            "simulators of env=remote connect over the network and cannot be stepped from here: train an agent that "
            "learns from rollouts, as in evorl serve agent=ppo env=remote, and run its policy with evorl act run=..."
        )


def make_remote_simulators(
    name: str = "simulator",
    num_envs: int = 1,
    obs_space: Any = None,
    action_space: Any = None,
    max_episode_steps: int | None = None,
) -> RemoteSimulators:
    """Create placeholders for remote simulators with these spaces.

    Args:
        name: ``simulator``, the only valid name.
        num_envs: number of rows of a training batch, B.
        obs_space: observation space, see ``observation_space_from_config``; ``{shape: [0]}`` for no observations.
        action_space: action space, see ``space_from_config``.
        max_episode_steps: must be ``None``: a simulator ends its own episodes.

    Raises:
        ValueError: a space is missing or invalid, the name is unknown, or ``max_episode_steps`` is set.
    """
    check_names([name], ENV_NAMES, "remote environment")
    if max_episode_steps is not None:
        raise ValueError(
            f"env.max_episode_steps={max_episode_steps} is not available for env=remote, whose simulators end their "
            "episodes themselves, and report truncated: remove it."
        )
    observed = observation_space_from_config(obs_space, "env.obs_space")
    return RemoteSimulators(num_envs, observed, space_from_config(action_space, "env.action_space"))


def observation_space_from_config(described: Any, name: str) -> Space:
    """Parse like ``space_from_config``; a Box without numbers becomes a Box of shape ``[1]`` that contains only 1."""
    space = space_from_config(described, name)
    return Box(1.0, 1.0, (1,)) if isinstance(space, Box) and 0 in space.shape else space


def space_from_config(config: Any, name: str) -> Space:
    """Return the space that a config describes.

    - ``{n: 3}``: one of 0, 1 and 2; ``{n: 3, start: -1}``: one of -1, 0 and 1.
    - ``{n: [2, 3]}``: several simultaneous choices; ``start`` is a number or a list with a number per choice.
    - ``{shape: [4], low: -1, high: 1, dtype: float32}``: an array. A bound is a number or nested lists of numbers; if
      missing or null, it is infinite. ``dtype`` is float32 by default; 64-bit dtypes become 32-bit dtypes.
    - ``{a: {...}, b: {...}}``: a dict of spaces.

    Raises:
        ValueError: the config is missing, or does not describe a space.
    """
    if config is None:
        raise ValueError(f"{name} is missing: it must be known before a simulator connects. Set it, {_EXAMPLES}.")
    config = plain(config) if isinstance(config, Mapping) else config
    if not isinstance(config, Mapping) or not config:
        raise ValueError(f"{name} must be a mapping, {_EXAMPLES}; got {short_repr(config)}.")
    if all(isinstance(value, Mapping) for value in config.values()):
        return DictSpace({str(key): space_from_config(value, f"{name}.{key}") for key, value in config.items()})
    check_names(config, _CHOICE_KEYS if "n" in config else _BOX_KEYS, f"key of {name}")
    try:
        if "n" in config:
            n, start = config["n"], config.get("start", 0)
            return MultiDiscrete(n, start) if isinstance(n, list | tuple) else Discrete(n, start)
        low, high = _end(config.get("low"), -np.inf), _end(config.get("high"), np.inf)
        dtype = np.dtype(config.get("dtype", "float32"))
        return Box(low, high, config.get("shape"), JAX_DTYPES.get(dtype.name, dtype))
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error)[:_MAX_REASON].rstrip(".")  # it may quote numbers of any length
        raise ValueError(
            f"{name}={short_repr(dict(config))} is not a valid space: {reason}. Set it, {_EXAMPLES}."
        ) from error


def _end(bound: Any, infinite: float) -> Any:
    """Return ``bound``, a number or nested lists, with ``infinite`` in place of each ``None``."""
    if isinstance(bound, list | tuple):
        return [_end(part, infinite) for part in bound]
    return infinite if bound is None else bound

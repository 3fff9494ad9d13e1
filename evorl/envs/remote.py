"""Simulators that come over the network, seen from here: spaces that a config tells, and rows that nobody steps.

A training server (``evorl serve``) collects from them as they come. Whoever wants to step them in turn is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import jax
import numpy as np

from evorl.config.values import check_names, plain, short_repr
from evorl.envs.gymnasium_spaces import JAX_DTYPES
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space

ENV_NAMES = ("simulator",)

_EXAMPLES = "as in {shape: [4]}, {shape: [84, 84], dtype: uint8, low: 0, high: 255}, {n: 3}, or one of these by name"
_MOST_OF_REASON = 300  # characters
_CHOICE_KEYS = ("n", "start")
_BOX_KEYS = ("shape", "low", "high", "dtype")


class RemoteSimulators(HostVectorEnv):
    """Rows of what simulators elsewhere will show. They say themselves when an episode begins and ends.

    Args:
        num_envs: rows of a batch, B.
        obs_space: of one simulator.
        action_space: of one simulator.
    """

    def __init__(self, num_envs: int, obs_space: Space, action_space: Space) -> None:
        self.num_envs, self.obs_space, self.action_space = num_envs, obs_space, action_space

    def reset(self, seeds: np.ndarray) -> Any:
        """Blank observations: none has come yet."""
        return self._blank(len(seeds))

    def step(self, actions: Any) -> NoReturn:
        """Raises ``HostEnvError``: they are not stepped from here."""
        raise HostEnvError(
            "simulators of env=remote come over the network and are not stepped from here: train by "
            "evorl serve agent=... env=remote, and play with what was learned by evorl act run=..."
        )

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        """Blank observations."""
        return self._blank(len(mask))

    def _blank(self, num_rows: int) -> Any:
        return jax.tree.map(lambda spec: np.zeros((num_rows, *spec.shape), spec.dtype), self.obs_space.spec)


def is_remote(env: Any) -> bool:
    """Whether the simulators of a vector environment come over the network."""
    simulators = getattr(env, "simulators", None)
    return simulators is not None and isinstance(simulators.usual, RemoteSimulators)


def make_remote_simulators(
    name: str = "simulator",
    num_envs: int = 1,
    obs_space: Any = None,
    action_space: Any = None,
    max_episode_steps: int | None = None,
) -> RemoteSimulators:
    """Rows for simulators with these spaces.

    Args:
        name: ``simulator``: all are alike from here.
        num_envs: rows of a batch.
        obs_space: what they show, see ``space_from_config``. An empty one, ``{shape: [0]}``, of a task without
            observations, is seen as a constant 1.
        action_space: what they are told.
        max_episode_steps: refused: a simulator ends its own episodes.

    Raises:
        ValueError: a space is missing or cannot be, or another name; in words.
    """
    check_names([name], ENV_NAMES, "remote environment")
    if max_episode_steps is not None:
        raise ValueError(
            "env.max_episode_steps is not for env=remote: a simulator ends its episodes itself, and says truncated."
        )
    seen = space_from_config(obs_space, "env.obs_space")
    if isinstance(seen, Box) and 0 in seen.shape:
        seen = Box(1.0, 1.0, (1,))
    return RemoteSimulators(num_envs, seen, space_from_config(action_space, "env.action_space"))


def space_from_config(config: Any, name: str) -> Space:
    """Return the space that a config describes.

    - ``{n: 3}``: a choice among 0, 1 and 2; ``{n: 3, start: -1}`` among -1, 0 and 1.
    - ``{n: [2, 3]}``: several choices at once; with ``start``, a number or one for each.
    - ``{shape: [4], low: -1, high: 1, dtype: float32}``: numbers. An end that is missing, or null in a list of ends, is
      infinite. ``dtype`` is float32 by default; 64 bits become 32.
    - ``{a: {...}, b: {...}}``: several of these by name.

    Raises:
        ValueError: it is missing, or describes no space.
    """
    if config is None:
        raise ValueError(f"{name} is missing: it is not known before a simulator connects. Give it, {_EXAMPLES}.")
    config = plain(config) if isinstance(config, Mapping) else config
    if not isinstance(config, Mapping) or not config:
        raise ValueError(f"{name} must be a mapping, {_EXAMPLES}; got {config!r}.")
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
        reason = str(error)[:_MOST_OF_REASON]  # it may quote numbers of any length
        raise ValueError(f"{name}={short_repr(dict(config))} is no space: {reason} Give it {_EXAMPLES}.") from error


def _end(bound: Any, infinite: float) -> Any:
    """Return a bound, a number or nested lists, with ``infinite`` for null."""
    if isinstance(bound, list | tuple):
        return [_end(part, infinite) for part in bound]
    return infinite if bound is None else bound

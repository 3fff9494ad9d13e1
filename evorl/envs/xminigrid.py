"""Adapter for the MiniGrid environments of XLand-MiniGrid: rooms, keys and doors. Imports the package on first use.

Observed cells are one-hot encoded: ``[V, V, 25]`` with 13 tiles and 12 colors. The library returns the indices of tiles
and colors, which a network without an embedding would treat as magnitudes.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.names import explain_missing_package, no_such
from evorl.envs.env import EnvState, EnvWithSpaces, compiled
from evorl.envs.options import as_hashable, check_options, from_hashable, move_option, split_options
from evorl.envs.space import Box, Discrete
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

ENV_NAMES = (
    "MiniGrid-BlockedUnlockPickUp",
    *(f"MiniGrid-{room}-{n}x{n}" for room in ("DoorKey", "Empty", "EmptyRandom") for n in (5, 6, 8, 16)),
    "MiniGrid-FourRooms",
    "MiniGrid-LockedRoom",
    *(f"MiniGrid-MemoryS{n}" for n in (8, 16, 32, 64, 128)),
    "MiniGrid-Playground",
    "MiniGrid-Unlock",
    "MiniGrid-UnlockPickUp",
)


class XMiniGridAdapter(EnvWithSpaces):
    """An XLand-MiniGrid environment as an ``Env``, without autoreset.

    The agent observes a square of V times V cells ahead, bool ``[V, V, 25]``, with one-hot encoded tiles and colors. A
    step that reaches both the goal and the time limit is a termination.

    Args:
        grid_env: an instance of the library's ``Environment``, not wrapped.
        params: parameters of the environment; rewards depend on ``max_steps``, the time limit.
        spec: hashable description of ``grid_env`` and ``params``; adapters with equal ``spec`` are equal. Without
            ``spec``, adapters are equal only if they share the same objects ``grid_env`` and ``params``.
    """

    def __init__(self, grid_env: Any, params: Any, spec: Any = None) -> None:
        from xminigrid.core import constants

        self.grid_env = grid_env
        self.params = params
        self._spec, self._wrapped = spec, (grid_env, params)
        self._action_space = Discrete(grid_env.num_actions(params))
        self._num_tiles, self._num_colors = constants.NUM_TILES, constants.NUM_COLORS
        width, height, _ = grid_env.observation_shape(params)
        self._obs_space = Box(False, True, (width, height, self._num_tiles + self._num_colors), jnp.bool_)
        start = jax.eval_shape(lambda: grid_env.reset(params, jax.random.key(0)))
        step = jax.eval_shape(lambda at: grid_env.step(params, at, jnp.zeros((), jnp.int32)), start)
        # Some leaves have different dtypes after a step and after a reset.
        self._dtypes = jax.tree.map(lambda x: x.dtype, step)

    @property
    def max_episode_steps(self) -> int:
        """Time limit in steps, ``max_steps`` of the parameters."""
        return int(self.params.max_steps)

    @compiled
    def reset(self, key: Key) -> EnvState:
        return self._env_state(self.grid_env.reset(self.params, as_typed_key(key)))

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return self._env_state(self.grid_env.step(self.params, env_state.env_state, action))

    def _env_state(self, timestep: Any) -> EnvState:
        timestep = jax.tree.map(jnp.asarray, timestep, self._dtypes)
        done = timestep.last()
        termination = done & (timestep.discount == 0.0)
        info = PyTreeDict(termination=termination, truncation=done & ~termination, metrics=PyTreeDict())
        tiles, colors = timestep.observation[..., 0], timestep.observation[..., 1]
        # Color indices follow the tile indices, so that the two never overlap.
        kinds = jnp.arange(self._num_tiles + self._num_colors)
        one_hot = (tiles[..., None] == kinds) | (colors[..., None] + self._num_tiles == kinds)
        # The next step reads only the state: do not store the observation twice.
        timestep = timestep.replace(observation=())
        return EnvState(timestep, one_hot, jnp.asarray(timestep.reward, jnp.float32), done, info)

    def __repr__(self) -> str:
        return f"XMiniGridAdapter({type(self.grid_env).__name__})"


def create_wrapped_xminigrid_env(env_name: str, **options: Any) -> VectorEnv:
    """Create a vectorized XLand-MiniGrid environment.

    Args:
        env_name: one of ``ENV_NAMES``.
        **options: the fields of ``EnvOptions``; all others are parameters of the environment (``view_size`` ...).

    Raises:
        ValueError: the environment or an option is unknown, or a value is out of range.
        ImportError: the package is not installed.
    """
    shared, arguments = split_options(options)
    move_option(shared, arguments, "max_episode_steps", "max_steps")  # rewards depend on the library's time limit
    return wrap_env(_make_adapter(env_name, as_hashable(arguments)), **shared)


@functools.lru_cache(maxsize=64)
def _make_adapter(env_name: str, arguments: tuple) -> XMiniGridAdapter:
    if env_name.startswith("XLand-"):
        raise ValueError(
            f"xminigrid {env_name} is not available here: its tasks are sets of rules, which must be downloaded. "
            f"Available: {', '.join(ENV_NAMES)}."
        )
    if env_name not in ENV_NAMES:
        raise ValueError(no_such("XLand-MiniGrid environment", env_name, ENV_NAMES))
    options = from_hashable(arguments)
    with jax.ensure_compile_time_eval():
        grid_env, params = _xminigrid().make(env_name)
        names = {field.name for field in dataclasses.fields(params)} - {"render_mode"}
        check_options(f"xminigrid {env_name}", options, names)
    return XMiniGridAdapter(grid_env, params.replace(**options), ("xminigrid", env_name, arguments))


@functools.cache
def _xminigrid() -> Any:
    """Import and return the package ``xminigrid``."""
    with explain_missing_package("XLand-MiniGrid environments", "xminigrid"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from its plotting imports
        import xminigrid
    return xminigrid

"""Exports JAX environments as Gymnasium environments, for agents of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.env import Env
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace
from evorl.types import PyTreeDict

if TYPE_CHECKING:
    import gymnasium


def as_gymnasium(env: Env) -> gymnasium.Env:
    """Convert a single JAX environment, with or without wrappers, to a Gymnasium environment.

    ``reset(seed=s)`` starts the same episode as ``env.reset`` with the key data ``[s >> 32, s % 2**32]``; s may have up
    to 64 bits. Without a seed, the generator ``np_random`` draws the key data.

    Raises:
        TypeError: ``env`` is a vector environment.
    """
    if hasattr(env, "num_envs"):
        raise TypeError(f"as_gymnasium requires a single environment, got {type(env).__name__}: pass its env.")
    import gymnasium

    class GymnasiumFromEnv(gymnasium.Env):
        """A Gymnasium environment that calls compiled ``reset`` and ``step`` functions of a JAX environment."""

        def __init__(self) -> None:
            self.metadata = {"seed_bits": 64}
            self.observation_space = gymnasium_space(env.obs_space)
            self.action_space = gymnasium_space(env.action_space)
            self.max_episode_steps = env.max_episode_steps
            self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
            self._state: Any = None

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
            """Start an episode; ``options`` is ignored, and the returned ``info`` is empty."""
            super().reset(seed=seed)
            key_data = self.np_random.integers(0, 2**32, 2, np.uint32) if seed is None else divmod(seed, 2**32)
            self._state = self._reset(jax.random.wrap_key_data(jnp.asarray(key_data, jnp.uint32)))
            return jax.tree.map(np.asarray, self._state.obs), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            """Take a step; ``info`` has the scalar metrics. Raises ``ResetNeeded`` before the first ``reset``."""
            if self._state is None:
                raise gymnasium.error.ResetNeeded("call reset before step.")
            dtypes = jax.tree.map(lambda spec: spec.dtype, env.action_space.spec)
            self._state = state = self._step(self._state, jax.tree.map(np.asarray, PyTreeDict(a=action).a, dtypes))
            termination, truncation = bool(state.info.termination), bool(state.info.truncation)
            metrics = {name: float(value) for name, value in state.info.metrics.items() if np.ndim(value) == 0}
            return jax.tree.map(np.asarray, state.obs), float(state.reward), termination, truncation, metrics

    return GymnasiumFromEnv()


def gymnasium_space(space: Space) -> Any:
    """Convert an evorl space to a Gymnasium space; raise ``ValueError`` for a space that evorl does not define."""
    from gymnasium import spaces

    if isinstance(space, DictSpace):
        return spaces.Dict({name: gymnasium_space(member) for name, member in space.spaces.items()})
    if isinstance(space, TupleSpace):
        return spaces.Tuple([gymnasium_space(member) for member in space.spaces])
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n, start=space.start)
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(space.sizes, space.dtype.type, start=space.start)
    if isinstance(space, Box):
        return spaces.Box(space.low, space.high, space.shape, space.dtype.type)
    raise ValueError(f"{space} has no equivalent in Gymnasium: use a space of evorl.envs.")

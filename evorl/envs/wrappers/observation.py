"""Wrappers that change observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.values import positive
from evorl.envs.env import Env, EnvState
from evorl.envs.space import ACTION_MASK, Box, DictSpace, Space, TupleSpace, leaf_spaces, leaf_values
from evorl.envs.wrappers.encoding import PIXEL_RANGE, encoded, encoded_space
from evorl.envs.wrappers.wrapper import ChangesObservations, Wrapper, has_layer
from evorl.types import Action, Key, Observation, PyTreeDict


class ObsFlattenWrapper(ChangesObservations, Wrapper):
    """Flattens an observation to one vector: one-hot encodes discrete entries, then ravels and concatenates all arrays.

    If all arrays have the same dtype, the vector has this dtype. Otherwise it is float32, and pixels (uint8) are
    divided by 255, as networks expect. Observations with an ``action_mask`` become a dict of the vector
    (``observation``) and the unchanged mask. See ``evorl.envs.wrappers.encoding``.

    Raises:
        TypeError: a space inside the observation space is not one of evorl's, or a goal is not a ``Box``.
    """

    hides_goals = "env.flatten_obs joins observation and goals into one vector"

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._inner_space, self._mask_space = _without_mask(env.obs_space)
        self._encoded_space = encoded_space(self._inner_space)
        members = leaf_spaces(self._encoded_space)
        for member in members:
            if not isinstance(member, Box):
                raise TypeError(f"cannot flatten {member!r}: use spaces of evorl.envs, and Boxes for goals.")
        dtypes = {member.dtype for member in members}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
        low, high = (
            np.concatenate([self._raveled(member, getattr(member, bound), np) for member in members])
            for bound in ("low", "high")
        )
        self._vector_space = Box(low, high, dtype=self._dtype)

    @property
    def obs_space(self) -> Space:
        """A one-dimensional ``Box``; with an action mask, a dict of ``observation`` and ``action_mask``."""
        if self._mask_space is None:
            return self._vector_space
        return DictSpace({"observation": self._vector_space, ACTION_MASK: self._mask_space})

    def _raveled(self, space: Space, x: Any, numpy: Any = jnp) -> Any:
        """Return a segment of the vector: ``x``, an element or a bound of ``space``, raveled, in the vector's dtype."""
        if space.dtype == self._dtype:
            return numpy.ravel(x)
        x = numpy.ravel(x).astype(self._dtype)
        return x / np.float32(PIXEL_RANGE) if space.dtype == np.uint8 else x

    def observation(self, obs: Observation) -> Observation:
        inner = obs
        if self._mask_space is not None:
            inner = PyTreeDict({name: entry for name, entry in obs.items() if name != ACTION_MASK})
        values = leaf_values(self._encoded_space, encoded(self._inner_space, inner))
        members = leaf_spaces(self._encoded_space)
        vector = jnp.concatenate([self._raveled(space, x) for space, x in zip(members, values, strict=True)])
        return vector if self._mask_space is None else PyTreeDict(observation=vector, action_mask=obs[ACTION_MASK])


class ObsSelectWrapper(ChangesObservations, Wrapper):
    """Selects components of an observation vector, to hide the other components from the agent.

    Args:
        env: an environment whose observations are vectors.
        components: indices of the selected components, in the order of the new vector.

    Raises:
        ValueError: observations are not vectors; or the indices are empty, repeated or out of range.
    """

    def __init__(self, env: Env, components: Sequence[int]) -> None:
        super().__init__(env)
        space = env.obs_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(
                f"env.observed selects components of a vector, but observations are {space}: set env.flatten_obs=true, "
                "or remove env.observed if observations have an action_mask."
            )
        (size,) = space.shape
        is_list = isinstance(components, Sequence) and not isinstance(components, str) and len(components) > 0
        if not is_list or not all(_is_index(number, size) for number in components):
            raise ValueError(f"env.observed must list one or more integers from 0 to {size - 1}, got {components!r}.")
        if len(set(components)) < len(components):
            raise ValueError(f"env.observed must not contain a component twice, got {list(components)}.")
        self.components = tuple(int(number) for number in components)
        chosen = list(self.components)
        self._space = Box(space.low[chosen], space.high[chosen], dtype=space.dtype)

    @property
    def obs_space(self) -> Box:
        return self._space

    def observation(self, obs: Observation) -> Observation:
        return obs[np.array(self.components)]


class FrameStackWrapper(Wrapper):
    """Stacks the last ``num_frames`` observations along the last axis, newest last.

    ``[O] -> [num_frames * O]``, ``[H, W, C] -> [H, W, num_frames * C]``; an image without channels gets a channel axis:
    ``[H, W] -> [H, W, num_frames]``. The dtype is unchanged. After a reset every frame is the first observation. An
    ``action_mask`` is not stacked: the observation has only the newest mask.

    Raises:
        ValueError: an entry of the observation is a scalar or not a ``Box``, and must be flattened first; or ``env``
            already contains a ``FrameStackWrapper``.
    """

    hides_goals = "env.history joins goals of several steps"

    def __init__(self, env: Env, num_frames: int) -> None:
        super().__init__(env)
        if has_layer(env, FrameStackWrapper):
            raise ValueError("The environment already contains a FrameStackWrapper: set its number of frames instead.")
        self.num_frames = positive(num_frames, "num_frames")
        others, self._mask_space = _without_mask(env.obs_space)
        self._space = self._stacked_space(others)
        if isinstance(self._space, DictSpace) and self._mask_space is not None:
            self._space = DictSpace({**self._space.spaces, ACTION_MASK: self._mask_space})

    @property
    def obs_space(self) -> Space:
        return self._space

    def reset(self, key: Key) -> EnvState:
        state = self.env.reset(key)
        stack = jax.tree.map(lambda x: jnp.concatenate([_with_channels(x)] * self.num_frames, axis=-1), state.obs)
        return self._with_stack(state, stack)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        state = self.env.step(env_state, action)

        def push(earlier: jax.Array, frame: jax.Array) -> jax.Array:
            return jnp.concatenate([earlier, _with_channels(frame)], axis=-1)

        return self._with_stack(state, jax.tree.map(push, env_state._internal.earlier_frames, state.obs))

    def _with_stack(self, state: EnvState, stack: Observation) -> EnvState:
        # The beginning of the next stack: all frames except the oldest.
        earlier = jax.tree.map(lambda x: x[..., x.shape[-1] // self.num_frames :], stack)
        obs: Any = stack
        if self._mask_space is not None:
            obs = obs | {ACTION_MASK: state.obs[ACTION_MASK]}
        return state.replace(obs=obs, _internal=state._internal | {"earlier_frames": earlier})

    def _stacked_space(self, space: Space) -> Space:
        if isinstance(space, DictSpace):
            return DictSpace({name: self._stacked_space(member) for name, member in space.spaces.items()})
        if isinstance(space, TupleSpace):
            return TupleSpace([self._stacked_space(member) for member in space.spaces])
        if not isinstance(space, Box) or not space.shape:
            raise ValueError(f"env.history stacks arrays, but observations contain {space}: set env.flatten_obs=true.")
        bounds = (_with_channels(bound) for bound in (space.low, space.high))
        low, high = (np.concatenate([bound] * self.num_frames, axis=-1) for bound in bounds)
        return Box(low, high, dtype=space.dtype)


def _with_channels(frame: Any) -> Any:
    return frame[..., None] if frame.ndim == 2 else frame


def _is_index(number: Any, size: int) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and bool(0 <= number < size)


def _without_mask(space: Space) -> tuple[Space, Space | None]:
    """Return ``space`` without its entry ``action_mask``, and the space of the mask (``None`` without a mask)."""
    if not isinstance(space, DictSpace) or ACTION_MASK not in space.spaces:
        return space, None
    entries = {name: member for name, member in space.spaces.items() if name != ACTION_MASK}
    return DictSpace(entries), space[ACTION_MASK]

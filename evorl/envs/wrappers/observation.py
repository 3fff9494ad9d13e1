"""Wrappers that change what is observed."""

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
from evorl.envs.wrappers.wrapper import Wrapper, has_layer
from evorl.types import Action, Key, Observation, PyTreeDict


class ObsFlattenWrapper(Wrapper):
    """Joins an observation to one vector: choices one-hot encoded, arrays raveled, containers joined in order.

    Where all parts have one dtype the vector has it. Else it is float32, and pixels among the parts (uint8) are divided
    by 255, as networks read them. An ``action_mask`` stays what it is: then the vector is the entry ``observation``
    beside it. See ``evorl.envs.wrappers.encoding``.

    Raises:
        TypeError: a part of the observation is no array.
    """

    hides_goals = "env.flatten_obs makes one vector of observation and goals"

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._inner_space, self._mask_space = _without_mask(env.obs_space)
        self._encoded_space = encoded_space(self._inner_space)
        members = leaf_spaces(self._encoded_space)
        for member in members:
            if not isinstance(member, Box):
                raise TypeError(f"cannot flatten observations of {member!r}.")
        dtypes = {member.dtype for member in members}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
        low, high = (
            np.concatenate([self._raveled(member, getattr(member, bound), np) for member in members])
            for bound in ("low", "high")
        )
        self._vector_space = Box(low, high, dtype=self._dtype)

    @property
    def obs_space(self) -> Space:
        """A one-dimensional ``Box``; with a mask, a dict of ``observation`` and ``action_mask``."""
        if self._mask_space is None:
            return self._vector_space
        return DictSpace({"observation": self._vector_space, ACTION_MASK: self._mask_space})

    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        state = self.env.reset(key)
        return state.replace(obs=self._flatten(state.obs))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        state = self.env.step(env_state, action)
        return state.replace(obs=self._flatten(state.obs))

    def _raveled(self, space: Space, x: Any, numpy: Any = jnp) -> Any:
        """One part of the vector: an array, or a bound, of ``space``."""
        if space.dtype == self._dtype:
            return numpy.ravel(x)
        x = numpy.ravel(x).astype(self._dtype)
        return x / np.float32(PIXEL_RANGE) if space.dtype == np.uint8 else x

    def _flatten(self, obs: Any) -> Observation:
        inner = obs
        if self._mask_space is not None:
            inner = PyTreeDict({name: entry for name, entry in obs.items() if name != ACTION_MASK})
        values = leaf_values(self._encoded_space, encoded(self._inner_space, inner))
        members = leaf_spaces(self._encoded_space)
        vector = jnp.concatenate([self._raveled(space, x) for space, x in zip(members, values, strict=True)])
        return vector if self._mask_space is None else PyTreeDict(observation=vector, action_mask=obs[ACTION_MASK])


class ObsSelectWrapper(Wrapper):
    """Only some components of a flat observation are seen: to leave out what would make it too easy.

    Args:
        env: an environment whose observations are vectors.
        components: the numbers of those that are seen, in that order.

    Raises:
        ValueError: observations are no vectors; or a number is out of range, stands twice, or there is none.
    """

    def __init__(self, env: Env, components: Sequence[int]) -> None:
        super().__init__(env)
        space = env.obs_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(f"observed chooses components of a vector, observations are {space}: flatten them first.")
        (size,) = space.shape
        is_list = isinstance(components, Sequence) and not isinstance(components, str) and len(components) > 0
        if not is_list or not all(_is_index(number, size) for number in components):
            raise ValueError(
                f"observed must be a list of whole numbers from 0 to {size - 1}, as in [0]; got {components!r}."
            )
        if len(set(components)) < len(components):
            raise ValueError(f"observed names a component twice: {list(components)}.")
        self.components = tuple(int(number) for number in components)
        chosen = list(self.components)
        self._space = Box(space.low[chosen], space.high[chosen], dtype=space.dtype)

    @property
    def obs_space(self) -> Box:
        """The space of what is seen."""
        return self._space

    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        return self._select(self.env.reset(key))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        return self._select(self.env.step(env_state, action))

    def _select(self, state: EnvState) -> EnvState:
        return state.replace(obs=state.obs[np.array(self.components)])


class FrameStackWrapper(Wrapper):
    """The observation is the last ``num_frames`` ones, joined along the last axis, the newest last.

    ``[O] -> [num_frames * O]``, ``[H, W, C] -> [H, W, num_frames * C]``, and an image without channels gets some:
    ``[H, W] -> [H, W, num_frames]``. The dtype stays. After a reset every frame is the first observation. Of an
    ``action_mask`` only the newest is seen.

    Raises:
        ValueError: some observation is a scalar: flatten it first; or there is a ``FrameStackWrapper`` inside.
    """

    hides_goals = "env.history joins goals of several steps"

    def __init__(self, env: Env, num_frames: int) -> None:
        super().__init__(env)
        if has_layer(env, FrameStackWrapper):
            raise ValueError("There is a FrameStackWrapper inside already: give it the number of frames instead.")
        self.num_frames = positive(num_frames, "num_frames")
        self._space = self._stacked_space(env.obs_space)
        _, self._mask_space = _without_mask(env.obs_space)
        if isinstance(self._space, DictSpace) and self._mask_space is not None:
            self._space = DictSpace({**self._space.spaces, ACTION_MASK: self._mask_space})

    @property
    def obs_space(self) -> Space:
        """The space of stacked observations."""
        return self._space

    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        state = self.env.reset(key)
        stack = jax.tree.map(lambda x: jnp.concatenate([_with_channels(x)] * self.num_frames, axis=-1), state.obs)
        return self._with_stack(state, stack)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        state = self.env.step(env_state, action)

        def push(earlier: jax.Array, frame: jax.Array) -> jax.Array:
            return jnp.concatenate([earlier, _with_channels(frame)], axis=-1)

        return self._with_stack(state, jax.tree.map(push, env_state._internal.earlier_frames, state.obs))

    def _with_stack(self, state: EnvState, stack: Observation) -> EnvState:
        # What the next stack starts with: all frames but the oldest.
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
            raise ValueError(f"FrameStackWrapper joins arrays, got scalar observations {space}: flatten them first.")
        bounds = (_with_channels(bound) for bound in (space.low, space.high))
        low, high = (np.concatenate([bound] * self.num_frames, axis=-1) for bound in bounds)
        return Box(low, high, dtype=space.dtype)


def _with_channels(frame: Any) -> Any:
    return frame[..., None] if frame.ndim == 2 else frame


def _is_index(number: Any, size: int) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and bool(0 <= number < size)


def _without_mask(space: Space) -> tuple[Space, Space | None]:
    """The space of what is observed beside an action mask, and that of the mask, ``None`` where there is none."""
    if not isinstance(space, DictSpace) or ACTION_MASK not in space.spaces:
        return space, None
    entries = {name: member for name, member in space.spaces.items() if name != ACTION_MASK}
    return DictSpace(entries), space[ACTION_MASK]

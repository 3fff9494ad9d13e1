"""Encodes observations as numeric network inputs, with one rule per kind of space, at any depth.

=================  ==================================================================================================
``Discrete``       one-hot, ``[n]``
``MultiDiscrete``  every entry one-hot, concatenated, ``[sum(sizes)]``
``Box`` of uint8   pixels, unchanged; divided by 255 in networks, and in ``ObsFlattenWrapper`` next to other numbers
other ``Box``      unchanged; networks convert the numbers to float32
=================  ==================================================================================================

The goals ``achieved_goal`` and ``desired_goal`` are not encoded, because they are compared with each other, nor is
``action_mask``, because its entry i refers to action i.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.env import Env
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import ACTION_MASK, GOAL_KEYS, Box, DictSpace, Discrete, Space, TupleSpace
from evorl.envs.wrappers.wrapper import ChangesObservations, Wrapper
from evorl.types import Observation, PyTreeDict

PIXEL_RANGE = 255.0
_IMAGE_AXES = 3


class _Encodes(ChangesObservations):
    """Mixin for wrappers whose encoding of observations can be inverted."""

    @property
    def goal_task(self) -> Any:
        """The goal task, with a reward function of encoded observations; ``None`` without goals."""
        task = self.env.goal_task
        return task and task.with_reward(lambda *step: task.reward_fn(*step[:3], self._decoded(step[3])))

    @abc.abstractmethod
    def _decoded(self, obs: Observation) -> Observation:
        """Return the entry ``observation`` of ``env``, given that of the agent."""


class ObsOneHotWrapper(_Encodes, Wrapper):
    """One-hot encodes discrete entries (``Discrete``, ``MultiDiscrete``) of observations, and keeps other entries."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._space = encoded_space(env.obs_space)

    @property
    def obs_space(self) -> Space:
        """The space of ``env``, with a float32 ``Box(0, 1)`` in place of each discrete entry."""
        return self._space

    def observation(self, obs: Observation) -> Observation:
        return encoded(self.env.obs_space, obs)

    def _decoded(self, obs: Observation) -> Observation:
        space: Any = self.env.obs_space
        return decoded(space.spaces["observation"], obs)


class ChannelsLastWrapper(_Encodes, Wrapper):
    """Moves the channels of images to the last axis, where convolutions expect them: ``[C, H, W] -> [H, W, C]``.

    Every array with three axes, at any depth of an observation, is treated as an image.

    Raises:
        ValueError: observations contain no array with three axes.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._space = _with_channels_last(env.obs_space)
        if self._space == env.obs_space and not any(
            len(leaf.shape) == _IMAGE_AXES for leaf in jax.tree.leaves(env.obs_space.spec)
        ):
            raise ValueError(
                f"env.channels=first needs images [channels, height, width], but observations are {env.obs_space}: "
                "remove env.channels."
            )

    @property
    def obs_space(self) -> Space:
        """The space of ``env``, with images ``[H, W, C]``."""
        return self._space

    def observation(self, obs: Observation) -> Observation:
        return jax.tree.map(lambda x: _channels_behind(x, jnp), obs)

    def _decoded(self, obs: Observation) -> Observation:
        return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0) if jnp.ndim(x) == _IMAGE_AXES else x, obs)


def _channels_behind(x: Any, numpy: Any) -> Any:
    return numpy.moveaxis(x, 0, -1) if numpy.ndim(x) == _IMAGE_AXES else x


def _with_channels_last(space: Space) -> Space:
    if isinstance(space, DictSpace):
        return DictSpace({name: _with_channels_last(member) for name, member in space.spaces.items()})
    if isinstance(space, TupleSpace):
        return TupleSpace([_with_channels_last(member) for member in space.spaces])
    if isinstance(space, MultiDiscrete) and space.sizes.ndim == _IMAGE_AXES:
        return MultiDiscrete(np.moveaxis(space.sizes, 0, -1), np.moveaxis(space.start, 0, -1), space.dtype)
    if not isinstance(space, Box) or len(space.shape) != _IMAGE_AXES:
        return space
    return Box(_channels_behind(space.low, np), _channels_behind(space.high, np), dtype=space.dtype)


def has_choices(space: Space) -> bool:
    """Return True if ``encoded`` changes observations of ``space``, because it has discrete entries to encode."""
    if isinstance(space, DictSpace | TupleSpace):
        return any(has_choices(member) for _, member in _encoded_entries(space))
    return isinstance(space, Discrete | MultiDiscrete)


def encoded_space(space: Space) -> Space:
    """Return the space of ``encoded(space, obs)``."""
    if isinstance(space, DictSpace):
        return DictSpace({**space.spaces, **{name: encoded_space(member) for name, member in _encoded_entries(space)}})
    if isinstance(space, TupleSpace):
        return TupleSpace([encoded_space(member) for _, member in _encoded_entries(space)])
    if isinstance(space, Discrete):
        return Box(0.0, 1.0, (space.n,))
    return Box(0.0, 1.0, (int(space.sizes.sum()),)) if isinstance(space, MultiDiscrete) else space


def encoded(space: Space, obs: Any) -> Observation:
    """Return an observation of ``space`` with its discrete entries one-hot encoded, as float32 vectors.

    A number that is not one of the choices becomes zeros.
    """
    if isinstance(space, DictSpace):
        members = dict(_encoded_entries(space))
        return PyTreeDict({name: encoded(members[name], x) if name in members else x for name, x in obs.items()})
    if isinstance(space, TupleSpace):
        return tuple(encoded(member, obs[i]) for i, member in _encoded_entries(space))
    if isinstance(space, Discrete):
        return jax.nn.one_hot(obs - space.start if space.start else obs, space.n)
    if not isinstance(space, MultiDiscrete):
        return obs
    entry = np.repeat(np.arange(space.sizes.size), space.sizes.ravel())
    choice = np.concatenate([first + np.arange(n) for first, n in zip(space.start.flat, space.sizes.flat, strict=True)])
    return (jnp.ravel(obs)[entry] == choice).astype(jnp.float32)


def decoded(space: Space, obs: Any) -> Observation:
    """Return the observation of ``space`` whose encoding by ``encoded`` is ``obs``."""
    if isinstance(space, DictSpace):
        members = dict(_encoded_entries(space))
        return PyTreeDict({name: decoded(members[name], x) if name in members else x for name, x in obs.items()})
    if isinstance(space, TupleSpace):
        return tuple(decoded(member, obs[i]) for i, member in _encoded_entries(space))
    if isinstance(space, Discrete):
        return (jnp.argmax(obs) + space.start).astype(space.dtype)
    if not isinstance(space, MultiDiscrete):
        return obs
    choices = [jnp.argmax(part) for part in jnp.split(obs, np.cumsum(space.sizes.ravel())[:-1])]
    return (jnp.stack(choices).reshape(space.sizes.shape) + space.start).astype(space.dtype)


def _encoded_entries(space: DictSpace | TupleSpace) -> Iterator[tuple[Any, Space]]:
    """Yield the name or index, and the space, of each entry to encode: all except goals and the action mask."""
    if isinstance(space, TupleSpace):
        yield from enumerate(space.spaces)
        return
    goals = GOAL_KEYS - {"observation"} if set(space.spaces) - {ACTION_MASK} == GOAL_KEYS else frozenset()
    for name, member in space.spaces.items():
        if name != ACTION_MASK and name not in goals:
            yield name, member

"""Applies an environment's wrappers to observations and actions without stepping the environment."""

from __future__ import annotations

import copy
import functools
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.env import Env
from evorl.envs.host.host_row import HostRow
from evorl.envs.vector import VectorEnv
from evorl.envs.wrappers.action import ActionConversionWrapper, ActionRepeatWrapper
from evorl.envs.wrappers.clock import EpisodeWrapper
from evorl.envs.wrappers.encoding import ChannelsLastWrapper, ObsOneHotWrapper
from evorl.envs.wrappers.observation import FrameStackWrapper, ObsFlattenWrapper, ObsSelectWrapper
from evorl.envs.wrappers.reward import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardTransformWrapper,
    SparseRewardWrapper,
)
from evorl.ops.trees import tree_where
from evorl.types import Action, Observation, PyTreeData, PyTreeDict

_MAPPING = (
    ActionConversionWrapper,
    ChannelsLastWrapper,
    ObsOneHotWrapper,
    ObsFlattenWrapper,
    ObsSelectWrapper,
    FrameStackWrapper,
)
_OF_REWARDS = (RewardTransformWrapper, RewardClipWrapper, RewardScaleWrapper, SparseRewardWrapper)
_OTHERS = (ActionRepeatWrapper, EpisodeWrapper, *_OF_REWARDS)


class FrameMemory(PyTreeData):
    """Frames of an episode that frame stacking remembers; all zeros at the start.

    Attributes:
        started: True if the episode has had an observation.
        earlier_frames: all frames of the last stack except the oldest.
    """

    started: jax.Array
    earlier_frames: Observation


class WrappedRow:
    """The wrappers of one environment of ``env``, applied to a ``HostRow`` in place of the environment.

    Only wrappers that change observations or actions are used: action conversion, encoding, flatten, select and frame
    stack.

    Args:
        env: a vector environment.

    Attributes:
        inner: the environment inside of all wrappers.
        obs_space: observation space of ``inner``.
        action_space: action space of ``inner``, in the original range.
        action_repeat: number of environment steps per action.
    """

    def __init__(self, env: VectorEnv) -> None:
        layers, inner = [], env.env
        while isinstance(inner, (*_MAPPING, *_OTHERS)):
            layers.append(inner)
            inner = inner.env
        self.inner = inner
        self.obs_space, self.action_space = inner.obs_space, inner.action_space
        self.action_repeat = next((w.num_repeats for w in layers if isinstance(w, ActionRepeatWrapper)), 1)
        self._row = HostRow(self.obs_space, self.action_space, {}, None)
        self._wrapped: Env = self._row
        for layer in reversed(layers):
            if isinstance(layer, _MAPPING):
                self._wrapped = _wrap(layer, self._wrapped)
        self._has_frames = any(isinstance(layer, FrameStackWrapper) for layer in layers)

    def initial_memory(self) -> FrameMemory | None:
        """Return the memory at the start of an episode, all zeros; ``None`` without frame stacking."""
        if not self._has_frames:
            return None
        frames = self._wrapped.reset(self.obs_space.zeros())._internal.earlier_frames
        return FrameMemory(started=jnp.asarray(False), earlier_frames=jax.tree.map(jnp.zeros_like, frames))

    def seen(self, obs: Observation, memory: FrameMemory | None) -> tuple[Observation, FrameMemory | None]:
        """Return the agent's view of an observation of the environment, and the updated memory."""
        start = self._wrapped.reset(obs)
        if memory is None:
            return start.obs, None
        answer = self._row.blank_answer().replace(obs=obs)
        before = start.replace(env_state=answer, _internal=PyTreeDict(earlier_frames=memory.earlier_frames))
        later = self._wrapped.step(before, self._wrapped.action_space.zeros())
        seen = tree_where(memory.started, (later.obs, later._internal), (start.obs, start._internal))
        return seen[0], FrameMemory(started=jnp.asarray(True), earlier_frames=seen[1].earlier_frames)

    @property
    def changes_observations(self) -> bool:
        """True if the wrappers change the environment's observations."""
        return self._has_frames or self._wrapped.obs_space != self.obs_space

    def seen_steps(self, obs: Observation, next_obs: Observation, starts: Any) -> tuple[Observation, Observation]:
        """Return the agent's view of recorded steps, and of their successors.

        Args:
            obs: observations of the environment, step after step, leaves ``[N, ...]``.
            next_obs: the successor observations, in the same form.
            starts: bool ``[N]``, True for the first step of an episode.
        """
        return _seen_steps(self, obs, next_obs, jnp.asarray(starts))

    def done(self, action: Action, obs: Observation) -> Any:
        """Convert an agent's action to the environment's original range; ``obs`` is any of its observations."""
        start = self._wrapped.reset(obs)
        reached = self._wrapped.step(start.replace(env_state=self._row.blank_answer().replace(obs=obs)), action)
        spec = self.action_space.spec
        return jax.tree.map(lambda x, s: jnp.asarray(x, s.dtype), reached.env_state, spec)


@functools.partial(jax.jit, static_argnums=0)
def _seen_steps(row: WrappedRow, obs: Observation, next_obs: Observation, starts: jax.Array) -> tuple[Any, Any]:
    first = row.initial_memory()
    if first is None:
        return tuple(jax.vmap(lambda x: row.seen(x, None)[0])(x) for x in (obs, next_obs))

    def one_step(memory: Any, step: tuple[Any, Any, jax.Array]) -> tuple[Any, tuple[Any, Any]]:
        obs, next_obs, is_start = step
        seen, memory = row.seen(obs, memory.replace(started=memory.started & ~is_start))
        return memory, (seen, row.seen(next_obs, memory)[0])

    return jax.lax.scan(one_step, first, (obs, next_obs, starts))[1]


def _wrap(layer: Any, env: Env) -> Any:
    """Return a copy of ``layer`` that wraps another environment with the same spaces."""
    moved = copy.copy(layer)
    moved.env = env
    vars(moved).pop("_hash", None)
    return moved

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
    ChangesRewards,
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
_SUMMING = (ActionRepeatWrapper, SparseRewardWrapper)  # their rewards are sums over several steps
_OTHERS = (EpisodeWrapper, ChangesRewards, *_SUMMING)
_REWARD_OPTIONS: dict[type, tuple[str, str]] = {  # names of the option and of the wrapper's attribute
    ActionRepeatWrapper: ("action_repeat", "num_repeats"),
    RewardTransformWrapper: ("reward_transform", "name"),
    RewardClipWrapper: ("reward_clip", "limit"),
    SparseRewardWrapper: ("sparse_reward_interval", "interval"),
    RewardScaleWrapper: ("reward_scale", "scale"),
}


class FrameMemory(PyTreeData):
    """State of frame stacking between the observations of an episode; zeros before the first observation.

    Attributes:
        started: true if the episode has had an observation, bool.
        earlier_frames: all frames of the last stack except the oldest, in the structure of observations.
    """

    started: jax.Array
    earlier_frames: Observation


class WrappedRow:
    """Applies the wrappers of ``env`` to observations and actions of a single environment, which is never stepped.

    Only wrappers that change observations or actions are applied: action conversion, channels last, one-hot encoding,
    flattening, selection of components and frame stacking. Inside of them, a ``HostRow`` replaces the environment.

    Args:
        env: a vector environment.

    Attributes:
        inner: the environment inside of the standard wrappers; randomization, skills and goals are parts of ``inner``.
        obs_space: observation space of ``inner``.
        action_space: action space of ``inner``, without action conversion.
        action_repeat: number of environment steps per action.
        max_episode_steps: time limit in environment steps, of ``inner`` or of the wrappers; ``None`` without a limit.
    """

    def __init__(self, env: VectorEnv) -> None:
        layers: list[Any] = []
        inner = env.env
        while isinstance(inner, (*_MAPPING, *_OTHERS)):
            layers.append(inner)
            inner = inner.env
        self.inner = inner
        self.obs_space, self.action_space = inner.obs_space, inner.action_space
        repeat = next((w for w in layers if isinstance(w, ActionRepeatWrapper)), None)
        self.action_repeat = 1 if repeat is None else repeat.num_repeats
        actions = (env.max_episode_steps or 0) * self.action_repeat
        limits = (actions, inner.max_episode_steps, repeat and repeat.uneven_limit)
        self.max_episode_steps = min(filter(None, limits), default=None)
        self._row = HostRow(self.obs_space, self.action_space, {}, None)
        self._wrapped: Env = self._row
        for layer in reversed(layers):
            if isinstance(layer, _MAPPING):
                moved = copy.copy(layer)  # around an environment with the spaces of the original one
                moved.env = self._wrapped
                vars(moved).pop("_hash", None)
                self._wrapped = moved
        self._layers = layers
        self._has_frames = any(isinstance(layer, FrameStackWrapper) for layer in layers)

    def initial_memory(self) -> FrameMemory | None:
        """Return the memory before the first observation of an episode, all zeros; ``None`` without frame stacking."""
        if not self._has_frames:
            return None
        frames = self._wrapped.reset(self.obs_space.zeros())._internal.earlier_frames
        return FrameMemory(started=jnp.asarray(False), earlier_frames=jax.tree.map(jnp.zeros_like, frames))

    def seen(self, obs: Observation, memory: FrameMemory | None) -> tuple[Observation, FrameMemory | None]:
        """Return the agent's view of an observation of ``inner``, and the next memory (``None`` without stacking)."""
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
        """True if the agent's observations differ from the observations of ``inner``."""
        return self._has_frames or self._wrapped.obs_space != self.obs_space

    @property
    def reward_options(self) -> dict[str, Any]:
        """Options of the environment, by name, that change the rewards from which the agent learns."""
        named = [(*_REWARD_OPTIONS[type(x)], x) for x in reversed(self._layers) if type(x) in _REWARD_OPTIONS]
        return {option: getattr(layer, attribute) for option, attribute, layer in named}

    def learned_rewards(self, rewards: Any) -> Any:
        """Return the rewards ``[N]`` that the agent learns from, given the rewards ``[N]`` of ``inner``.

        Raises:
            ValueError: the agent's rewards are sums over several steps.
        """
        for layer in reversed(self._layers):
            if isinstance(layer, _SUMMING):
                raise ValueError(
                    f"recorded rewards belong to single steps, but {layer.hides_goals}: remove this setting."
                )
            rewards = layer.transformed(rewards) if isinstance(layer, ChangesRewards) else rewards
        return rewards

    def seen_steps(self, obs: Observation, next_obs: Observation, starts: Any) -> tuple[Observation, Observation]:
        """Return the agent's views of the observations before and after recorded steps, ``[N, ...]`` each.

        Args:
            obs: recorded observations of ``inner``, in the order of the steps, leaves ``[N, ...]``.
            next_obs: the observations after the same steps, in the same form.
            starts: bool ``[N]``, true for the first step of an episode.
        """
        return _seen_steps(self, obs, next_obs, jnp.asarray(starts))

    def done(self, action: Action, obs: Observation) -> Any:
        """Convert an agent's action to an action of ``inner``; ``obs``, any observation of ``inner``, has no effect."""
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

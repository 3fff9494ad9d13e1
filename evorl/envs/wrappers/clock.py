"""Wrappers that count steps and sum rewards of an episode, limit its length, or stop after one episode."""

from __future__ import annotations

import jax.numpy as jnp

from evorl.config.values import positive
from evorl.envs.env import Env, EnvState, freeze_ended
from evorl.envs.wrappers.wrapper import Wrapper, has_layer
from evorl.types import Action, Key


class EpisodeWrapper(Wrapper):
    """Counts steps, sums rewards, and ends the episode at the time limit.

    Adds ``steps`` and ``episode_length`` (int32, equal) and ``episode_return`` (float32) to ``info``. If the
    environment terminates in the step that reaches the time limit, the episode counts as terminated, not truncated.

    Args:
        env: a single environment.
        max_episode_steps: time limit in steps of ``env``, in addition to a limit declared by ``env``; the smaller one
            applies. ``None`` for none. Simulators on the host apply their own limits themselves.

    Raises:
        ValueError: ``env`` already contains an ``EpisodeWrapper``, or the time limit is not positive.
    """

    def __init__(self, env: Env, max_episode_steps: int | None = None) -> None:
        super().__init__(env)
        if has_layer(env, EpisodeWrapper):
            raise ValueError("The environment already contains an EpisodeWrapper: set its time limit instead.")
        self._limit = None if max_episode_steps is None else positive(max_episode_steps, "max_episode_steps")
        self._enforced = self._limit
        if not getattr(env.unwrapped, "steps_on_host", False) and (declared := env.max_episode_steps) is not None:
            positive(declared, f"{type(env.unwrapped).__name__}.max_episode_steps")
            self._enforced = self.max_episode_steps

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit of this wrapper or of ``env``, the smaller one; ``None`` if neither has a limit."""
        limits = [limit for limit in (self._limit, self.env.max_episode_steps) if limit is not None]
        return int(min(limits)) if limits else None

    def reset(self, key: Key) -> EnvState:
        return _with_counts(self.env.reset(key), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        state = self.env.step(env_state, action)
        steps = env_state._internal.episode_steps + 1
        total = env_state._internal.episode_return + state.reward
        termination, truncation = state.info.termination, state.info.truncation
        termination |= state.done & ~truncation  # ``done`` without a flag is a termination
        truncation = (truncation if self._enforced is None else truncation | (steps >= self._enforced)) & ~termination
        info = state.info | {"termination": termination, "truncation": truncation}
        state = state.replace(done=termination | truncation, info=info)
        return _with_counts(state, steps, total)


class OneEpisodeWrapper(Wrapper):
    """Runs a single episode: after its end, the state no longer changes, and the reward is 0. Must be outermost."""

    is_outermost = True

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return freeze_ended(env_state, self.env.step(env_state, action))


def _with_counts(state: EnvState, steps: jnp.ndarray, total: jnp.ndarray) -> EnvState:
    info = state.info | {"steps": steps, "episode_length": steps, "episode_return": total}
    return state.replace(info=info, _internal=state._internal | {"episode_steps": steps, "episode_return": total})

"""Reference batch: observations of random actions, collected before training to normalize or compare networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.agents.random_actions import random_actions
from evorl.envs.env import EnvState
from evorl.envs.vector import VectorEnv
from evorl.evaluators.episodes import episode_keys, most_steps, run_episodes
from evorl.ops.random import as_typed_key, split_rows
from evorl.ops.trees import tree_where
from evorl.types import Key, Observation, PyTreeData


class _Walk(PyTreeData):
    env_state: EnvState
    chosen: Observation
    ended: jax.Array  # [N]
    step: jax.Array


def reference_observations(env: VectorEnv, num_episodes: int, key: Key) -> Observation:
    """Return one observation of each of N episodes of random actions (see ``Space.sample``), ``[N, ...]``.

    Every step of an episode is selected with equal probability, although the length is unknown: the observation at step
    t replaces the previously selected one with probability ``1 / (t + 1)`` (reservoir sampling).

    Args:
        env: vectorized environment in any autoreset mode; its ``num_envs`` is ignored.
        num_episodes: number of episodes N.
        key: key of the resets, actions and selections of all episodes.
    """
    reset_keys, action_keys = episode_keys(as_typed_key(key), jnp.arange(num_episodes))
    env_state = env.reset(reset_keys)

    def running(walk: _Walk) -> jax.Array:
        return ~walk.ended.all() & (walk.step < most_steps(env))

    def advance(walk: _Walk) -> _Walk:
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(action_keys, walk.step)
        action_key, choice_key = split_rows(step_keys)
        is_chosen = ~walk.ended & (jax.vmap(jax.random.uniform)(choice_key) * (walk.step + 1) < 1.0)
        actions = random_actions(env.action_space, action_key, num_episodes, walk.env_state.obs)
        env_state = env.step(walk.env_state, actions)
        return _Walk(
            env_state=env_state,
            chosen=tree_where(is_chosen, walk.env_state.obs, walk.chosen),
            ended=walk.ended | env_state.done,
            step=walk.step + 1,
        )

    ended = jnp.zeros(num_episodes, jnp.bool_)
    walk = _Walk(env_state=env_state, chosen=env_state.obs, ended=ended, step=jnp.zeros((), jnp.int32))
    return run_episodes(running, advance, walk, most_steps(env)).chosen

"""n-step transitions, assembled from stored single steps when they are sampled."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.replay_buffers.ring import ReplayState, take
from evorl.sample_batch import SampleBatch


def take_n_step(
    state: ReplayState, rows: jax.Array, envs: jax.Array, num_envs: int, num_steps: int, discount: jax.Array | float
) -> SampleBatch:
    """Return the n-step transitions that start at ``(rows, envs)`` (Sutton & Barto 2018, section 7.1).

    A transition is shorter where the episode or the stored data ends. Each stored step starts exactly one transition,
    so an episode has as many transitions as steps.

    Args:
        state: ring of ``SampleBatch`` with ``dones`` and ``extras.termination``.
        rows: filled rows of the ring, ``[...]``.
        envs: global environment indices, ``[...]``.
        num_envs: number of environments over all devices.
        num_steps: largest number n of rewards in a transition.
        discount: discount per step.

    Returns:
        ``obs``, ``actions`` and ``extras`` of the first step; ``rewards``, the discounted sum; ``next_obs`` of the last
        step; and in ``extras``, ``num_rewards``, int32, and ``discounts``, the discount over all steps, 0 after a
        termination. All leaves are ``[..., ...]``.
    """
    if num_steps == 1:
        batch = take(state.data, rows, envs, num_envs)
        discounts = discount * (1.0 - batch.extras.termination.astype(jnp.float32))
        ones = jnp.ones(rows.shape, jnp.int32)
        return batch.replace(dones=None, extras=batch.extras | {"num_rewards": ones, "discounts": discounts})
    first = take(state.data.replace(next_obs=None, rewards=None, dones=None), rows, envs, num_envs)
    window_rows, window_envs, is_stored = window_from(state, rows, envs, num_envs, num_steps)
    rewards, dones = take((state.data.rewards, state.data.dones), window_rows, window_envs, num_envs)
    rewards, num_rewards = discounted_sum(rewards, dones, is_stored, discount)
    last_rows = (rows + num_rewards - 1) % jax.tree.leaves(state.data)[0].shape[0]
    next_obs, termination = take((state.data.next_obs, state.data.extras.termination), last_rows, envs, num_envs)
    discounts = discount**num_rewards * (1.0 - termination.astype(jnp.float32))
    return first.replace(
        rewards=rewards,
        next_obs=next_obs,
        extras=first.extras | {"num_rewards": num_rewards, "discounts": discounts},
    )


def window_from(
    state: ReplayState, rows: jax.Array, envs: jax.Array, num_envs: int, num_steps: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return n rows from ``rows`` ``[...]`` on, their environments, and whether each is stored; ``[..., n]`` each."""
    num_rows = jax.tree.leaves(state.data)[0].shape[0]
    steps = jnp.arange(num_steps)
    window_rows = (rows[..., None] + steps) % num_rows
    stored = state.num_from(rows, envs, num_envs)
    return window_rows, jnp.broadcast_to(envs[..., None], window_rows.shape), steps < stored[..., None]


def discounted_sum(
    rewards: jax.Array, ends: jax.Array, is_stored: jax.Array, discount: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Sum ``rewards`` ``[..., n]`` with discount up to the first of ``ends``; also return their number, int32."""
    ended_before = jnp.cumsum(ends.astype(jnp.int32), axis=-1) - ends.astype(jnp.int32)
    is_in = (ended_before == 0) & is_stored
    num_rewards = is_in.sum(axis=-1, dtype=jnp.int32)
    steps = jnp.arange(rewards.shape[-1])
    return jnp.where(is_in, rewards * discount**steps, 0.0).sum(axis=-1), num_rewards

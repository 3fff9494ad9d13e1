"""Exploration noise. Keys are scalar or one per row."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.ops.random import draw
from evorl.types import Key


def epsilon_greedy_probabilities(q_values: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Probabilities of the epsilon-greedy policy; the greedy part is shared by all maximal actions.

    Args:
        q_values: ``[..., A]``.
        epsilon: probability of acting uniformly at random, a number or ``[...]``.

    Returns:
        ``[..., A]``, summing to 1 over the last axis.
    """
    is_best = (q_values == q_values.max(axis=-1, keepdims=True)).astype(q_values.dtype)
    greedy = is_best / is_best.sum(axis=-1, keepdims=True)
    epsilon = jnp.asarray(epsilon, q_values.dtype)[..., None]
    return (1.0 - epsilon) * greedy + epsilon / q_values.shape[-1]


def epsilon_greedy(key: Key, q_values: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Actions drawn by ``epsilon_greedy_probabilities``, int32 ``[...]`` for values ``[..., A]``."""
    probabilities = epsilon_greedy_probabilities(q_values, epsilon)
    noise = draw(jax.random.gumbel, key, q_values.shape)
    return jnp.argmax(jnp.log(probabilities) + noise, axis=-1).astype(jnp.int32)


def add_gaussian_noise(
    key: Key,
    actions: jax.Array,
    scale: jax.Array | float,
    noise_bound: jax.Array | float = jnp.inf,
    low: jax.Array | float = -1.0,
    high: jax.Array | float = 1.0,
) -> jax.Array:
    """``clip(actions + clip(scale * N(0, 1), -noise_bound, noise_bound), low, high)``, the shape of ``actions``.

    With a finite ``noise_bound`` it is target policy smoothing (Fujimoto et al. 2018, eq. 14).
    """
    noise = jnp.clip(scale * draw(jax.random.normal, key, actions.shape), -noise_bound, noise_bound)
    return jnp.clip(actions + noise, low, high)


def ou_noise_step(
    key: Key,
    noise: jax.Array,
    theta: jax.Array | float = 0.15,
    sigma: jax.Array | float = 0.2,
    step: jax.Array | float = 1.0,
) -> jax.Array:
    """One step of an Ornstein-Uhlenbeck process around 0: ``x - theta x dt + sigma sqrt(dt) N(0, 1)``."""
    return noise - theta * noise * step + sigma * jnp.sqrt(step) * draw(jax.random.normal, key, noise.shape)

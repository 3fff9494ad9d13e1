"""Competitive swarm optimization (Cheng & Jin 2015, https://doi.org/10.1109/TCYB.2014.2322602)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.types import Key


def competitive_swarm_step(
    key: Key, positions: jax.Array, velocities: jax.Array, winners: jax.Array, social_factor: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Compute the next position and velocity of every particle, as if it had lost its contest (eqs. 6 and 7).

    A loser learns from the winner of its contest and from the mean of the swarm, with random weights per dimension.

    Args:
        key: random key of the weights.
        positions: positions of the particles, ``[P, D]``.
        velocities: velocities of the particles, ``[P, D]``.
        winners: position of the winner of each particle's contest, ``[P, D]``.
        social_factor: attraction to the mean of the swarm; the paper uses 0 for swarms of up to 100 particles.

    Returns:
        Positions ``[P, D]``, not clipped to any bounds, and velocities ``[P, D]``.
    """
    inertia, from_winner, from_mean = jax.random.uniform(key, (3, *positions.shape))
    mean = jnp.mean(positions, axis=0)
    velocities = (
        inertia * velocities + from_winner * (winners - positions) + social_factor * from_mean * (mean - positions)
    )
    return positions + velocities, velocities

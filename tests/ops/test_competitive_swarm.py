"""Competitive swarm optimization equals the paper's equations and solves a problem with a known optimum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.competitive_swarm import competitive_swarm_step
from evorl.ops.selection import pair_parents


def test_the_equations() -> None:
    """A step equals eqs. 6 and 7 in NumPy, with the same random numbers."""
    key, *keys = jax.random.split(jax.random.key(0), 4)
    x, v, winners = (np.asarray(jax.random.normal(k, (5, 3)), np.float64) for k in keys)
    r1, r2, r3 = np.asarray(jax.random.uniform(key, (3, 5, 3)), np.float64)
    speed = r1 * v + r2 * (winners - x) + 0.3 * r3 * (x.mean(axis=0) - x)
    positions, velocities = jax.jit(competitive_swarm_step)(
        key, *(jnp.asarray(a, jnp.float32) for a in (x, v, winners)), 0.3
    )
    np.testing.assert_allclose(velocities, speed, atol=1e-6)
    np.testing.assert_allclose(positions, x + speed, atol=1e-6)


def test_each_dimension_of_each_particle_has_draws_of_its_own() -> None:
    zeros = jnp.zeros((4, 3))
    _, velocities = competitive_swarm_step(jax.random.key(0), zeros, zeros, zeros + 1.0, 0.0)
    assert len(np.unique(velocities)) == 12
    assert ((velocities >= 0) & (velocities <= 1)).all()


def test_a_swarm_finds_the_minimum_of_a_sphere() -> None:
    positions = jax.random.uniform(jax.random.key(0), (40, 5), minval=-1.0)
    velocities = jnp.zeros_like(positions)

    def generation(carry: tuple, key: jax.Array) -> tuple:
        positions, velocities = carry
        pair_key, step_key = jax.random.split(key)
        parents = pair_parents(pair_key, -jnp.sum(positions**2, axis=1))
        lost = (parents != jnp.arange(40))[:, None]
        moved, speed = competitive_swarm_step(step_key, positions, velocities, positions[parents], 0.0)
        return (jnp.where(lost, moved, positions), jnp.where(lost, speed, velocities)), None

    (positions, _), _ = jax.lax.scan(generation, (positions, velocities), jax.random.split(jax.random.key(1), 300))
    assert jnp.sum(positions**2, axis=1).min() < 1e-6

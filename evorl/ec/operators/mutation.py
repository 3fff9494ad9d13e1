"""Mutation operators, which change some of each individual's entries and copy the others exactly.

A population has leaves ``[P, ...]`` of floats. ``key`` is a single key, or one key per individual, ``[P]``. Each leaf
of each individual has its own key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from evorl.ops.random import per_leaf, row_keys
from evorl.ops.trees import num_rows
from evorl.types import Key

Tree = TypeVar("Tree")
Number = jax.Array | float


def gaussian_mutation(
    key: Key, population: Tree, probability: Number = 1.0, scale: Number = 0.1, relative: bool = False
) -> Tree:
    """Change random entries to ``x + scale N(0, 1)``, or to ``x + scale abs(x) N(0, 1)`` if ``relative``.

    Args:
        key: a single key, or one key per individual.
        population: individuals ``[P, ...]``.
        probability: probability that an entry is changed.
        scale: standard deviation of a change; if ``relative``, as a multiple of the entry's magnitude.
        relative: multiply each change by the entry's magnitude, so that zeros do not change.
    """

    def changed(key: Key, x: jax.Array, u: jax.Array) -> jax.Array:
        noise = scale * jax.random.normal(key, x.shape)
        return x + (noise * x if relative else noise)

    return _mutate(changed, key, population, probability)


def erl_mutation(
    key: Key,
    population: Tree,
    probability: Number = 0.1,
    scale: Number = 0.1,
    *,
    super_scale: Number = 10.0,
    reset_scale: Number = 1.0,
    super_probability: Number = 0.05,
    reset_probability: Number = 0.05,
) -> Tree:
    """Make small changes relative to the weights, and occasionally a large change or a reset (Khadka & Tumer 2018).

    A super mutation changes an entry x to ``x + super_scale x N(0, 1)``, a reset to ``reset_scale N(0, 1)``, and a
    normal mutation to ``x + scale x N(0, 1)``. Algorithm 3 of the paper differs in two ways. It changes x to
    ``x N(0, scale)``, which would shrink weights to nearly zero; here the noise is added. It samples positions in
    weight matrices with replacement; here each entry of every leaf is sampled independently.

    Args:
        key, population, probability: see ``gaussian_mutation``.
        scale: relative standard deviation of a normal mutation.
        super_scale: relative standard deviation of a super mutation.
        reset_scale: standard deviation of a reset entry.
        super_probability: fraction of the changed entries that undergo a super mutation.
        reset_probability: fraction of the changed entries that are reset; at most ``1 - super_probability``.
    """

    def changed(key: Key, x: jax.Array, u: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, x.shape)
        is_super, is_new = u < super_probability, u < super_probability + reset_probability
        grown = x + jnp.where(is_super, super_scale, scale) * x * noise
        return jnp.where(is_new & ~is_super, reset_scale * noise, grown)

    return _mutate(changed, key, population, probability)


def polynomial_mutation(
    key: Key,
    population: Tree,
    probability: Number = 0.1,
    scale: Number = 1.0,
    *,
    eta: Number = 20.0,
    low: Number = -jnp.inf,
    high: Number = jnp.inf,
) -> Tree:
    """Add noise of polynomial density up to ``scale``, within bounds (Deb & Goyal 1996; Deb et al. 2002).

    Let ``u`` be uniform in [0, 1), and ``d`` the distance from ``x`` to the lower bound in units of ``scale``, at most
    1. For ``u < 1/2``, ``x`` decreases by ``scale (1 - (2 u + (1 - 2 u) (1 - d)^(eta + 1))^(1 / (eta + 1)))``. For
    larger ``u``, ``x`` increases by the same formula with ``1 - u`` and the upper bound.

    Args:
        key, population, probability: see ``gaussian_mutation``.
        scale: maximum change; the paper uses ``high - low``.
        eta: distribution index; larger values give smaller changes, on average about ``scale / (eta + 2)``.
        low: lower bound of the entries; ``-inf`` for none.
        high: upper bound of the entries; ``inf`` for none.
    """

    def changed(key: Key, x: jax.Array, _: jax.Array) -> jax.Array:
        u = jax.random.uniform(key, x.shape)
        distance = jnp.clip(jnp.where(u < 0.5, x - low, high - x) / scale, 0.0, 1.0)
        tail = 2.0 * jnp.minimum(u, 1.0 - u)  # 0 for the largest change, 1 for no change
        change = 1.0 - (tail + (1.0 - tail) * (1.0 - distance) ** (eta + 1.0)) ** (1.0 / (eta + 1.0))
        return jnp.clip(x + jnp.where(u < 0.5, -scale, scale) * change, low, high)

    return _mutate(changed, key, population, probability)


def _mutate(
    changed: Callable[[Key, jax.Array, jax.Array], jax.Array], key: Key, population: Tree, probability: Number
) -> Tree:
    """Replace random entries of each leaf of each individual by ``changed(key, x, u)``.

    ``u`` is uniform in [0, 1) over the changed entries, derived from the sample that selected them.
    """

    def mutate(key: Key, x: jax.Array) -> jax.Array:
        chosen_key, change_key = jax.random.split(key)
        u = jax.random.uniform(chosen_key, x.shape)
        return jnp.where(u < probability, changed(change_key, x, u / probability).astype(x.dtype), x)

    return per_leaf(mutate, row_keys(key, num_rows(population)), population)

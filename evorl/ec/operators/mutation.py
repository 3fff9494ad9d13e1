"""Mutation: a share of each individual's entries is changed, the others are kept to the last bit.

A population has leaves ``[P, ...]`` of floats. ``key`` is one for all, or keys ``[P]``, one per individual. Each leaf
of each individual draws from a key of its own.
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
    """``x + scale N(0, 1)`` for a share of the entries, or ``x + scale abs(x) N(0, 1)`` if it is relative.

    Args:
        key: one, or one per individual.
        population: ``[P, ...]``.
        probability: of each entry to be changed.
        scale: standard deviation of a change, absolute or as a share of the entry's size.
        relative: the size of an entry is the unit of ``scale``; a zero stays zero.
    """

    def changed(key: Key, x: jax.Array, place: jax.Array) -> jax.Array:
        noise = scale * jax.random.normal(key, x.shape)
        return x + (noise * x if relative else noise)

    return _mutate(changed, key, population, probability)


def erl_mutation(
    key: Key,
    population: Tree,
    probability: Number = 0.1,
    scale: Number = 0.1,
    super_scale: Number = 10.0,
    reset_scale: Number = 1.0,
    super_probability: Number = 0.05,
    reset_probability: Number = 0.05,
) -> Tree:
    """Small changes in proportion to the weights, now and then a large one or a new weight (Khadka & Tumer 2018).

    Of the entries that are chosen, those of a super mutation become ``x + super_scale x N(0, 1)``, those that are reset
    ``reset_scale N(0, 1)``, and the others ``x + scale x N(0, 1)``. Algorithm 3 of the paper prints ``x N(0, scale)``,
    which would make nearly nothing of a weight; the noise is added to it here. It draws places in weight matrices with
    replacement; here each entry of every leaf is chosen by itself.

    Args:
        key: one, or one per individual.
        population: ``[P, ...]``.
        probability: of each entry to be changed.
        scale: of a normal mutation, as a share of the entry's size.
        super_scale: of a super mutation, as a share of the entry's size.
        reset_scale: standard deviation of a new entry.
        super_probability: share of the changed entries that undergo a super mutation.
        reset_probability: share of the changed entries that are reset; with the one above at most 1.
    """

    def changed(key: Key, x: jax.Array, place: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, x.shape)
        is_super, is_new = place < super_probability, place < super_probability + reset_probability
        grown = x + jnp.where(is_super, super_scale, scale) * x * noise
        return jnp.where(is_new & ~is_super, reset_scale * noise, grown)

    return _mutate(changed, key, population, probability)


def polynomial_mutation(
    key: Key,
    population: Tree,
    probability: Number = 0.1,
    scale: Number = 1.0,
    eta: Number = 20.0,
    low: Number = -jnp.inf,
    high: Number = jnp.inf,
) -> Tree:
    """Changes of polynomial density up to ``scale``, that end at the bounds (Deb & Goyal 1996; Deb et al. 2002).

    With ``u`` uniform, ``x`` falls by ``1 - (2 u + (1 - 2 u) (1 - d)^(eta + 1))^(1 / (eta + 1))`` times ``scale`` for
    ``u < 1/2``, where ``d`` is the way to the bound in units of ``scale``, at most 1; above it rises, mirrored.

    Args:
        key: one, or one per individual.
        population: ``[P, ...]``.
        probability: of each entry to be changed.
        scale: the largest change; with bounds the paper's is ``high - low``.
        eta: the greater, the smaller are the changes: the mean one is about ``scale / (eta + 2)``.
        low: the least value.
        high: the greatest value.
    """

    def changed(key: Key, x: jax.Array, place: jax.Array) -> jax.Array:
        u = jax.random.uniform(key, x.shape)
        way = jnp.clip(jnp.where(u < 0.5, x - low, high - x) / scale, 0.0, 1.0)
        tail = 2.0 * jnp.minimum(u, 1.0 - u)  # 0 at the largest change, 1 at none
        change = 1.0 - (tail + (1.0 - tail) * (1.0 - way) ** (eta + 1.0)) ** (1.0 / (eta + 1.0))
        return jnp.clip(x + jnp.where(u < 0.5, -scale, scale) * change, low, high)

    return _mutate(changed, key, population, probability)


def _mutate(
    changed: Callable[[Key, jax.Array, jax.Array], jax.Array], key: Key, population: Tree, probability: Number
) -> Tree:
    """``changed(key, x, place)`` for a share of the entries of each leaf of each row, ``x`` for the others.

    ``place`` is uniform in [0, 1) over the changed entries, from the draw that chose them.
    """

    def mutate(key: Key, x: jax.Array) -> jax.Array:
        chosen_key, change_key = jax.random.split(key)
        u = jax.random.uniform(chosen_key, x.shape)
        return jnp.where(u < probability, changed(change_key, x, u / probability).astype(x.dtype), x)

    return per_leaf(mutate, row_keys(key, num_rows(population)), population)

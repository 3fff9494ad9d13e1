"""Several objectives at once: dominance, Pareto fronts, crowding and NSGA-II's order (Deb et al. 2002), hypervolume.

Objectives ``[P, M]`` are maximised. An individual with NaN in any objective counts as infinitely bad in all of them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def dominance(objectives: jax.Array) -> jax.Array:
    """Whether individual i dominates j: nowhere worse, somewhere better. Bool ``[P, P]`` (row i, column j)."""
    objectives = _without_nan(objectives)
    ours, theirs = objectives[:, None, :], objectives[None, :, :]
    return (ours >= theirs).all(axis=-1) & (ours > theirs).any(axis=-1)


def non_dominated_ranks(objectives: jax.Array) -> jax.Array:
    """The front of each individual, int32 ``[P]``: 0 where nobody dominates it, 1 where only those of front 0 do ...

    Fronts are taken off one after another, each in ``O(P^2)``, after ``O(M P^2)`` for who dominates whom.
    """
    dominates = dominance(objectives)
    size = objectives.shape[0]

    def take_front(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        ranks, rank = carry
        left = ranks == size
        front = left & ~(dominates & left[:, None]).any(axis=0)
        return jnp.where(front, rank, ranks), rank + 1

    start = (jnp.full(size, size, jnp.int32), jnp.int32(0))
    return jax.lax.while_loop(lambda carry: (carry[0] == size).any(), take_front, start)[0]


def crowding_distances(objectives: jax.Array, ranks: jax.Array) -> jax.Array:
    """How far the neighbours of each individual on its front are apart (Deb et al. 2002, section III-B), ``[P]``.

    In each objective the gap between the next lower and the next higher individual of the front, as a share of the
    front's extent; the sum over objectives, infinite for who stands at an end in any of them. An objective in which a
    front has no extent, or an infinite one, adds nothing but the ends.

    Where the paper leaves it to the sorting which of several equal individuals gets which distance, the first stands
    for all here and the others have 0, so that copies are the first to go (Fortin & Parizeau 2013).

    Args:
        objectives: ``[P, M]``.
        ranks: ``[P]``, from ``non_dominated_ranks``.
    """
    objectives = _without_nan(objectives)
    size = objectives.shape[0]
    equal = (objectives[:, None, :] == objectives[None, :, :]).all(axis=-1)
    is_copy = (equal & (jnp.arange(size)[None, :] < jnp.arange(size)[:, None])).any(axis=1)
    fronts = jnp.where(is_copy, size, ranks)  # copies stand aside

    def along(values: jax.Array) -> jax.Array:
        order = jnp.lexsort((values, fronts))
        sorted_values, sorted_fronts = values[order], fronts[order]
        between = jnp.pad(sorted_fronts[1:] != sorted_fronts[:-1], 1, constant_values=True)
        at_end = between[:-1] | between[1:]
        gaps = jnp.roll(sorted_values, -1) - jnp.roll(sorted_values, 1)
        extents = (jax.ops.segment_max(values, fronts, size + 1) - jax.ops.segment_min(values, fronts, size + 1))[
            sorted_fronts
        ]
        shares = jnp.where((extents > 0) & jnp.isfinite(extents), gaps / extents, 0.0)
        return jnp.zeros_like(values).at[order].set(jnp.where(at_end, jnp.inf, shares))

    return jnp.where(is_copy, 0.0, jax.vmap(along, in_axes=1, out_axes=1)(objectives).sum(axis=1))


def nsga2_order(objectives: jax.Array) -> jax.Array:
    """Indices int32 ``[P]``, best first: by front, then the least crowded (Deb et al. 2002, section III-C).

    Equals stay in the order they stand in. The first n are the survivors of a population cut to n.
    """
    ranks = non_dominated_ranks(objectives)
    return jnp.lexsort((-crowding_distances(objectives, ranks), ranks)).astype(jnp.int32)


def hypervolume_2d(points: jax.Array, reference: jax.Array) -> jax.Array:
    """The area that points dominate above a reference, a scalar (Zitzler & Thiele 1998, for two objectives).

    Args:
        points: objectives ``[P, 2]``, in any order, dominated ones among them; those that are not above the reference
            in both objectives add nothing.
        reference: ``[2]``.
    """
    heights = jnp.maximum(_without_nan(points) - reference, 0.0)
    x, y = heights[jnp.argsort(-heights[:, 0])].T
    widths = x - jnp.append(x[1:], 0.0)
    return (widths * jax.lax.cummax(y)).sum()


def _without_nan(objectives: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(objectives).any(axis=-1, keepdims=True), -jnp.inf, objectives)

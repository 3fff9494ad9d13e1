"""Pareto dominance, fronts, crowding distances and NSGA-II's order (Deb et al. 2002), and hypervolume.

Objectives ``[P, M]`` are maximized. If any objective of an individual is not finite, all its objectives count as -inf.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def dominance(objectives: jax.Array) -> jax.Array:
    """Return bool ``[P, P]``, True at ``[i, j]`` if i dominates j: better in some objective, and worse in no other."""
    objectives = _without_failures(objectives)
    ours, theirs = objectives[:, None, :], objectives[None, :, :]
    return (ours >= theirs).all(axis=-1) & (ours > theirs).any(axis=-1)


def non_dominated_ranks(objectives: jax.Array) -> jax.Array:
    """Return the front of each individual, int32 ``[P]``: 0 if not dominated, 1 if dominated only by front 0, etc.

    The time is ``O(M P^2)`` for dominance, and then ``O(P^2)`` per front.
    """
    dominates = dominance(objectives)
    size = objectives.shape[0]

    def take_front(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        ranks, rank = carry
        remaining = ranks == size
        front = remaining & ~(dominates & remaining[:, None]).any(axis=0)
        return jnp.where(front, rank, ranks), rank + 1

    start = (jnp.full(size, size, jnp.int32), jnp.int32(0))
    return jax.lax.while_loop(lambda carry: (carry[0] == size).any(), take_front, start)[0]


def crowding_distances(objectives: jax.Array, ranks: jax.Array) -> jax.Array:
    """Return crowding distances ``[P]`` (``crowding-distance-assignment`` of Deb et al. 2002, section III-B).

    Each front is sorted by every objective, best first, with ties in their original order. The first and the last
    individual have an infinite distance. For the others, the gap between their two neighbors, divided by the range of
    the objective in the front, is summed over objectives. Duplicates count as separate individuals, so that neighboring
    duplicates have small distances. An objective with a range of zero or infinity in a front only contributes the
    infinite distances of the first and the last individual. Individuals with -inf in every objective have distance 0.

    Args:
        objectives: objectives ``[P, M]``.
        ranks: fronts ``[P]``, from ``non_dominated_ranks``.
    """
    objectives, ranks = _without_failures(objectives), jnp.asarray(ranks)
    size = objectives.shape[0]
    extents = jax.ops.segment_max(objectives, ranks, size) - jax.ops.segment_min(objectives, ranks, size)  # [P, M]

    def along(values: jax.Array, extents: jax.Array) -> jax.Array:
        order = jnp.lexsort((-values, ranks))
        sorted_values, sorted_ranks = values[order], ranks[order]
        between = jnp.pad(sorted_ranks[1:] != sorted_ranks[:-1], 1, constant_values=True)
        at_end = between[:-1] | between[1:]
        gaps = jnp.roll(sorted_values, 1) - jnp.roll(sorted_values, -1)
        extent = extents[sorted_ranks]
        relative_gaps = jnp.where((extent > 0) & jnp.isfinite(extent), gaps / extent, 0.0)
        return jnp.zeros_like(values).at[order].set(jnp.where(at_end, jnp.inf, relative_gaps))

    distances = jax.vmap(along, in_axes=1, out_axes=1)(objectives, extents).sum(axis=1)
    return jnp.where((objectives == -jnp.inf).all(axis=1), 0.0, distances)


def nsga2_order(objectives: jax.Array) -> jax.Array:
    """Return the indices, int32 ``[P]``, that sort by front, then by descending crowding distance (section III-C).

    The sort is stable. The first n indices are the n survivors of NSGA-II.
    """
    ranks = non_dominated_ranks(objectives)
    return jnp.lexsort((-crowding_distances(objectives, ranks), ranks)).astype(jnp.int32)


def hypervolume_2d(points: jax.Array, reference: jax.Array) -> jax.Array:
    """Return the area, a scalar, that points dominate above a reference point (hypervolume, Zitzler & Thiele 1998).

    Args:
        points: objectives ``[P, 2]``, in any order, possibly dominated; points that are not finite, or not above the
            reference in both objectives, are ignored.
        reference: reference point ``[2]``.
    """
    heights = jnp.maximum(_without_failures(points) - reference, 0.0)
    x, y = heights[jnp.argsort(-heights[:, 0])].T
    widths = x - jnp.append(x[1:], 0.0)
    return (widths * jax.lax.cummax(y)).sum()


def _without_failures(objectives: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(objectives).all(axis=-1, keepdims=True), objectives, -jnp.inf)

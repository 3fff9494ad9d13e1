"""Several objectives at once: dominance, Pareto fronts, crowding and NSGA-II's order (Deb et al. 2002), hypervolume.

Objectives ``[P, M]`` are maximised. An individual with an objective that is not finite counts as infinitely bad in all
of them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def dominance(objectives: jax.Array) -> jax.Array:
    """Whether individual i dominates j: nowhere worse, somewhere better. Bool ``[P, P]`` (row i, column j)."""
    objectives = _without_failures(objectives)
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
    """How far the neighbours of each individual on its front are apart, ``[P]``: ``crowding-distance-assignment`` of
    Deb et al. 2002, section III-B.

    Every objective sorts the front, the best first and equals in the order they stand in. Who comes first or last has
    an infinite distance; for the others the gap between their two neighbours, as a share of the front's extent, is
    added. Copies of an individual are individuals: they stand beside each other and share its room between them. An
    objective in which a front has no extent, or an infinite one, adds nothing but the ends. Who is infinitely bad in
    every objective has a distance of 0, ends or not: nothing is known that would tell one from another.

    Args:
        objectives: ``[P, M]``.
        ranks: ``[P]``, from ``non_dominated_ranks``.
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
        shares = jnp.where((extent > 0) & jnp.isfinite(extent), gaps / extent, 0.0)
        return jnp.zeros_like(values).at[order].set(jnp.where(at_end, jnp.inf, shares))

    distances = jax.vmap(along, in_axes=1, out_axes=1)(objectives, extents).sum(axis=1)
    return jnp.where((objectives == -jnp.inf).all(axis=1), 0.0, distances)


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
    heights = jnp.maximum(_without_failures(points) - reference, 0.0)
    x, y = heights[jnp.argsort(-heights[:, 0])].T
    widths = x - jnp.append(x[1:], 0.0)
    return (widths * jax.lax.cummax(y)).sum()


def _without_failures(objectives: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(objectives).all(axis=-1, keepdims=True), objectives, -jnp.inf)

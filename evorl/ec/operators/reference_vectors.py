"""Directions in the space of objectives, and who is best along each: what RVEA selects by (Cheng, Jin, Olhofer &
Sendhoff 2016, https://doi.org/10.1109/TEVC.2016.2519378; equation numbers are theirs).

Objectives ``[P, M]`` are maximised here; the paper minimises, which is the same with the sign turned.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np


def lattice_size(num_objectives: int, divisions: int) -> int:
    """Points of ``simplex_lattice``: ``(H + M - 1)! / (H! (M - 1)!)``."""
    return math.comb(divisions + num_objectives - 1, num_objectives - 1)


def simplex_lattice(num_objectives: int, divisions: int) -> np.ndarray:
    """All points of M multiples of ``1 / H`` that add up to 1, float32 ``[N, M]`` (eq. 3; Das & Dennis 1998).

    The first is ``(0, .., 0, 1)``, the last ``(1, 0, .., 0)``.
    """
    # H stars between M - 1 bars: where the bars stand says how many stars each objective has.
    places = itertools.combinations(range(divisions + num_objectives - 1), num_objectives - 1)
    bars = np.array(list(places)).reshape(-1, num_objectives - 1)
    bars = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, divisions + num_objectives - 1)))
    return ((np.diff(bars, axis=1) - 1) / divisions).astype(np.float32)


def unit_vectors(vectors: jax.Array) -> jax.Array:
    """Vectors ``[N, M]`` of length 1 (eq. 4); zeros stay zeros."""
    length = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / jnp.where(length > 0, length, 1.0)


def angles(rows: jax.Array, vectors: jax.Array) -> jax.Array:
    """The angles in radians between unit vectors ``[P, M]`` and ``[N, M]``: ``[P, N]``.

    By their distance: the cosine of a small angle has no digits left in float32.
    """
    distance = jnp.linalg.norm(rows[:, None, :] - vectors[None, :, :], axis=-1)
    return 2.0 * jnp.arcsin(jnp.minimum(0.5 * distance, 1.0))


def neighbour_angles(vectors: jax.Array) -> jax.Array:
    """The angle of each unit vector ``[N, M]`` to the nearest other one, ``[N]`` (eq. 10)."""
    itself = jnp.eye(vectors.shape[0], dtype=bool)
    return jnp.where(itself, jnp.inf, angles(vectors, vectors)).min(axis=1)


def best_by_vector(
    objectives: jax.Array, vectors: jax.Array, penalty: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """The individual of the least angle-penalised distance among those nearest to each vector (algorithm 2).

    Objectives are counted from the best value of each (eq. 5). An individual belongs to the vector of the least angle
    (eq. 6 and 7), and its distance there is ``(1 + M penalty angle / neighbour_angle) |objectives|`` (eq. 8 and 9); of
    equals the first is best. One with an objective that is not finite belongs to none.

    Args:
        objectives: ``[P, M]``, maximised.
        vectors: unit vectors ``[N, M]``, none negative.
        penalty: how much the angle counts, ``(t / t_max)^alpha``, from 0 to 1.

    Returns:
        Numbers of individuals, int32 ``[N]``, P where a vector has nobody; and whether it has somebody, bool ``[N]``.
    """
    (size, num_objectives), num_vectors = objectives.shape, vectors.shape[0]
    is_finite = jnp.isfinite(objectives).all(axis=1)
    costs = jnp.where(is_finite[:, None], -objectives, jnp.inf)
    costs = jnp.where(is_finite[:, None], costs - costs.min(axis=0), 0.0)  # from the ideal point on
    to_vectors = angles(unit_vectors(costs), vectors)  # [P, N]
    nearest = jnp.argmin(to_vectors, axis=1)
    shares = to_vectors.min(axis=1) / neighbour_angles(vectors)[nearest]
    distances = (1.0 + num_objectives * penalty * shares) * jnp.linalg.norm(costs, axis=1)
    # A vector past the last one takes part in nothing.
    nearest = jnp.where(is_finite, nearest, num_vectors)
    least = jax.ops.segment_min(distances, nearest, num_vectors + 1)
    individuals = jnp.arange(size, dtype=jnp.int32)
    is_best = distances == least[nearest]
    best = jax.ops.segment_min(jnp.where(is_best, individuals, size), nearest, num_vectors + 1)[:num_vectors]
    return jnp.minimum(best, size), best < size


def adapt_vectors(vectors: jax.Array, first_vectors: jax.Array, objectives: jax.Array) -> jax.Array:
    """The first vectors ``[N, M]`` scaled by the extents of the objectives ``[P, M]`` (algorithm 3, eq. 11).

    Rows of objectives that are not finite count for nothing. While an objective has no extent, ``vectors`` stay.
    """
    is_finite = jnp.isfinite(objectives).all(axis=1, keepdims=True)
    highest = jnp.where(is_finite, objectives, -jnp.inf).max(axis=0)
    extents = highest - jnp.where(is_finite, objectives, jnp.inf).min(axis=0)
    return jnp.where((extents > 0).all(), unit_vectors(first_vectors * extents), vectors)

"""Reference vectors in objective space and selection along them, for RVEA (Cheng, Jin, Olhofer & Sendhoff 2016,
https://doi.org/10.1109/TEVC.2016.2519378, whose equation numbers are cited).

Objectives ``[P, M]`` are maximized here, whereas the paper minimizes objectives.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ec.safeguards import binary_exponent


def lattice_size(num_objectives: int, divisions: int) -> int:
    """Return the number of points of ``simplex_lattice``: ``(H + M - 1)! / (H! (M - 1)!)``, with H = ``divisions``."""
    return math.comb(divisions + num_objectives - 1, num_objectives - 1)


def simplex_lattice(num_objectives: int, divisions: int) -> np.ndarray:
    """Return evenly spread points, float32 ``[N, M]``, for M objectives and H divisions (eq. 3; Das & Dennis 1998).

    The points are all vectors of M multiples of ``1 / H`` that sum to 1, from ``(0, .., 0, 1)`` to ``(1, 0, .., 0)``.
    """
    # Stars and bars: the positions of M - 1 bars among H stars determine the number of stars of each objective.
    positions = itertools.combinations(range(divisions + num_objectives - 1), num_objectives - 1)
    bars = np.array(list(positions)).reshape(-1, num_objectives - 1)
    bars = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, divisions + num_objectives - 1)))
    return ((np.diff(bars, axis=1) - 1) / divisions).astype(np.float32)


def unit_vectors(vectors: jax.Array) -> jax.Array:
    """Scale finite vectors ``[N, M]`` of any norm to norm 1 (eq. 4); zero vectors are unchanged."""
    vectors = _near_one(vectors, axis=-1)
    length = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / jnp.where(length > 0, length, 1.0)


def angles(rows: jax.Array, vectors: jax.Array) -> jax.Array:
    """Return the angles in radians, ``[P, N]``, between unit vectors ``rows`` ``[P, M]`` and ``vectors`` ``[N, M]``.

    Angles are computed from distances, because cosines of small angles lose all precision in float32.
    """
    distance = jnp.linalg.norm(rows[:, None, :] - vectors[None, :, :], axis=-1)
    return 2.0 * jnp.arcsin(jnp.minimum(0.5 * distance, 1.0))


def neighbor_angles(vectors: jax.Array) -> jax.Array:
    """Return the angle in radians, ``[N]``, from each unit vector ``[N, M]`` to the nearest other vector (eq. 10)."""
    is_self = jnp.eye(vectors.shape[0], dtype=bool)
    return jnp.where(is_self, jnp.inf, angles(vectors, vectors)).min(axis=1)


def best_by_vector(
    objectives: jax.Array, vectors: jax.Array, penalty: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Select the individual with the smallest angle-penalized distance for each vector (algorithm 2).

    Let c be an individual's differences from the best value of each objective (eq. 5). The individual belongs to the
    vector with the smallest angle to c (eq. 6 and 7). Its distance is ``(1 + M penalty angle / neighbor_angle) |c|``
    (eq. 8 and 9). Ties go to the first individual. Individuals with a non-finite objective belong to no vector.

    Args:
        objectives: objectives ``[P, M]``, maximized.
        vectors: non-negative unit vectors ``[N, M]``.
        penalty: weight of the angle, ``(t / t_max)^alpha``, from 0 to 1.

    Returns:
        Indices of the selected individuals, int32 ``[N]``, P for vectors without individuals; and a mask, bool ``[N]``,
        True for vectors with individuals.
    """
    (size, num_objectives), num_vectors = objectives.shape, vectors.shape[0]
    is_finite = jnp.isfinite(objectives).all(axis=1)
    # Halving keeps differences finite in float32; the scale of distances does not matter.
    costs = jnp.where(is_finite[:, None], -0.5 * objectives, jnp.inf)
    costs = jnp.where(is_finite[:, None], costs - costs.min(axis=0), 0.0)  # relative to the ideal point
    costs = _near_one(costs)
    to_vectors = angles(unit_vectors(costs), vectors)  # [P, N]
    nearest = jnp.argmin(to_vectors, axis=1)
    relative_angles = to_vectors.min(axis=1) / neighbor_angles(vectors)[nearest]
    distances = (1.0 + num_objectives * penalty * relative_angles) * jnp.linalg.norm(costs, axis=1)
    # The vector index N marks individuals that are not assigned.
    nearest = jnp.where(is_finite, nearest, num_vectors)
    minimum = jax.ops.segment_min(distances, nearest, num_vectors + 1)
    individuals = jnp.arange(size, dtype=jnp.int32)
    is_best = distances == minimum[nearest]
    best = jax.ops.segment_min(jnp.where(is_best, individuals, size), nearest, num_vectors + 1)[:num_vectors]
    return jnp.minimum(best, size), best < size


def adapt_vectors(vectors: jax.Array, first_vectors: jax.Array, objectives: jax.Array) -> jax.Array:
    """Multiply the initial vectors ``[N, M]`` by the ranges of the objectives ``[P, M]``; scale to norm 1 (eq. 11).

    Individuals with non-finite objectives are ignored. If none remains, or the range of an objective is 0 or less than
    about 1e-30 of the largest range, return ``vectors`` unchanged.
    """
    is_finite = jnp.isfinite(objectives).all(axis=1, keepdims=True)
    halves = 0.5 * objectives  # the differences of halves are finite in float32
    highest = jnp.where(is_finite, halves, -jnp.inf).max(axis=0)
    extents = _near_one(highest - jnp.where(is_finite, halves, jnp.inf).min(axis=0))
    adapts = jnp.isfinite(extents).all() & (extents > 1e-30).all()
    return jnp.where(adapts, unit_vectors(first_vectors * extents), vectors)


def _near_one(numbers: jax.Array, axis: int | None = None) -> jax.Array:
    """Scale by a power of two so that the largest magnitude, along ``axis`` or of all numbers, is in [1/2, 1)."""
    exponent = binary_exponent(jnp.max(jnp.abs(numbers), axis=axis, keepdims=True))
    return jnp.ldexp(numbers, -exponent)

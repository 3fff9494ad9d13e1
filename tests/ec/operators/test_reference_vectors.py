"""Reference vectors and their selection equal a slow reference in NumPy."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.operators.reference_vectors import (
    adapt_vectors,
    angles,
    best_by_vector,
    lattice_size,
    neighbor_angles,
    simplex_lattice,
    unit_vectors,
)

SIZE = 40
VECTORS = unit_vectors(jnp.asarray(simplex_lattice(3, 4)))
select = jax.jit(best_by_vector)


def slow_best(objectives: np.ndarray, vectors: np.ndarray, penalty: float) -> list[int]:
    """Compute Algorithm 2 of the paper, individual by individual; P for an empty niche."""
    costs, vectors = -objectives.astype(np.float64), vectors.astype(np.float64)
    finite = [i for i in range(len(costs)) if np.isfinite(costs[i]).all()]
    costs = costs - costs[finite].min(axis=0)
    angle = lambda a, b: math.acos(np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1.0, 1.0))  # noqa: E731
    gammas = [min(angle(v, w) for j, w in enumerate(vectors) if j != i) for i, v in enumerate(vectors)]
    best: dict[int, tuple[float, int]] = {}
    for i in finite:
        thetas = [angle(costs[i], v) for v in vectors]
        j = int(np.argmin(thetas))
        distance = (1 + costs.shape[1] * penalty * thetas[j] / gammas[j]) * np.linalg.norm(costs[i])
        best[j] = min(best.get(j, (np.inf, -1)), (distance, i))
    return [best[j][1] if j in best else len(costs) for j in range(len(vectors))]


@pytest.mark.parametrize(("num", "divisions"), [(2, 1), (2, 5), (3, 4), (5, 3)])
def test_the_lattice_is_all_of_the_simplex(num: int, divisions: int) -> None:
    points = simplex_lattice(num, divisions)
    every = [p for p in itertools.product(range(divisions + 1), repeat=num) if sum(p) == divisions]
    assert {tuple(row) for row in np.rint(points * divisions).astype(int).tolist()} == set(every)
    assert points.shape == (lattice_size(num, divisions), num) == (len(every), num)
    np.testing.assert_allclose(points.sum(axis=1), 1.0, rtol=1e-6)


def test_small_angles_have_their_digits() -> None:
    turns = np.array([0.0, 1e-4, 0.3, np.pi / 2])
    rows = jnp.asarray(np.stack([np.cos(turns), np.sin(turns)], axis=1), jnp.float32)
    np.testing.assert_allclose(angles(rows, rows[:1])[:, 0], turns, rtol=1e-4)
    np.testing.assert_allclose(neighbor_angles(rows), [1e-4, 1e-4, 0.3 - 1e-4, np.pi / 2 - 0.3], rtol=1e-3)


@pytest.mark.parametrize("penalty", [0.0, 0.3, 1.0])
def test_the_best_are_those_of_the_slow_reference(penalty: float) -> None:
    for seed in range(5):
        objectives = np.array(jax.random.normal(jax.random.key(seed), (SIZE, 3)))
        objectives[3, 1], objectives[4] = np.nan, -np.inf
        best, is_filled = select(jnp.asarray(objectives), VECTORS, penalty)
        expected = slow_best(objectives, np.asarray(VECTORS), penalty)
        np.testing.assert_array_equal(best, expected)
        np.testing.assert_array_equal(is_filled, np.array(expected) < SIZE)
        assert 3 < is_filled.sum() < len(VECTORS)


def test_the_order_of_individuals_does_not_matter() -> None:
    objectives = jax.random.normal(jax.random.key(0), (SIZE, 3))
    best, is_filled = select(objectives, VECTORS, 0.5)
    order = jax.random.permutation(jax.random.key(1), SIZE)
    permuted, still_filled = select(objectives[order], VECTORS, 0.5)
    np.testing.assert_array_equal(is_filled, still_filled)
    np.testing.assert_array_equal(order[permuted[is_filled]], best[is_filled])


def test_the_penalty_by_hand() -> None:
    """The penalty decides between an individual along (1, 1) and a shorter one in another direction."""
    vectors = unit_vectors(jnp.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))
    objectives = -jnp.array([[0.0, 9.0], [9.0, 0.0], [2.0, 2.0], [1.2, 2.4]])
    for penalty, expected in ((0.0, 3), (1.0, 2)):  # lengths 2.83 and 2.68; the angle of the second is 18 degrees
        best, _ = select(objectives, vectors, penalty)
        np.testing.assert_array_equal(best, [0, expected, 1])


def test_nobody_is_finite() -> None:
    best, is_filled = select(jnp.full((4, 3), jnp.nan), VECTORS, 0.5)
    np.testing.assert_array_equal(best, 4)
    assert not is_filled.any()


@pytest.mark.parametrize("scale", [1e-30, 1e25, 3e37])
def test_objectives_of_any_size(scale: float) -> None:
    objectives = jnp.asarray(np.random.default_rng(0).uniform(-10.0, 10.0, (SIZE, 3)), jnp.float32)
    for own, same in zip(select(scale * objectives, VECTORS, 0.5), select(objectives, VECTORS, 0.5), strict=True):
        np.testing.assert_array_equal(own, same)
    adapted = adapt_vectors(VECTORS, VECTORS, scale * objectives)
    np.testing.assert_allclose(adapted, adapt_vectors(VECTORS, VECTORS, objectives), rtol=1e-5)


def test_extents_that_differ_beyond_float32_leave_unit_vectors() -> None:
    first = unit_vectors(jnp.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))
    adapted = adapt_vectors(first, first, jnp.array([[0.0, 3e-7], [3e38, 0.0], [-3e38, 0.0]]))
    np.testing.assert_allclose(jnp.linalg.norm(adapted, axis=1), 1.0, rtol=1e-6)


def test_vectors_are_scaled_to_the_objectives() -> None:
    first = unit_vectors(jnp.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))
    objectives = jnp.array([[0.0, 30.0], [10.0, 0.0], [jnp.nan, 99.0], [-jnp.inf, -jnp.inf]])
    adapted = adapt_vectors(first, first, objectives)
    np.testing.assert_allclose(adapted, [[0.0, 1.0], np.array([1.0, 3.0]) / np.sqrt(10.0), [1.0, 0.0]], rtol=1e-6)
    flat = jnp.array([[0.0, 30.0], [0.0, 0.0]])
    np.testing.assert_array_equal(adapt_vectors(adapted, first, flat), adapted)

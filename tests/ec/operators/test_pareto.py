"""Non-dominated sorting, crowding and hypervolume against slow references in NumPy."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from evorl.ec.operators.pareto import (
    crowding_distances,
    dominance,
    hypervolume_2d,
    non_dominated_ranks,
    nsga2_order,
)

SIZE = 12
COARSE = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])  # equal values and equal rows are frequent
WITH_NAN = st.one_of(COARSE, st.just(np.nan), st.just(-np.inf), st.just(np.inf))


def objectives_of(num: int, elements: st.SearchStrategy = COARSE) -> st.SearchStrategy:
    return arrays.arrays(np.float32, (SIZE, num), elements=elements)


ranks_of, distances_of, order_of = jax.jit(non_dominated_ranks), jax.jit(crowding_distances), jax.jit(nsga2_order)
area_of = jax.jit(hypervolume_2d)


def dominates(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a >= b).all() and (a > b).any())


def slow_ranks(objectives: np.ndarray) -> np.ndarray:
    """Remove one front after another; non-finite objectives count as negative infinity in all."""
    objectives = np.where(np.isfinite(objectives).all(axis=1, keepdims=True), objectives, -np.inf)
    ranks, left, rank = np.zeros(len(objectives), int), set(range(len(objectives))), 0
    while left:
        front = {j for j in left if not any(dominates(objectives[i], objectives[j]) for i in left)}
        ranks[list(front)] = rank
        left, rank = left - front, rank + 1
    return ranks


def slow_distances(objectives: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Compute the paper's procedure for each front; Python's sort is stable."""
    distances = np.zeros(len(objectives))
    for rank in range(ranks.max() + 1):
        members = np.flatnonzero(ranks == rank)
        for values in objectives.T:
            front = sorted(members, key=lambda i: -values[i])
            distances[[front[0], front[-1]]] = np.inf
            extent = values[front[0]] - values[front[-1]]
            for before, i, after in zip(front, front[1:], front[2:], strict=False):
                distances[i] += (values[before] - values[after]) / extent if extent > 0 else 0.0
    return distances


def slow_hypervolume(points: np.ndarray, reference: np.ndarray) -> float:
    """Return the area of the cells, in the grid through all points, whose upper corner is dominated."""
    xs = np.unique(np.maximum(np.append(points[:, 0], reference[0]), reference[0]))
    ys = np.unique(np.maximum(np.append(points[:, 1], reference[1]), reference[1]))
    area = 0.0
    for low_x, high_x in itertools.pairwise(xs):
        for low_y, high_y in itertools.pairwise(ys):
            if any(x >= high_x and y >= high_y for x, y in points):
                area += (high_x - low_x) * (high_y - low_y)
    return area


@pytest.mark.parametrize("num", [1, 2, 3])
@given(data=st.data())
def test_ranks_are_those_of_the_slow_reference(num: int, data: st.DataObject) -> None:
    objectives = data.draw(objectives_of(num, WITH_NAN))
    np.testing.assert_array_equal(ranks_of(objectives), slow_ranks(objectives))


@pytest.mark.parametrize("num", [1, 2, 3])
@given(data=st.data())
def test_distances_and_order_are_those_of_the_slow_reference(num: int, data: st.DataObject) -> None:
    objectives = data.draw(objectives_of(num))
    ranks = slow_ranks(objectives)
    distances = slow_distances(objectives, ranks)
    np.testing.assert_allclose(distances_of(objectives, ranks), distances, rtol=1e-5)
    order = np.asarray(order_of(objectives))
    assert sorted(order) == list(range(SIZE))
    np.testing.assert_array_equal(ranks[order], np.sort(ranks))
    for rank in np.unique(ranks):  # rounding may break ties between equal distances
        of_front = distances[order][ranks[order] == rank]
        np.testing.assert_allclose(of_front, np.sort(of_front)[::-1], rtol=1e-5)


def test_a_large_front_is_that_of_the_slow_reference() -> None:
    objectives = np.random.default_rng(0).normal(size=(150, 2)).astype(np.float32)
    ranks = slow_ranks(objectives)
    assert ranks.max() > 10
    np.testing.assert_array_equal(ranks_of(objectives), ranks)
    distances = np.asarray(distances_of(objectives, ranks))
    np.testing.assert_allclose(distances, slow_distances(objectives, ranks), rtol=1e-4)
    assert np.isinf(distances).sum() > ranks.max()
    assert np.isfinite(distances).any()


def test_dominance_by_hand() -> None:
    objectives = np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [np.nan, 9.0]], np.float32)
    matrix = jax.jit(dominance)(objectives)
    assert matrix.shape == (5, 5)
    pairs = {tuple(pair) for pair in np.argwhere(np.asarray(matrix)).tolist()}
    assert pairs == {(1, 0), (1, 3), (2, 0), (2, 3), (0, 4), (1, 4), (2, 4), (3, 4)}


def test_crowding_by_hand() -> None:
    """Distances of one front with two ends, a duplicate and an isolated individual equal the manual results.

    The first objective sorts it 10, 5, 4 (first), 4 (second), 0; the second one 10, 6 (first), 6 (second), 5, 0.
    """
    objectives = np.array([[0.0, 10.0], [10.0, 0.0], [4.0, 6.0], [4.0, 6.0], [5.0, 5.0]], np.float32)
    ranks = ranks_of(objectives)
    np.testing.assert_array_equal(ranks, 0)
    expected = [np.inf, np.inf, (5 - 4) / 10 + (10 - 6) / 10, (4 - 0) / 10 + (6 - 5) / 10, (10 - 4) / 10 + (6 - 0) / 10]
    np.testing.assert_allclose(distances_of(objectives, ranks), expected, rtol=1e-6)
    np.testing.assert_array_equal(order_of(objectives), [0, 1, 4, 2, 3])


def test_crowding_of_copies_at_an_end_by_hand() -> None:
    """The first and the last of three copies of an extreme individual are ends and have infinite distance."""
    objectives = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [1.0, 1.0], [0.0, 4.0]], np.float32)
    ranks = ranks_of(objectives)
    np.testing.assert_array_equal(ranks, 0)
    expected = [np.inf, 0.0 + 0.0, np.inf, (2 - 0) / 2 + (4 - 0) / 4, np.inf]
    np.testing.assert_allclose(distances_of(objectives, ranks), expected, rtol=1e-6)


def test_crowding_of_two_fronts_by_hand() -> None:
    """Distances are relative to each front's own extents; in a front of two, both are ends."""
    front = np.array([[0.0, 8.0], [1.0, 4.0], [4.0, 0.0]])
    objectives = np.array([*front, *(front[[0, 2]] - 10.0)], np.float32)
    ranks = ranks_of(objectives)
    np.testing.assert_array_equal(ranks, [0, 0, 0, 1, 1])
    expected = [np.inf, 4 / 4 + 8 / 8, np.inf, np.inf, np.inf]
    np.testing.assert_allclose(distances_of(objectives, ranks), expected, rtol=1e-6)


def test_crowding_of_three_objectives_by_hand() -> None:
    """Individuals with equal values keep their order."""
    objectives = np.array([[3.0, 0.0, 1.0], [3.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 3.0, 2.0]], np.float32)
    ranks = ranks_of(objectives)
    np.testing.assert_array_equal(ranks, 0)
    # Sorted: 3 (0), 3 (1), 1 (2), 0 (3); then 3 (3), 2 (2), 1 (1), 0 (0); then 2 (3), 1 (0), 1 (2), 0 (1).
    expected = [np.inf, np.inf, 3 / 3 + 2 / 3 + 1 / 2, np.inf]
    np.testing.assert_allclose(distances_of(objectives, ranks), expected, rtol=1e-6)


def test_fronts_without_extent_or_with_an_infinite_one_have_distances() -> None:
    equal = np.full((4, 2), 3.0, np.float32)
    np.testing.assert_array_equal(distances_of(equal, np.zeros(4, np.int32)), [np.inf, 0.0, 0.0, np.inf])
    bad = np.full((4, 2), -np.inf, np.float32)
    bad[1] = 0.0
    np.testing.assert_array_equal(order_of(bad), [1, 0, 2, 3])
    unbounded = np.array([[-np.inf, 4.0], [0.0, 3.0], [1.0, 2.0], [2.0, 1.0]], np.float32)
    distances = np.asarray(distances_of(unbounded, ranks_of(unbounded)))
    assert not np.isnan(distances).any()


def test_everything_maps_over_populations() -> None:
    batch = np.random.default_rng(0).normal(size=(3, SIZE, 2)).round(1).astype(np.float32)

    def mapped(batch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        areas = jax.vmap(hypervolume_2d, in_axes=(0, None))(batch, jnp.array([-1.0, -1.0]))
        return jax.vmap(non_dominated_ranks)(batch), jax.vmap(nsga2_order)(batch), areas

    ranks, orders, areas = jax.jit(mapped)(batch)
    np.testing.assert_array_equal(ranks, [slow_ranks(x) for x in batch])
    np.testing.assert_array_equal(orders, [order_of(x) for x in batch])
    np.testing.assert_allclose(areas, [slow_hypervolume(x, -np.ones(2)) for x in batch], rtol=1e-5)


@given(objectives=objectives_of(2), reference=st.tuples(COARSE, COARSE))
def test_hypervolume_is_the_area_of_the_dominated_cells(objectives: np.ndarray, reference: tuple) -> None:
    expected = slow_hypervolume(objectives, np.array(reference))
    np.testing.assert_allclose(area_of(objectives, np.array(reference, np.float32)), expected, rtol=1e-5, atol=1e-6)


def test_hypervolume_by_hand() -> None:
    points = np.array([[3.0, 1.0], [1.0, 3.0], [2.0, 2.0], [1.0, 1.0], [np.nan, 50.0], [50.0, -1.0]], np.float32)
    assert float(area_of(points, np.zeros(2, np.float32))) == 6.0
    assert float(area_of(points, np.full(2, 3.0, np.float32))) == 0.0

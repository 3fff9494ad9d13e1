"""Evenly spread centroids, and assignment to the nearest."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.archives import CentroidArchive
from evorl.ec.archives.centroid import evenly_spread_points, nearest
from tests.support.errors import raises_naming

POINTS = [[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]]


def test_cells_are_those_of_the_nearest_point() -> None:
    """Descriptors belong to the nearest point in units of the box, which is a hundred times as wide as high."""
    archive = CentroidArchive(low=(0.0, 0.0), high=(100.0, 1.0), num_centroids=3, centroids=POINTS)
    descriptors = jnp.array([[10.0, 0.0], [95.0, 0.2], [50.0, 0.6], [-500.0, 0.0], [60.0, 0.1]])
    np.testing.assert_array_equal(archive.cells(descriptors), [0, 1, 2, 0, 1])


def test_nearest_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    rows, points = rng.random((50, 3)), rng.random((11, 3))
    expected = [min(range(11), key=lambda c, row=row: np.linalg.norm(row - points[c])) for row in rows]
    np.testing.assert_array_equal(nearest(jnp.asarray(rows), jnp.asarray(points)), expected)


def test_points_are_spread_evenly() -> None:
    """Cells have about equal shares of the square, and each point is the mean of its cell."""
    points = evenly_spread_points(jax.random.key(0), 16, 2, 4000, 60)
    assert points.shape == (16, 2)
    samples = jax.random.uniform(jax.random.key(1), (20_000, 2))
    near = np.asarray(nearest(samples, points))
    shares = np.bincount(near, minlength=16) / 20_000
    assert shares.min() > 0.6 / 16
    assert shares.max() < 1.5 / 16
    at_first = np.bincount(np.asarray(nearest(samples, jax.random.uniform(jax.random.key(0), (4000, 2))[:16])))
    assert shares.std() < 0.5 * (at_first / 20_000).std()
    means = np.stack([np.asarray(samples)[near == c].mean(axis=0) for c in range(16)])
    np.testing.assert_allclose(points, means, atol=0.03)


def test_the_same_points_in_every_run() -> None:
    first, second = CentroidArchive(num_centroids=5), CentroidArchive(num_centroids=5)
    np.testing.assert_array_equal(first.centroids, second.centroids)
    assert jax.tree.structure(first) == jax.tree.structure(second)


def test_points_of_another_number_are_refused() -> None:
    with raises_naming(ValueError, "num_centroids=4", "shape [4, 2]", "got [3, 2]"):
        CentroidArchive(low=(0.0, 0.0), high=(1.0, 1.0), num_centroids=4, centroids=POINTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_centroids", 0), ("num_centroids", -3), ("samples_per_centroid", 0), ("num_iterations", -1)],
)
def test_counts_are_checked(name: str, value: int) -> None:
    with raises_naming(ValueError, name, f"got {value}"):
        CentroidArchive(**{"num_centroids": 4, name: value})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_points_are_finite(number: float) -> None:
    with raises_naming(ValueError, "centroids", "finite", "centroids=null"):
        CentroidArchive(low=(0.0, 0.0), high=(1.0, 1.0), num_centroids=3, centroids=[*POINTS[:2], [0.5, number]])

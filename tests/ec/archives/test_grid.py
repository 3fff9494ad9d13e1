"""Cells of a grid archive."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from evorl.ec.archives import GridArchive


def test_cells_of_a_grid() -> None:
    archive = GridArchive(low=(-1.0, 0.0), high=(1.0, 10.0), bins=(2, 5))
    assert archive.num_cells == 10
    descriptors = jnp.array([[-1.0, 0.0], [-0.01, 9.9], [0.01, 0.0], [1.0, 10.0], [0.5, 4.1]])
    np.testing.assert_array_equal(archive.cells(descriptors), [0, 4, 5, 9, 7])


def test_outside_belongs_to_the_border() -> None:
    archive = GridArchive(low=(-1.0, 0.0), high=(1.0, 10.0), bins=(2, 5))
    descriptors = jnp.array([[-9.0, -9.0], [9.0, -9.0], [-9.0, 99.0], [9.0, 99.0]])
    np.testing.assert_array_equal(archive.cells(descriptors), [0, 5, 4, 9])


def test_every_cell_is_reached_by_its_own_box() -> None:
    archive = GridArchive(low=(0.0, 0.0, 0.0), high=(2.0, 3.0, 4.0), bins=(2, 3, 4))
    corners = np.stack(np.meshgrid(np.arange(2), np.arange(3), np.arange(4), indexing="ij"), axis=-1).reshape(-1, 3)
    np.testing.assert_array_equal(archive.cells(jnp.asarray(corners + 0.5)), np.arange(24))


def test_one_number_is_for_every_dimension() -> None:
    one = GridArchive(low=(0.0, 0.0), high=(1.0, 1.0), bins=(4,))
    each = GridArchive(low=(0.0, 0.0), high=(1.0, 1.0), bins=(4, 4))
    assert one.num_cells == 16
    descriptors = jnp.linspace(0.0, 1.0, 24).reshape(12, 2)
    np.testing.assert_array_equal(one.cells(descriptors), each.cells(descriptors))

"""Noise is a function of key, individual and leaf, for any device and any chunks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.ec import noise
from evorl.ops.collectives import DATA_AXIS
from tests.support.populations import FITNESS, POP_SIZE, SOLUTION, flat
from tests.support.small_workflows import assert_close, assert_identical

KEY = jax.random.key(7)
TERMS = ((jnp.asarray(FITNESS), 1), (jnp.abs(jnp.asarray(FITNESS)), 2))
KINDS = {"each": (noise.noise_rows, noise.weighted_sums), "mirrored": (noise.mirrored_rows, noise.mirrored_sums)}


def test_every_individual_and_every_leaf_has_its_own() -> None:
    numbers = flat(noise.noise_rows(KEY, SOLUTION, 0, 500), 1)
    assert len(np.unique(numbers)) > 0.999 * numbers.size  # few coincide by chance
    np.testing.assert_allclose(numbers.mean(axis=0), 0.0, atol=0.2)
    np.testing.assert_allclose(np.cov(numbers.T), np.eye(10), atol=0.25)


def test_mirrored_individuals_come_in_pairs() -> None:
    numbers = flat(noise.mirrored_rows(KEY, SOLUTION, 0, POP_SIZE), 1)
    np.testing.assert_array_equal(numbers[0::2], flat(noise.noise_rows(KEY, SOLUTION, 0, POP_SIZE // 2), 1))
    np.testing.assert_array_equal(numbers[1::2], -numbers[0::2])


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_those_of_the_whole(kind: str) -> None:
    rows, _ = KINDS[kind]
    whole = rows(KEY, SOLUTION, 0, POP_SIZE)
    traced = jax.jit(lambda first: rows(KEY, SOLUTION, first, 2))
    for first in range(0, POP_SIZE, 2):
        assert_identical(traced(first), jax.tree.map(lambda x, first=first: x[first : first + 2], whole))


def _expected_sums(kind: str) -> list[np.ndarray]:
    rows, _ = KINDS[kind]
    numbers = flat(rows(KEY, SOLUTION, 0, POP_SIZE), 1)
    return [np.asarray(weights, np.float64) @ numbers**power for weights, power in TERMS]


@pytest.mark.parametrize("block_numbers", [1, 20, 45, 1 << 19])  # blocks of 1, 2, 4 and all individuals
@pytest.mark.parametrize("kind", KINDS)
def test_sums_do_not_show_the_blocks(kind: str, block_numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "BLOCK_NUMBERS", block_numbers)
    _, sums = KINDS[kind]
    for actual, expected in zip(sums(KEY, SOLUTION, *TERMS), _expected_sums(kind), strict=True):
        np.testing.assert_allclose(flat(actual), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block_numbers", [10, 1 << 22])
def test_devices_share_individuals_that_cannot_be_shared_evenly(
    block_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "BLOCK_NUMBERS", block_numbers)
    mesh = jax.make_mesh((4,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))

    def body(key: jax.Array) -> Any:
        return noise.weighted_sums(key, SOLUTION, *TERMS)

    whole = PartitionSpec()
    on_mesh = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(whole,), out_specs=whole, check_vma=False))
    assert_close(on_mesh(KEY), body(KEY), 1e-5)

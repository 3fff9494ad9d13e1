"""Sum tree samples equal the cumulative sums of NumPy in double precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops import sum_tree
from evorl.ops.sum_tree import FAN_OUT, SumTree, find, get_weights, init_sum_tree, sample_indices, set_weights
from tests.support.errors import raises_naming

SIZES = [1, 5, FAN_OUT, FAN_OUT + 1, FAN_OUT**2 + 3, 3 * FAN_OUT**2]


@pytest.mark.parametrize("size", SIZES)
def test_every_weight_is_found_in_its_interval(size: int) -> None:
    weights = np.random.default_rng(0).integers(0, 4, size).astype(np.float64)  # sums are exact
    weights[-1] = 1.0
    tree = jax.jit(set_weights)(init_sum_tree(size), jnp.arange(size), jnp.asarray(weights, jnp.float32))
    assert float(tree.total) == weights.sum()
    edges = np.cumsum(weights)
    middles = (edges - weights / 2)[weights > 0]
    shares = jnp.asarray(middles / weights.sum(), jnp.float32)
    np.testing.assert_array_equal(jax.jit(find)(tree, shares), np.flatnonzero(weights > 0))


def test_a_weight_is_drawn_in_proportion_and_never_at_zero() -> None:
    weights = jnp.zeros(1000).at[jnp.array([3, 500, 999])].set(jnp.array([1.0, 2.0, 5.0]))
    tree = set_weights(init_sum_tree(1000), jnp.arange(1000), weights)
    draws = np.asarray(find(tree, jax.random.uniform(jax.random.key(0), (20_000,))))
    values, counts = np.unique(draws, return_counts=True)
    assert values.tolist() == [3, 500, 999]
    expected = 20_000 * np.array([1, 2, 5]) / 8
    assert (np.square(counts - expected) / expected).sum() < 13.8  # chi-squared, 2 degrees of freedom, p = 0.001


@pytest.mark.parametrize("share", [0.0, np.nextafter(np.float32(1), np.float32(0))])
def test_the_ends_fall_on_weights(share: float) -> None:
    """The first and last share select indices with positive weight, in spite of rounding."""
    weights = jax.random.uniform(jax.random.key(0), (5000,)) * (jnp.arange(5000) % 7 == 2)
    tree = set_weights(init_sum_tree(5000), jnp.arange(5000), weights)
    found = int(find(tree, jnp.float32(share)))
    with_weight = np.flatnonzero(np.asarray(weights) > 0)
    assert found in (with_weight[0], with_weight[-1])


def test_changes_do_not_gather_errors() -> None:
    key = jax.random.key(0)
    tree = init_sum_tree(500)

    def change(tree, key):
        index_key, weight_key = jax.random.split(key)
        indices = jax.random.randint(index_key, (8,), 0, 500)
        return set_weights(tree, indices, 10.0 ** jax.random.uniform(weight_key, (8,), minval=-3, maxval=3)), None

    tree, _ = jax.lax.scan(change, tree, jax.random.split(key, 1000))
    weights = get_weights(tree, jnp.arange(500))
    np.testing.assert_allclose(tree.total, np.asarray(weights, np.float64).sum(), rtol=1e-6)
    again = set_weights(init_sum_tree(500), jnp.arange(500), weights)
    for level, expected in zip(tree.levels, again.levels, strict=True):
        np.testing.assert_allclose(level, expected, rtol=1e-6)


def test_indices_beyond_it_are_dropped() -> None:
    tree = set_weights(init_sum_tree(FAN_OUT + 1), jnp.array([2, 10**6]), jnp.array([1.0, 7.0]))
    assert float(tree.total) == 1.0


def test_a_tree_has_weights() -> None:
    with raises_naming(ValueError, "weight", "got 0"):
        init_sum_tree(0)


def test_every_weight_of_a_large_tree_can_be_sampled() -> None:
    """A single uniform float32 has 2^23 values, which would select only even indices of 2^24 equal weights."""
    levels = tuple(jnp.full(64**n, 64.0 ** (4 - n)) for n in (4, 3, 2, 1))
    indices = np.asarray(sample_indices(SumTree(levels=levels), jax.random.key(0), 4000))
    assert 0.4 < (indices % 2).mean() < 0.6
    np.testing.assert_allclose(np.quantile(indices / 2**24, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.03)


@pytest.mark.parametrize("num_shares", [0, 2**23])
def test_samples_are_in_proportion_to_the_weights(num_shares: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For trees below and above the number of values of a uniform sample."""
    monkeypatch.setattr(sum_tree, "_NUM_SHARES", num_shares)
    tree = set_weights(init_sum_tree(1000), jnp.array([3, 10, 999]), jnp.array([1.0, 2.0, 5.0]))
    sample = jax.jit(lambda key: sample_indices(tree, key, 20_000))  # a new function: JAX reuses traces of the same one
    indices = sample(jax.random.key(1))
    values, counts = np.unique(np.asarray(indices), return_counts=True)
    assert values.tolist() == [3, 10, 999]
    expected = 20_000 * np.array([1, 2, 5]) / 8
    assert (np.square(counts - expected) / expected).sum() < 13.8  # chi-squared, 2 degrees of freedom, p = 0.001

"""Crossover: exchanged values are preserved, positions of exchanges, and the spread of mixed values."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.ec.operators.crossover import one_point_crossover, simulated_binary_crossover, uniform_crossover
from tests.support.populations import SIZE, check_own_keys, population, same_population

SEEDS = st.integers(0, 2**31 - 1)
EXCHANGES = {
    "uniform": uniform_crossover,
    "whole units": partial(uniform_crossover, whole_units=True),
    "one point": one_point_crossover,
}
COMPILED = {name: jax.jit(crossover) for name, crossover in EXCHANGES.items()}
MIXED = jax.jit(simulated_binary_crossover)
ONES = same_population()
ZEROS = jax.tree.map(lambda x: jnp.asarray(np.zeros(x.shape, x.dtype)), ONES)


@pytest.mark.parametrize("name", EXCHANGES)
@given(seed=SEEDS)
def test_children_hold_exactly_the_parents_values(name: str, seed: int) -> None:
    first, second = population(seed), population(seed + 1)
    children = COMPILED[name](jax.random.key(seed), first, second)
    for a, b, c, d in zip(*map(jax.tree.leaves, (first, second, *children)), strict=True):
        np.testing.assert_array_equal(np.sort([a, b], axis=0), np.sort([c, d], axis=0))


@pytest.mark.parametrize("crossover", [*EXCHANGES.values(), simulated_binary_crossover])
def test_pairs_and_leaves_have_keys_of_their_own(crossover) -> None:
    check_own_keys(lambda key: crossover(key, ZEROS, ONES))


def test_uniform_exchanges_the_stated_share() -> None:
    first, second = ({"x": np.full((200, 10, 5), value, np.float32)} for value in (0, 1))
    child, _ = COMPILED["uniform"](jax.random.key(0), first, second, 0.2)
    assert abs(float(np.mean(child["x"])) - 0.2) < 4 * np.sqrt(0.16 / 10_000)
    for share in (0.0, 1.0):
        child, other = jax.tree.map(np.asarray, COMPILED["uniform"](jax.random.key(0), first, second, share))
        assert (child["x"] == share).all()
        assert (other["x"] == 1.0 - share).all()


@given(seed=SEEDS)
def test_whole_units_stay_together(seed: int) -> None:
    """All weights into a unit come from one parent."""
    child, _ = COMPILED["whole units"](jax.random.key(seed), ZEROS, ONES)
    for leaf in jax.tree.leaves(child):
        units = np.asarray(leaf).reshape(SIZE, -1, leaf.shape[-1] if leaf.ndim > 1 else 1)
        assert (units == units[:, :1]).all()


@given(seed=SEEDS)
def test_one_point_exchanges_the_end_of_each_leaf(seed: int) -> None:
    child, _ = COMPILED["one point"](jax.random.key(seed), ZEROS, ONES)
    for leaf in jax.tree.leaves(child):
        flat = np.asarray(leaf).reshape(SIZE, -1)
        assert (np.diff(flat, axis=1) >= 0).all()


def test_one_point_cuts_at_all_places_alike() -> None:
    """Cut points are uniform from zero to the whole leaf; a scalar is exchanged half of the time."""
    first = {"x": np.zeros((7000, 2, 3), np.float32), "scale": np.zeros(7000, np.float32)}
    child, _ = COMPILED["one point"](jax.random.key(0), first, jax.tree.map(np.ones_like, first))
    child = jax.tree.map(np.asarray, child)
    counts = np.bincount(np.asarray(child["x"].sum(axis=(1, 2)), int), minlength=7)
    assert (np.square(counts - 1000) / 1000).sum() < 22.5  # chi-squared, 6 degrees of freedom, p = 0.001
    assert abs(float(child["scale"].mean()) - 0.5) < 4 * 0.5 / np.sqrt(7000)


@given(seed=SEEDS)
def test_simulated_binary_keeps_the_mean_and_copies_the_rest(seed: int) -> None:
    first, second = population(seed), population(seed + 1)
    children = jax.tree.map(np.asarray, MIXED(jax.random.key(seed), first, second))
    num_copied, num_entries = 0, 0
    first, second = jax.tree.map(np.asarray, (first, second))
    for a, b, c, d in zip(*map(jax.tree.leaves, (first, second, *children)), strict=True):
        np.testing.assert_allclose(c + d, a + b, atol=1e-5)
        copied = np.asarray(a == c)
        np.testing.assert_array_equal(copied, np.asarray(b == d))
        num_copied, num_entries = num_copied + copied.sum(), num_entries + copied.size
    assert abs(num_copied / num_entries - 0.5) < 5 * 0.5 / np.sqrt(num_entries)


def test_simulated_binary_leaves_equal_parents_alone() -> None:
    parents = population(0)
    for child in MIXED(jax.random.key(0), parents, parents):
        jax.tree.map(np.testing.assert_array_equal, child, parents)


@pytest.mark.parametrize("eta", [2.0, 15.0])
def test_simulated_binary_spreads_as_in_the_paper(eta: float) -> None:
    """beta follows the paper's distribution (eq. 20): ``beta^(eta + 1) / 2`` up to 1, ``1 - beta^-(eta + 1) / 2``
    above.
    """
    first, second = ({"x": np.full((1, 20_000), value, np.float32)} for value in (-1, 1))
    child, _ = MIXED(jax.random.key(0), first, second, eta, 1.0)
    beta = np.abs(np.asarray(child["x"])).ravel()
    for at in (0.7, 0.9, 1.0, 1.1, 1.3):
        expected = 0.5 * at ** (eta + 1) if at <= 1 else 1 - 0.5 * at ** -(eta + 1)
        assert abs((beta <= at).mean() - expected) < 4 * 0.5 / np.sqrt(20_000)
    assert abs((np.asarray(child["x"]) > 0).mean() - 0.5) < 4 * 0.5 / np.sqrt(20_000)  # each entry on either side

"""Mutation: unselected entries stay bit-identical; number of selected entries, and their distribution."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.ec.operators.mutation import erl_mutation, gaussian_mutation, polynomial_mutation
from tests.support.populations import check_own_keys, population, same_population
from tests.support.whole_programs import whole

MUTATIONS = {
    "gaussian": gaussian_mutation,
    "relative": partial(gaussian_mutation, relative=True),
    "erl": erl_mutation,
    "polynomial": partial(polynomial_mutation, low=-10.0, high=10.0),
}
COMPILED = {name: jax.jit(mutation) for name, mutation in MUTATIONS.items()}
NUM = 40_000
ERROR = 4 * 0.5 / np.sqrt(NUM)  # four standard deviations of a relative frequency


def entries(mutation, value: float = 1.0, **settings) -> np.ndarray:
    """Return ``NUM`` mutated entries of one initial value."""
    before = {"x": np.full((40, NUM // 40), value, np.float32)}
    return np.asarray(whole(mutation)(jax.random.key(0), before, **settings)["x"]).ravel()


@pytest.mark.parametrize("name", MUTATIONS)
@given(seed=st.integers(0, 2**31 - 1), probability=st.floats(0.0, 1.0))
def test_share_is_changed_and_the_rest_kept(name: str, seed: int, probability: float) -> None:
    before = population(seed)
    after = COMPILED[name](jax.random.key(seed), before, probability)
    pairs = zip(*map(jax.tree.leaves, (before, after)), strict=True)
    kept = np.concatenate([(np.asarray(a) == np.asarray(b)).ravel() for a, b in pairs])
    if probability in (0.0, 1.0):
        assert kept.mean() == 1.0 - probability
    else:
        error = 5 * np.sqrt(probability * (1 - probability) / kept.size) + 2 / kept.size
        assert abs(kept.mean() - (1.0 - probability)) < error
    assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(lambda x: (x.shape, x.dtype), after)


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_individuals_and_leaves_have_keys_of_their_own(mutation) -> None:
    check_own_keys(lambda key: mutation(key, same_population(), 0.5))


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_half_precision_is_kept_with_settings_that_are_arrays(mutation) -> None:
    halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16), population(0))
    after = jax.eval_shape(mutation, jax.random.key(0), halves, jnp.float32(0.5), jnp.float32(0.1))
    assert {x.dtype for x in jax.tree.leaves(after)} == {jnp.dtype(jnp.bfloat16)}


def test_gaussian_changes_have_the_stated_size() -> None:
    changes = entries(gaussian_mutation, value=-4.0, scale=0.5) + 4.0
    assert abs(changes.mean()) < 4 * 0.5 / np.sqrt(NUM)
    assert abs(changes.std() / 0.5 - 1.0) < 4 / np.sqrt(2 * NUM)
    relative = entries(gaussian_mutation, value=-4.0, scale=0.5, relative=True) + 4.0
    assert abs(relative.std() / 2.0 - 1.0) < 4 / np.sqrt(2 * NUM)


def test_erl_mutates_in_three_ways() -> None:
    """Normal, large and reset mutations have their probabilities and scales."""
    scales = {"scale": 1e-6, "super_scale": 1e4, "reset_scale": 1e-3}
    after = entries(erl_mutation, 1.0, probability=0.5, **scales, super_probability=0.2, reset_probability=0.3)
    normal, reset, grown = np.abs(after - 1.0) < 1e-4, np.abs(after) < 1e-2, np.abs(after) > 2.0
    assert abs(normal.mean() - (0.5 + 0.5 * 0.5)) < ERROR
    assert abs(reset.mean() - 0.5 * 0.3) < ERROR
    assert abs(grown.mean() - 0.5 * 0.2) < ERROR
    assert abs(after[reset].std() / 1e-3 - 1.0) < 4 / np.sqrt(2 * reset.sum())
    assert abs(after[grown].std() / 1e4 - 1.0) < 4 / np.sqrt(2 * grown.sum())


def test_erl_changes_are_in_proportion_to_the_weight() -> None:
    once = {"probability": 1.0, "super_probability": 0.0, "reset_probability": 0.0}
    for value in (0.5, -8.0):
        changes = entries(erl_mutation, value, **once) - value
        assert abs(changes.std() / (0.1 * abs(value)) - 1.0) < 4 / np.sqrt(2 * NUM)
        assert abs(changes.mean()) < 4 * 0.1 * abs(value) / np.sqrt(NUM)


def test_polynomial_changes_have_their_density() -> None:
    """Changes satisfy ``P(abs(change) > d) = (1 - d)^(eta + 1)`` in both directions."""
    changes = entries(polynomial_mutation, value=3.0, probability=1.0, scale=2.0, eta=4.0) - 3.0
    assert np.abs(changes).max() <= 2.0
    for d in (0.1, 0.3, 0.6):
        assert abs((np.abs(changes) / 2.0 > d).mean() - (1 - d) ** 5) < ERROR
    assert abs((changes > 0).mean() - 0.5) < ERROR


def test_polynomial_changes_end_at_the_bounds() -> None:
    """Near a bound, changes follow Deb's program (reimplemented here) and do not accumulate at the bound."""
    low, high, eta, x = 1.0, 3.0, 4.0, 1.2
    near = {"probability": 1.0, "scale": high - low, "eta": eta, "low": low, "high": high}
    after = entries(polynomial_mutation, value=x, **near)
    assert after.min() >= low
    assert after.max() <= high
    assert (after == low).sum() < 5
    u = (np.arange(NUM) + 0.5) / NUM
    lower, upper = 1 - (x - low) / (high - low), 1 - (high - x) / (high - low)
    falls = (2 * u + (1 - 2 * u) * lower ** (eta + 1)) ** (1 / (eta + 1)) - 1
    rises = 1 - (2 * (1 - u) + 2 * (u - 0.5) * upper ** (eta + 1)) ** (1 / (eta + 1))
    expected = x + (high - low) * np.where(u < 0.5, falls, rises)
    shares = np.linspace(0.02, 0.98, 25)
    np.testing.assert_allclose(np.quantile(after, shares), np.quantile(expected, shares), atol=0.01)


def test_polynomial_brings_back_what_is_out_of_bounds() -> None:
    after = entries(polynomial_mutation, value=5.0, probability=1.0, low=-1.0, high=1.0)
    assert after.max() <= 1.0

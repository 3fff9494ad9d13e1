"""Selection: exact orders, and probabilities of random selections."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.ec.operators.parent_selection import (
    descending_order,
    proportional_selection,
    tournament_selection,
    truncation_selection,
)
from evorl.ec.operators.pareto import nsga2_order
from evorl.ops.random import row_keys
from tests.support.errors import raises_naming

NUM = 30_000
FITNESS = st.lists(st.sampled_from([-np.inf, -1.5, 0.0, 1.0, 2.0, np.inf, np.nan]), min_size=6, max_size=6)
ordered = jax.jit(descending_order)


def chi_squared(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = counts.sum() * probabilities
    return float((np.square(counts - expected) / expected).sum())


@given(fitness=FITNESS)
def test_best_first_is_a_stable_sort_with_failures_last(fitness: list[float]) -> None:
    expected = sorted(range(6), key=lambda i: -fitness[i] if np.isfinite(fitness[i]) else np.inf)
    np.testing.assert_array_equal(ordered(jnp.array(fitness)), expected)


def test_truncation_takes_the_best() -> None:
    fitness = jnp.array([1.0, jnp.nan, 3.0, 3.0, 2.0])
    np.testing.assert_array_equal(truncation_selection(fitness, 3), [2, 3, 4])
    assert truncation_selection(fitness, 0).shape == (0,)
    two = jax.vmap(lambda f: truncation_selection(f, 2))(jnp.stack([fitness, -fitness]))
    np.testing.assert_array_equal(two, [[2, 3], [0, 4]])
    with raises_naming(ValueError, "num_selected=6", "0 to 5"):
        truncation_selection(fitness, 6)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_tournaments_are_won_with_the_exact_probabilities(size: int) -> None:
    """Winning frequencies equal the exact probabilities; NaN ranks last and wins only against itself."""
    fitness = jnp.array([0.5, jnp.nan, -1.0, 7.0, 2.0, -3.0])
    winners = jax.jit(tournament_selection, static_argnums=(2, 3))(jax.random.key(0), fitness, NUM, size)
    assert winners.dtype == jnp.int32
    rank = np.array([2, 5, 3, 0, 1, 4])
    probabilities = ((6 - rank) ** size - (5 - rank) ** size) / 6**size
    assert chi_squared(np.bincount(winners, minlength=6), probabilities) < 20.5  # 5 degrees of freedom, p = 0.001


def test_equals_win_alike() -> None:
    winners = tournament_selection(jax.random.key(1), jnp.zeros(4), NUM, 3)
    assert chi_squared(np.bincount(winners, minlength=4), np.full(4, 0.25)) < 16.3  # 3 degrees of freedom


def test_tournament_by_the_order_of_nsga2() -> None:
    """A tournament with NSGA-II's order prefers lower rank, then larger crowding distance."""
    objectives = jnp.array([[0.0, 4.0], [4.0, 0.0], [2.0, 2.0], [2.2, 1.9], [1.0, 1.0]])
    order = nsga2_order(objectives)
    scores = -jnp.argsort(order)
    winners = tournament_selection(jax.random.key(0), scores, 2000, 20)  # the best takes part
    assert (np.asarray(winners) == np.asarray(order)[0]).mean() > 0.97
    lost = tournament_selection(jax.random.key(0), scores, 5000, 2)
    assert np.bincount(lost, minlength=5).argmin() == 4


def test_tournaments_have_keys_of_their_own() -> None:
    keys = row_keys(jax.random.key(0), 50)
    fitness = jnp.arange(1000.0)
    winners = tournament_selection(keys, fitness, 50, 2)
    np.testing.assert_array_equal(winners, tournament_selection(jax.random.key(0), fitness, 50, 2))
    others = tournament_selection(keys.at[7].set(jax.random.key(9)), fitness, 50, 2)
    np.testing.assert_array_equal(np.flatnonzero(winners != others), [7])
    both = jax.vmap(lambda k: tournament_selection(k, fitness, 50, 2))(jnp.stack([keys, keys[::-1]]))
    np.testing.assert_array_equal(both, jnp.stack([winners, winners[::-1]]))


def test_a_tournament_of_nobody_is_refused() -> None:
    with raises_naming(ValueError, "tournament_size=0", "at least 1"):
        tournament_selection(jax.random.key(0), jnp.zeros(3), 2, 0)


def test_proportional_selection_draws_by_weight() -> None:
    weights = jnp.array([1.0, 0.0, 3.0, jnp.nan, 4.0])
    drawn = jax.jit(proportional_selection, static_argnums=2)(jax.random.key(0), weights, NUM)
    counts = np.bincount(drawn, minlength=5)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert chi_squared(counts[[0, 2, 4]], np.array([1, 3, 4]) / 8) < 13.8  # 2 degrees of freedom, p = 0.001
    marked = proportional_selection(jax.random.key(0), weights == 1.0, 10)
    np.testing.assert_array_equal(marked, 0)

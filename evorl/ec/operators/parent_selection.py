"""Selection of parents and survivors by fitness: larger is better, non-finite fitness is the worst.

The fitness may be any score, for example the negated position of an individual in the order of NSGA-II.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.ec.fitness_shaping import failures_to_minus_inf
from evorl.ops.random import per_row, row_keys
from evorl.types import Key


def descending_order(fitness: jax.Array) -> jax.Array:
    """Return the indices, int32 ``[P]``, that sort fitness ``[P]`` in descending order; the sort is stable.

    Individuals with non-finite fitness are last.
    """
    return jnp.argsort(-failures_to_minus_inf(fitness), stable=True).astype(jnp.int32)


def truncation_selection(fitness: jax.Array, num_selected: int) -> jax.Array:
    """Return the indices, int32 ``[num_selected]``, of the individuals with the largest fitness ``[P]``, best first.

    Raises:
        ValueError: ``num_selected`` is negative or exceeds the number of individuals P.
    """
    if not 0 <= num_selected <= fitness.shape[0]:
        raise ValueError(f"num_selected={num_selected} must be from 0 to {fitness.shape[0]}, the population size.")
    return descending_order(fitness)[:num_selected]


def tournament_selection(key: Key, fitness: jax.Array, num_selected: int, tournament_size: int) -> jax.Array:
    """Select tournament winners among individuals sampled with replacement (Goldberg & Deb 1991).

    If all P values differ and r of them exceed an individual's fitness, the individual wins a tournament with
    probability ``((P - r)^k - (P - r - 1)^k) / P^k``. Ties are won by the contestant sampled first.

    Args:
        key: a single key, or one key per tournament, ``[num_selected]``.
        fitness: fitness of the individuals, ``[P]``.
        num_selected: number of tournaments.
        tournament_size: number of individuals per tournament, k; 1 selects uniformly at random.

    Returns:
        Indices of the winners, int32 ``[num_selected]``.

    Raises:
        ValueError: ``tournament_size`` is less than 1.
    """
    if tournament_size < 1:
        raise ValueError(f"tournament_size={tournament_size} must be at least 1.")
    scores = failures_to_minus_inf(fitness)

    def winner(key: Key) -> jax.Array:
        contestants = jax.random.randint(key, (tournament_size,), 0, fitness.shape[0])
        return contestants[jnp.argmax(scores[contestants])]

    return _select(winner, key, num_selected)


def proportional_selection(key: Key, weights: jax.Array, num_selected: int) -> jax.Array:
    """Sample indices, int32 ``[num_selected]``, with replacement, in proportion to ``weights`` (Holland 1975).

    This is roulette wheel selection. With a bool mask as weights, individuals marked True are equally probable.

    Args:
        key: a single key, or one key per sample, ``[num_selected]``.
        weights: non-negative weights ``[P]``, not all 0; NaN counts as 0. Individuals of weight 0 are never sampled.
        num_selected: number of samples.
    """
    log_weights = jnp.log(jnp.where(weights > 0, weights, 0.0))
    return _select(lambda key: jax.random.categorical(key, log_weights), key, num_selected)


def _select(select_one: Callable[[Key], jax.Array], key: Key, num_selected: int) -> jax.Array:
    return per_row(select_one, row_keys(key, num_selected)).astype(jnp.int32)

"""Selection of parents and survivors. The greatest fitness is the best; fitness that is not finite is the worst.

Whatever puts individuals in order can be selected by: for NSGA-II the fitness is the place in its order, negated.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.ec.fitness_shaping import failures_to_minus_inf
from evorl.ops.random import per_row, row_keys
from evorl.types import Key


def best_first(fitness: jax.Array) -> jax.Array:
    """Indices int32 ``[P]`` from the greatest fitness ``[P]`` to the least; equals stay in the order they stand in.

    Fitness that is not finite comes last.
    """
    return jnp.argsort(-failures_to_minus_inf(fitness), stable=True).astype(jnp.int32)


def truncation_selection(fitness: jax.Array, num_selected: int) -> jax.Array:
    """Indices of the ``num_selected`` best, best first, int32 ``[num_selected]``, for fitness ``[P]``.

    Raises:
        ValueError: there are not so many.
    """
    if not 0 <= num_selected <= fitness.shape[0]:
        raise ValueError(f"the best {num_selected} of {fitness.shape[0]} individuals: select from 0 to all of them.")
    return best_first(fitness)[:num_selected]


def tournament_selection(key: Key, fitness: jax.Array, num_selected: int, tournament_size: int) -> jax.Array:
    """Winners of tournaments, each among ``tournament_size`` individuals drawn with replacement (Goldberg & Deb 1991).

    The individual that ``r`` of P are better than wins with probability ``((P - r)^k - (P - r - 1)^k) / P^k``; among
    equals the one that was drawn first.

    Args:
        key: one, or one per tournament, ``[num_selected]``.
        fitness: ``[P]``.
        num_selected: how many tournaments are held.
        tournament_size: k, how many take part in each; 1 selects at random.

    Returns:
        Indices, int32 ``[num_selected]``.

    Raises:
        ValueError: nobody would take part.
    """
    if tournament_size < 1:
        raise ValueError(f"a tournament of {tournament_size} individuals has no winner: tournament_size is at least 1.")
    scores = failures_to_minus_inf(fitness)

    def winner(key: Key) -> jax.Array:
        contestants = jax.random.randint(key, (tournament_size,), 0, fitness.shape[0])
        return contestants[jnp.argmax(scores[contestants])]

    return _select(winner, key, num_selected)


def proportional_selection(key: Key, weights: jax.Array, num_selected: int) -> jax.Array:
    """Individuals drawn with replacement in proportion to their weights (the roulette wheel: Holland 1975).

    Zeros and ones draw evenly from those that are marked, such as the filled cells of an archive.

    Args:
        key: one, or one per draw, ``[num_selected]``.
        weights: ``[P]``, at least 0, some above 0; NaN counts as 0. What has no weight is never drawn.
        num_selected: how many are drawn.

    Returns:
        Indices, int32 ``[num_selected]``.
    """
    log_weights = jnp.log(jnp.where(weights > 0, weights, 0.0))
    return _select(lambda key: jax.random.categorical(key, log_weights), key, num_selected)


def _select(select_one: Callable[[Key], jax.Array], key: Key, num_selected: int) -> jax.Array:
    return per_row(select_one, row_keys(key, num_selected)).astype(jnp.int32)

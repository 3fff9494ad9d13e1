"""Fitness shaping: from raw fitness to numbers whose scale the problem does not set."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.config.names import no_such


def compute_ranks(fitness: jax.Array) -> jax.Array:
    """Ranks ``[P]``, int32: 0 for the least fit, P - 1 for the fittest; the earlier of two equals has the lower.

    What is not a number is as unfit as the worst.
    """
    order = jnp.argsort(nan_to_worst(fitness), stable=True)
    return jnp.zeros(fitness.shape, jnp.int32).at[order].set(jnp.arange(fitness.shape[0], dtype=jnp.int32))


def compute_centered_ranks(fitness: jax.Array) -> jax.Array:
    """Ranks scaled to ``[-0.5, 0.5]`` (Salimans et al. 2017, section 2).

    Equals share the mean of their ranks, so that nothing pulls where all are equal.
    """
    fitness = nan_to_worst(fitness)
    in_order = jnp.sort(fitness)
    lowest, above = (jnp.searchsorted(in_order, fitness, side, method="scan_unrolled") for side in ("left", "right"))
    return 0.5 * (lowest + above - 1) / max(fitness.shape[0] - 1, 1) - 0.5


def standardized_fitness(fitness: jax.Array) -> jax.Array:
    """Fitness with mean 0 and variance 1 over the population."""
    fitness = nan_to_worst(fitness)
    fitness = fitness - fitness[0]  # exactly 0 where all are equal: the mean's rounding would be blown up
    return (fitness - fitness.mean()) / (fitness.std() + 1e-8)


def raw_fitness(fitness: jax.Array) -> jax.Array:
    """Fitness as it is."""
    return nan_to_worst(fitness)


FITNESS_SHAPING: dict[str, Callable[[jax.Array], jax.Array]] = {
    "centered_ranks": compute_centered_ranks,
    "standardized": standardized_fitness,
    "raw": raw_fitness,
}


def fitness_shaping(name: str) -> Callable[[jax.Array], jax.Array]:
    """The function of this name.

    Raises:
        ValueError: there is none; with the nearest name.
    """
    if name not in FITNESS_SHAPING:
        raise ValueError(no_such("fitness shaping", name, FITNESS_SHAPING))
    return FITNESS_SHAPING[name]


def log_rank_weights(num_elites: int) -> jax.Array:
    """Weights ``[num_elites]`` of the best, best first, of sum 1 (Hansen 2016, eq. 49: ``ln(mu + 1/2) - ln i``)."""
    weights = jnp.log(num_elites + 0.5) - jnp.log(jnp.arange(1, num_elites + 1))
    return weights / weights.sum()


def weights_by_rank(fitness: jax.Array, best_weights: jax.Array) -> jax.Array:
    """Weights ``[P]`` of individuals: the k-th best has ``best_weights[k]``, those past its end have 0."""
    ranks_from_best = fitness.shape[0] - 1 - compute_ranks(fitness)
    padded = jnp.zeros(fitness.shape).at[: best_weights.shape[0]].set(best_weights)
    return padded[ranks_from_best]


def nan_to_worst(fitness: jax.Array) -> jax.Array:
    """Fitness ``[P]`` in which what is not a number is as bad as the worst; all 0 where nothing is a number."""
    known = ~jnp.isnan(fitness)
    worst = jnp.min(fitness, initial=jnp.inf, where=known)
    return jnp.where(known, fitness, jnp.where(known.any(), worst, 0.0))

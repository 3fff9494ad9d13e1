"""Fitness shaping: from raw fitness to numbers whose scale the problem does not set."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.config.names import no_such


def compute_ranks(fitness: jax.Array) -> jax.Array:
    """Ranks ``[P]``, int32: 0 for the least fit, P - 1 for the fittest; the earlier of two equals has the lower.

    Fitness that is not finite ranks below all other.
    """
    order = jnp.argsort(failures_to_minus_inf(fitness), stable=True)
    return jnp.zeros(fitness.shape, jnp.int32).at[order].set(jnp.arange(fitness.shape[0], dtype=jnp.int32))


def compute_centered_ranks(fitness: jax.Array) -> jax.Array:
    """Ranks scaled to ``[-0.5, 0.5]`` (Salimans et al. 2017, section 2).

    Equals share the mean of their ranks, so that nothing pulls where all are equal. Individuals whose fitness is not
    finite are equals, below all others.
    """
    fitness = failures_to_minus_inf(fitness)
    in_order = jnp.sort(fitness)
    lowest, above = (jnp.searchsorted(in_order, fitness, side, method="scan_unrolled") for side in ("left", "right"))
    return 0.5 * (lowest + above - 1) / max(fitness.shape[0] - 1, 1) - 0.5


def standardized_fitness(fitness: jax.Array) -> jax.Array:
    """Fitness with mean 0 and variance 1 over the population."""
    fitness = scaled_to_square(failures_to_worst(fitness))
    fitness = fitness - fitness[0]  # exactly 0 where all are equal: the mean's rounding would be blown up
    return (fitness - fitness.mean()) / (fitness.std() + 1e-8)


def raw_fitness(fitness: jax.Array) -> jax.Array:
    """Fitness as it is; the worst finite one for individuals whose fitness is not finite."""
    return failures_to_worst(fitness)


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
    """Weights ``[P]`` of individuals: the k-th best has ``best_weights[k]``, those past its end have 0.

    An individual whose fitness is not finite has no positive weight: the others share it in proportion to theirs.
    """
    ranks_from_best = fitness.shape[0] - 1 - compute_ranks(fitness)
    padded = jnp.zeros(fitness.shape).at[: best_weights.shape[0]].set(best_weights)
    weights = padded[ranks_from_best]
    is_finite = jnp.isfinite(fitness)
    rest = jnp.where(is_finite | (weights < 0), weights, 0.0)
    total, left = (jnp.maximum(w, 0.0).sum() for w in (weights, rest))
    shared = jnp.where(rest > 0, rest * (total / jnp.where(left > 0, left, 1.0)), rest)
    return jnp.where(is_finite.all(), weights, shared)


def is_flat(fitness: jax.Array) -> jax.Array:
    """Return whether the fitness ``[P]`` of a generation gives no direction, a bool scalar.

    It is flat if no value is finite, or if all finite values are equal and more than half of the individuals have one.
    Where most individuals fail, equal survivors do give a direction: the search should move to them.
    """
    is_finite = jnp.isfinite(fitness)
    highest = jnp.max(fitness, initial=-jnp.inf, where=is_finite)
    lowest = jnp.min(fitness, initial=jnp.inf, where=is_finite)
    count = is_finite.sum()
    return (count == 0) | ((highest == lowest) & (2 * count > fitness.shape[0]))


def failures_to_worst(fitness: jax.Array) -> jax.Array:
    """Replace fitness ``[P]`` that is not finite by the worst finite one; by 0 if there is none."""
    is_finite = jnp.isfinite(fitness)
    worst = jnp.min(fitness, initial=jnp.inf, where=is_finite)
    return jnp.where(is_finite, fitness, jnp.where(is_finite.any(), worst, 0.0))


def failures_to_minus_inf(fitness: jax.Array) -> jax.Array:
    """Replace fitness that is not finite by minus infinity, which sorts below all finite values; of any shape."""
    return jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)


def scaled_to_square(fitness: jax.Array) -> jax.Array:
    """Scale fitness ``[P]`` by a power of two that keeps its squares finite in float32; unchanged up to 2^60."""
    _, exponent = jnp.frexp(jnp.max(jnp.abs(fitness)))
    return jnp.ldexp(fitness, -jnp.maximum(exponent - 60, 0))

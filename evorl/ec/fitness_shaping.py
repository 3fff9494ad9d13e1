"""Fitness shaping: transforms of raw fitness; all except ``raw`` make searches independent of the fitness scale."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def compute_ranks(fitness: jax.Array) -> jax.Array:
    """Return ranks ``[P]``, int32: 0 for the lowest fitness, P - 1 for the highest.

    Non-finite fitness ranks below all finite fitness. Ties are broken by index: the first of them has the lower rank.
    """
    order = jnp.argsort(failures_to_minus_inf(fitness), stable=True)
    return jnp.zeros(fitness.shape, jnp.int32).at[order].set(jnp.arange(fitness.shape[0], dtype=jnp.int32))


def compute_centered_ranks(fitness: jax.Array) -> jax.Array:
    """Return ranks scaled to ``[-0.5, 0.5]``, float32 ``[P]`` (Salimans et al. 2017, section 2).

    Equal values get the mean of their ranks, so that P > 1 equal values give zeros. Individuals with non-finite fitness
    have equal ranks, below all others.
    """
    fitness = failures_to_minus_inf(fitness)
    ordered = jnp.sort(fitness)
    lowest, above = (jnp.searchsorted(ordered, fitness, side, method="scan_unrolled") for side in ("left", "right"))
    return 0.5 * (lowest + above - 1) / max(fitness.shape[0] - 1, 1) - 0.5


def standardized_fitness(fitness: jax.Array) -> jax.Array:
    """Standardize fitness ``[P]`` to mean 0, variance 1 (0 if all are equal); non-finite values count as the worst."""
    fitness = scaled_to_square(failures_to_worst(fitness))
    fitness = fitness - fitness[0]  # exactly 0 if all are equal; division would amplify rounding errors of the mean
    return (fitness - fitness.mean()) / (fitness.std() + 1e-8)


def log_rank_weights(num_elites: int) -> jax.Array:
    """Return weights ``ln(num_elites + 1/2) - ln i``, i = 1 .. num_elites, scaled to sum 1 (Hansen 2016, eq. 49)."""
    weights = jnp.log(num_elites + 0.5) - jnp.log(jnp.arange(1, num_elites + 1))
    return weights / weights.sum()


def weights_by_rank(fitness: jax.Array, best_weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the weights of individuals, and the precision of sums with these weights.

    The k-th best individual, from k = 0, has weight ``best_weights[k]``, or 0 beyond the end of ``best_weights``.
    Individuals with non-finite fitness have weight 0. The others are then treated as a smaller population: the P ranks
    are divided evenly between them, and each individual gets the sum of its ranks' weights. Finally, the positive and
    the negative weights are scaled to their original sums.

    Args:
        fitness: fitness ``[P]``.
        best_weights: weights of the best individuals, best first, at most P.

    Returns:
        Weights ``[P]``, and the precision, a scalar in [0, 1]: the variance-effective number of individuals with
        positive weights, as a fraction of this number for entirely finite fitness; 0 if no fitness is finite.
    """
    size, is_finite = fitness.shape[0], jnp.isfinite(fitness)
    ranks_from_best = size - 1 - compute_ranks(fitness)
    padded = jnp.zeros(fitness.shape).at[: best_weights.shape[0]].set(best_weights)
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(padded)])
    ranks_each = size / jnp.maximum(is_finite.sum(), 1)
    first, end = (jnp.interp((ranks_from_best + k) * ranks_each, jnp.arange(size + 1.0), sums) for k in (0, 1))
    rest = jnp.where(is_finite, end - first, 0.0)
    positive, negative = (_rescaled(part(rest, 0.0), part(padded, 0.0).sum()) for part in (jnp.maximum, jnp.minimum))
    weights = jnp.where(is_finite.all(), padded[ranks_from_best], positive + negative)
    before, after = (jnp.square(jnp.maximum(w, 0.0)).sum() for w in (padded, weights))
    precision = jnp.where(after > 0, jnp.minimum(before / jnp.where(after > 0, after, 1.0), 1.0), 0.0)
    return weights, jnp.where(is_finite.all(), 1.0, precision)


def _rescaled(weights: jax.Array, total: jax.Array) -> jax.Array:
    """Scale weights to the sum ``total``; weights of sum 0 become zeros."""
    current = weights.sum()
    return weights * jnp.where(current == 0, 0.0, total / jnp.where(current == 0, 1.0, current))


def is_flat(fitness: jax.Array) -> jax.Array:
    """Return a bool scalar, True if all finite values of the fitness ``[P]`` are equal, or if no value is finite."""
    is_finite = jnp.isfinite(fitness)
    highest = jnp.max(fitness, initial=-jnp.inf, where=is_finite)
    return highest <= jnp.min(fitness, initial=jnp.inf, where=is_finite)


def failures_to_worst(fitness: jax.Array) -> jax.Array:
    """Replace non-finite fitness ``[P]`` by the worst finite one, or by 0 if all are non-finite."""
    is_finite = jnp.isfinite(fitness)
    worst = jnp.min(fitness, initial=jnp.inf, where=is_finite)
    return jnp.where(is_finite, fitness, jnp.where(is_finite.any(), worst, 0.0))


def failures_to_minus_inf(fitness: jax.Array) -> jax.Array:
    """Replace non-finite fitness, of any shape, by minus infinity, which sorts below all finite values."""
    return jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)


def scaled_to_square(fitness: jax.Array) -> jax.Array:
    """Divide fitness ``[P]`` by a power of two if magnitudes reach 2^60, so that squares are finite in float32."""
    _, exponent = jnp.frexp(jnp.max(jnp.abs(fitness)))
    return jnp.ldexp(fitness, -jnp.maximum(exponent - 60, 0))


def raw_fitness(fitness: jax.Array) -> jax.Array:
    """Return fitness ``[P]`` unchanged, except that non-finite values become the worst finite one."""
    return failures_to_worst(fitness)


FITNESS_SHAPING: dict[str, Callable[[jax.Array], jax.Array]] = {
    "centered_ranks": compute_centered_ranks,
    "standardized": standardized_fitness,
    "raw": raw_fitness,
}

"""Distributions of returns: categorical on fixed atoms (C51, HL-Gauss), and quantiles (QR-DQN, TQC)."""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp
import optax


def categorical_projection(atoms: jax.Array, probs: jax.Array, support: jax.Array) -> jax.Array:
    """Project a distribution onto evenly spaced atoms, preserving its mean (Bellemare et al. 2017, eq. 7).

    The probability of an atom is split between its two neighbors in ``support`` by linear interpolation. Atoms beyond
    the ends of ``support`` are clipped to them, which changes the mean.

    Args:
        atoms: atoms of the distribution, ``[..., M]``, such as ``reward + discount * support``.
        probs: probabilities of the atoms, ``[..., M]``.
        support: atoms of the result, ``[K]``, evenly spaced and increasing, K at least 2.

    Returns:
        Probabilities of the atoms in ``support``, ``[..., K]``.
    """
    chex.assert_equal_shape([atoms, probs])
    # Distances are in units of each interval, because a float32 grid is even only up to rounding.
    steps = support[1:] - support[:-1]
    above, below = 1.0 / jnp.append(steps, steps[-1]), 1.0 / jnp.insert(steps, 0, steps[0])  # [K]
    distances = jnp.clip(atoms, support[0], support[-1])[..., None] - support  # [..., M, K]
    nearness = jnp.clip(1.0 - jnp.maximum(distances * above, -distances * below), 0.0, 1.0)
    return (nearness * probs[..., None]).sum(axis=-2)


def categorical_losses(
    logits: jax.Array, rewards: jax.Array, discounts: jax.Array, next_probs: jax.Array, support: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return losses of categorical distributions against one-step targets (Bellemare et al. 2017, algorithm 1).

    The target is ``next_probs`` at ``rewards + discounts * support``, projected onto ``support``; it has no gradient.

    Args:
        logits: ``[..., N, K]``; leading axes (ensemble members) share the target.
        rewards: ``[N]``.
        discounts: ``[N]``, ``discount * (1 - termination)``: truncated steps bootstrap.
        next_probs: probabilities of the atoms in ``support``, ``[N, K]``.
        support: atoms ``[K]``, evenly spaced and increasing.

    Returns:
        The cross-entropies, and the divergences ``KL(target || softmax(logits))``; both ``[..., N]``.
    """
    atoms = rewards[:, None] + discounts[:, None] * support
    targets = jax.lax.stop_gradient(categorical_projection(atoms, next_probs, support))
    cross_entropies = -(targets * jax.nn.log_softmax(logits)).sum(axis=-1)
    return cross_entropies, cross_entropies + (targets * jnp.log(jnp.maximum(targets, 1e-12))).sum(axis=-1)


def hl_gauss(targets: jax.Array, support: jax.Array, smoothing: float = 0.75) -> jax.Array:
    """Return normal distributions around targets as probabilities on a grid (Farebrother et al. 2024, section 3.1).

    The bin of a grid point extends half a step to both sides. Probabilities of the bins are scaled to sum to 1. Targets
    beyond the grid are clipped to its ends.

    Args:
        targets: means of the distributions, ``[...]``.
        support: grid ``[K]``, evenly spaced and increasing, K at least 2.
        smoothing: standard deviation, in steps of the grid.

    Returns:
        Probabilities, ``[..., K]``.
    """
    step = (support[-1] - support[0]) / (support.shape[0] - 1)
    edges = jnp.append(support, support[-1] + step) - 0.5 * step
    distances = edges - jnp.clip(targets, support[0], support[-1])[..., None]
    below = jax.scipy.special.erf(distances / (math.sqrt(2.0) * smoothing * step))
    return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])


def quantile_midpoints(num_quantiles: int) -> jax.Array:
    """Return the fractions ``(2 i + 1) / (2 N)`` of the quantiles that N equally likely atoms represent, ``[N]``."""
    return (jnp.arange(num_quantiles) + 0.5) / num_quantiles


def quantile_huber(
    quantiles: jax.Array, targets: jax.Array, delta: jax.Array | float = 1.0, fractions: jax.Array | None = None
) -> jax.Array:
    """Return the quantile Huber loss ``[...]`` of quantiles for samples of the target (Dabney et al. 2018, eq. 10).

    It is ``sum_i mean_j |tau_i - 1[y_j < q_i]| huber(y_j - q_i) / delta``. No gradient flows through the targets.

    Args:
        quantiles: quantile estimates q, ``[..., N]``.
        targets: equally likely samples y, ``[..., M]``.
        delta: threshold between the quadratic and the linear part.
        fractions: fractions ``tau`` of the estimates, ``[..., N]``; ``None`` for ``quantile_midpoints``.
    """
    chex.assert_equal_shape_prefix([quantiles, targets], quantiles.ndim - 1)
    errors = jax.lax.stop_gradient(targets)[..., None, :] - quantiles[..., :, None]  # [..., N, M]
    fractions = quantile_midpoints(quantiles.shape[-1]) if fractions is None else fractions
    weights = jnp.abs(fractions[..., None] - (jax.lax.stop_gradient(errors) < 0.0))
    return (weights * optax.huber_loss(errors, delta=delta) / delta).mean(axis=-1).sum(axis=-1)


def returns_quantile_huber(quantiles: jax.Array, returns: jax.Array, delta: jax.Array | float | None) -> jax.Array:
    """Return the quantile Huber loss ``[...]``, averaged over quantiles, for one sampled return per distribution.

    Args:
        quantiles: quantile estimates, ``[..., N]``.
        returns: sampled returns, ``[...]``.
        delta: threshold between the quadratic and the linear part; ``None`` for 1.
    """
    errors = quantile_huber(quantiles, returns[..., None], 1.0 if delta is None else delta)
    return errors / quantiles.shape[-1]


def drop_largest_atoms(quantiles: jax.Array, num_dropped: int) -> jax.Array:
    """Pool and sort the atoms of an ensemble, and drop the largest (TQC: Kuznetsov et al. 2020, eq. 10).

    Args:
        quantiles: ``[K, ..., N]``: N atoms of each of K ensemble members.
        num_dropped: number of the ``K * N`` atoms to drop.

    Returns:
        The remaining atoms, ``[..., K * N - num_dropped]``, ascending.

    Raises:
        ValueError: no atom would remain, or ``num_dropped`` is negative.
    """
    atoms = jnp.moveaxis(quantiles, 0, -2)
    atoms = atoms.reshape((*atoms.shape[:-2], -1))
    if not 0 <= num_dropped < atoms.shape[-1]:
        raise ValueError(f"cannot drop {num_dropped} of {atoms.shape[-1]} atoms: drop 0 to {atoms.shape[-1] - 1}.")
    return jnp.sort(atoms, axis=-1)[..., : atoms.shape[-1] - num_dropped]

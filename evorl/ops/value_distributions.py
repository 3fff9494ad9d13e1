"""Distributions of returns: categories on a fixed grid (C51), and quantiles (QR-DQN, TQC)."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import optax


def categorical_projection(atoms: jax.Array, probs: jax.Array, support: jax.Array) -> jax.Array:
    """A distribution on other points brought onto an even grid, its mean kept (Bellemare et al. 2017, eq. 7).

    The mass of a point is shared by its two neighbours on the grid, in proportion to its nearness; points beyond the
    grid count as its ends.

    Args:
        atoms: points ``[..., M]``, such as ``reward + discount * support``.
        probs: their probabilities, ``[..., M]``.
        support: the grid, ``[K]``, rising in even steps, K at least 2.

    Returns:
        Probabilities on the grid, ``[..., K]``.
    """
    chex.assert_equal_shape([atoms, probs])
    # Of distances in units of each interval, since a float32 grid is even up to rounding only.
    steps = support[1:] - support[:-1]
    above, below = 1.0 / jnp.append(steps, steps[-1]), 1.0 / jnp.insert(steps, 0, steps[0])  # [K]
    distances = jnp.clip(atoms, support[0], support[-1])[..., None] - support  # [..., M, K]
    nearness = jnp.clip(1.0 - jnp.maximum(distances * above, -distances * below), 0.0, 1.0)
    return (nearness * probs[..., None]).sum(axis=-2)


def categorical_losses(
    logits: jax.Array, rewards: jax.Array, discounts: jax.Array, next_probs: jax.Array, support: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Losses of categorical distributions to their one-step targets (Bellemare et al. 2017, algorithm 1).

    No gradient goes through the target, which is ``next_probs`` moved to ``rewards + discounts * support``.

    Args:
        logits: ``[..., N, K]``; leading axes (members of an ensemble) share the target.
        rewards: ``[N]``.
        discounts: ``[N]``, the discount times ``1 - termination``: a truncated step does bootstrap.
        next_probs: ``[N, K]``, probabilities on the grid.
        support: the grid, ``[K]``.

    Returns:
        The cross-entropies, and the divergences ``KL(target || logits)``, which are 0 at the target; both ``[..., N]``.
    """
    atoms = rewards[:, None] + discounts[:, None] * support
    targets = jax.lax.stop_gradient(categorical_projection(atoms, next_probs, support))
    cross_entropies = -(targets * jax.nn.log_softmax(logits)).sum(axis=-1)
    return cross_entropies, cross_entropies + (targets * jnp.log(jnp.maximum(targets, 1e-12))).sum(axis=-1)


def quantile_midpoints(num_quantiles: int) -> jax.Array:
    """The fractions ``(2 i + 1) / (2 N)`` whose quantiles N equally likely atoms stand for, ``[N]``."""
    return (jnp.arange(num_quantiles) + 0.5) / num_quantiles


def quantile_huber(quantiles: jax.Array, targets: jax.Array, delta: jax.Array | float = 1.0) -> jax.Array:
    """Quantile Huber loss of estimated quantiles to samples of the target (Dabney et al. 2018, eq. 10).

    ``sum_i mean_j |tau_i - 1[y_j < q_i]| huber(y_j - q_i) / delta`` with ``tau`` the midpoints. No gradient goes
    through the targets.

    Args:
        quantiles: ``[..., N]``, the estimates of ascending fractions.
        targets: ``[..., M]``, equally likely.
        delta: where the loss turns from quadratic to linear.

    Returns:
        ``[...]``.
    """
    chex.assert_equal_shape_prefix([quantiles, targets], quantiles.ndim - 1)
    errors = jax.lax.stop_gradient(targets)[..., None, :] - quantiles[..., :, None]  # [..., N, M]
    fractions = quantile_midpoints(quantiles.shape[-1])[:, None]
    weights = jnp.abs(fractions - (jax.lax.stop_gradient(errors) < 0.0))
    return (weights * optax.huber_loss(errors, delta=delta) / delta).mean(axis=-1).sum(axis=-1)


def without_greatest(quantiles: jax.Array, num_dropped: int) -> jax.Array:
    """The atoms of an ensemble pooled and sorted, less the greatest ones (TQC: Kuznetsov et al. 2020, eq. 10).

    Args:
        quantiles: ``[K, ..., N]``: N atoms of each of K members.
        num_dropped: how many of the ``K * N`` are left out.

    Returns:
        ``[..., K * N - num_dropped]``, ascending.

    Raises:
        ValueError: no atom would be left.
    """
    atoms = jnp.moveaxis(quantiles, 0, -2)
    atoms = atoms.reshape((*atoms.shape[:-2], -1))
    if not 0 <= num_dropped < atoms.shape[-1]:
        raise ValueError(f"{num_dropped} of {atoms.shape[-1]} atoms cannot be dropped: at least one must be left.")
    return jnp.sort(atoms, axis=-1)[..., : atoms.shape[-1] - num_dropped]

"""Invertible rescaling of values, to learn returns of any magnitude (Pohlen et al. 2018,
https://arxiv.org/abs/1805.11593, section 3.2).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rescale(values: jax.Array, epsilon: jax.Array | float = 1e-3) -> jax.Array:
    """Return ``sign(x) (sqrt(abs(x) + 1) - 1) + epsilon x`` for each entry x of ``values``."""
    return values / (jnp.sqrt(jnp.abs(values) + 1.0) + 1.0) + epsilon * values  # the same number, without cancellation


def undo_rescale(rescaled: jax.Array, epsilon: jax.Array | float = 1e-3) -> jax.Array:
    """Return the inverse of ``rescale`` (proposition A.2), elementwise, for ``epsilon`` of 0 or more.

    The quadratic equation is solved in a form that avoids cancellation.
    """
    # For y = rescale(x) and u = sqrt(abs(x) + 1): epsilon u^2 + u - (1 + epsilon + abs(y)) = 0, and abs(x) = u^2 - 1.
    magnitude = jnp.abs(rescaled)
    # Hence v = u - 1 solves epsilon v^2 + (1 + 2 epsilon) v - abs(y) = 0, and abs(x) = v (v + 2).
    linear = 1.0 + 2.0 * epsilon
    v = 2.0 * magnitude / (linear + jnp.sqrt(jnp.square(linear) + 4.0 * epsilon * magnitude))
    return jnp.sign(rescaled) * v * (v + 2.0)

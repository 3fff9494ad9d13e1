"""Safeguards of a search that runs on after it has converged, on flat fitness, or at the ends of float32."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

State = TypeVar("State")

# Standard deviations of samples stay in this range. Squares of steps at its upper end are finite, and steps at its
# lower end are normal numbers even where they are a millionth of it.
MIN_STD, MAX_STD = 1e-30, 1e18


def advance(old: State, new: State, holds: jax.Array | bool = False) -> State:
    """Return the next state of a search, or the old one if the new one is unusable.

    The old state's floats are kept if ``holds`` is true or if a number that was finite no longer is. Counters and keys
    advance all the same, so that the next generation has other samples.

    Args:
        old: state before the generation.
        new: state after it, of the same structure.
        holds: a bool scalar, such as ``is_flat(fitness)``.
    """
    pairs = list(zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))
    intact = [(jnp.isfinite(after) | ~jnp.isfinite(before)).all() for before, after in pairs if _is_float(after)]
    accepts = jnp.stack([jnp.logical_not(holds), *intact]).all()
    return jax.tree.map(lambda a, b: jnp.where(accepts, b, a) if _is_float(b) else b, old, new)


def finite_or(new: State, old: State) -> State:
    """Return entries of ``new`` where they are finite, of ``old`` elsewhere."""
    return jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(a), a, b) if _is_float(a) else a, new, old)


def power_of_two_near(size: jax.Array) -> jax.Array:
    """Return the exponent of the power of two near a positive number, int32; scaling by that power is exact."""
    return jnp.frexp(size)[1].astype(jnp.int32)


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)

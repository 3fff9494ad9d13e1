"""Safeguards for searches that continue after convergence, on flat fitness, or at the limits of float32."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

State = TypeVar("State")

# Range of the samples' standard deviations. Squares of steps at the upper end are finite; steps at the lower end are
# normal (not subnormal) numbers, even at a millionth of the standard deviation.
MIN_STD, MAX_STD = 1e-30, 1e18


def advance(old: State, new: State, holds: jax.Array | bool = False) -> State:
    """Return the next state of a search, with the old floats if the new ones are unusable.

    The result has the floats of the old state if ``holds`` is true, or if a finite number would become non-finite.
    Counters and keys always come from the new state, so that the next generation has new samples.

    Args:
        old: state before the generation.
        new: state after it, with the same structure.
        holds: bool scalar, True to keep the old floats, such as ``is_flat(fitness)``.
    """
    pairs = list(zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))
    intact = [(jnp.isfinite(after) | ~jnp.isfinite(before)).all() for before, after in pairs if _is_float(after)]
    accepts = jnp.stack([jnp.logical_not(holds), *intact]).all()
    return jax.tree.map(lambda a, b: jnp.where(accepts, b, a) if _is_float(b) else b, old, new)


def finite_or(new: State, old: State) -> State:
    """Return ``new`` with non-finite entries replaced from ``old``, a tree of the same structure and shapes."""
    return jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(a), a, b) if _is_float(a) else a, new, old)


def binary_exponent(size: jax.Array) -> jax.Array:
    """Return the exponent e, int32, with ``2^(e - 1) <= size < 2^e``; 0 for size 0. Scaling by ``2^e`` is exact."""
    return jnp.frexp(size)[1].astype(jnp.int32)


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)

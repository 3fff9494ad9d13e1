"""CMA-ES with a diagonal covariance (Ros & Hansen 2008); time and memory are linear in the number of parameters."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from evorl.ec.noise import noise_rows, weighted_sums
from evorl.ec.optimizers.covariance_adaptation import CovarianceAdaptation, Number
from evorl.types import PyTreeDict

MAX_CONDITION = 1e20  # maximum ratio of the largest to the smallest variance


class SepCMAES(CovarianceAdaptation):
    """CMA-ES that adapts variances only; for the fields see ``CovarianceAdaptation``."""

    diagonal: ClassVar[bool] = True

    def initial_covariance(self, n: int) -> PyTreeDict:
        """Return the entry ``variance``, ones ``[n]``."""
        return PyTreeDict(variance=jnp.ones(n))

    def steps(self, state: PyTreeDict, first: jax.Array | int, count: int) -> jax.Array:
        return jnp.sqrt(state.variance) * noise_rows(self.noise_key(state), state.variance, first, count)

    def recombine(self, state: PyTreeDict, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        noise, square = weighted_sums(self.noise_key(state), state.variance, (weights, 1), (weights, 2))
        return jnp.sqrt(state.variance) * noise, noise, square

    def adapt(
        self, state: PyTreeDict, old_share: jax.Array, c_1: Number, path: jax.Array, new: jax.Array
    ) -> PyTreeDict:
        variance = (old_share + new) * state.variance + c_1 * jnp.square(path)
        return state.replace(variance=jnp.maximum(variance, variance.max() / MAX_CONDITION))

    def spread(self, state: PyTreeDict) -> jax.Array:
        return jnp.sqrt(state.variance.mean())

    def condition(self, state: PyTreeDict) -> jax.Array:
        return state.variance.max() / state.variance.min()

    def rescaled(self, state: PyTreeDict, exponent: jax.Array) -> PyTreeDict:
        return state.replace(variance=jnp.ldexp(state.variance, 2 * exponent))

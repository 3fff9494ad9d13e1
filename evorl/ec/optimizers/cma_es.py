"""Covariance matrix adaptation evolution strategy (Hansen 2016, https://arxiv.org/abs/1604.00772)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.ec.noise import noise_rows
from evorl.ec.optimizers.covariance_adaptation import CovarianceAdaptation
from evorl.ops import collectives
from evorl.ops.optimization import when_due
from evorl.types import PyTreeDict


class CMAES(CovarianceAdaptation):
    """CMA-ES with the rank-one update and the rank-mu update of positive and negative weights.

    The matrix is decomposed every few generations only: the more parameters, the slower it changes (page 37). Fields as
    in ``CovarianceAdaptation``.
    """

    def initial_covariance(self, n: int) -> PyTreeDict:
        """``covariance``, and its decomposition: ``axes`` ``[n, n]``, one in each column, and their ``lengths``."""
        return PyTreeDict(covariance=jnp.eye(n), axes=jnp.eye(n), lengths=jnp.ones(n))

    def steps(self, state: PyTreeDict, first: jax.Array | int, count: int) -> jax.Array:
        """See ``CovarianceAdaptation``."""
        return self._noise(state, first, count) * state.lengths @ state.axes.T

    def recombined(self, state: PyTreeDict, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """See ``CovarianceAdaptation``; the devices of a mesh share the samples out."""
        first, count = collectives.share_of(self.pop_size)
        noise = self._noise(state, first, count)
        weights = jnp.pad(weights, (0, collectives.num_shards() * count - self.pop_size))
        weights = jax.lax.dynamic_slice_in_dim(weights, first, count)
        mean_noise = jnp.maximum(weights, 0.0) @ noise
        # Steps with negative weights count as if they all had the expected length (eq. 46).
        n = noise.shape[1]
        factors = jnp.where(weights < 0, weights * n / jnp.sum(jnp.square(noise), axis=1), weights)
        square = (noise * factors[:, None]).T @ noise
        mean_noise, square = collectives.sum_shards((mean_noise, square))
        axes = state.axes * state.lengths
        return axes @ mean_noise, state.axes @ mean_noise, axes @ square @ axes.T

    def adapted(
        self, state: PyTreeDict, old_share: jax.Array, c_1: float, path: jax.Array, new: jax.Array
    ) -> PyTreeDict:
        """See ``CovarianceAdaptation``; and the decomposition, when it is due."""
        covariance = old_share * state.covariance + c_1 * jnp.outer(path, path) + new
        n = path.shape[0]
        constants = self.constants(n)
        interval = max(1, int(1 / (10 * n * (constants.c_1 + constants.c_mu))))
        state = state.replace(covariance=0.5 * (covariance + covariance.T))
        return when_due((state.generation + 1) % interval == 0, _decomposed, state)

    def _noise(self, state: PyTreeDict, first: jax.Array | int, count: int) -> jax.Array:
        return noise_rows(self.noise_key(state), state.lengths, first, count)


def _decomposed(state: PyTreeDict) -> PyTreeDict:
    values, axes = jnp.linalg.eigh(state.covariance)
    # Rounding may leave values that are not positive.
    return state.replace(axes=axes, lengths=jnp.sqrt(jnp.maximum(values, 1e-7 * values[-1])))

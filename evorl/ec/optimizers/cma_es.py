"""Covariance matrix adaptation evolution strategy (Hansen 2016, https://arxiv.org/abs/1604.00772).

The covariance is kept as a factor ``A A^T`` that is learned itself, as in the Cholesky-CMA-ES (Suttorp et al. 2009) and
the matrix adaptation of Beyer & Sendhoff (2017): no matrix is decomposed, only products are taken, which run on any
device and side by side for many seeds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.ec.noise import noise_rows
from evorl.ec.optimizers.covariance_adaptation import CovarianceAdaptation
from evorl.ops import collectives
from evorl.ops.optimization import when_due
from evorl.types import PyTreeDict

# XLA multiplies few rows by other kernels, which add in another order: one row by itself, up to 7 on a CPU.
LEAST_ROWS = 16
MAX_ROUNDS = 40  # of the square root; it takes 2 to 8
# The factor's largest axis divided by its smallest one: beyond it float32 cannot keep factor and inverse together.
MAX_CONDITION = 1e5
MAX_MISFIT = 1e-2  # of the product of factor and inverse, or of a root and its inverse, from the identity


class CMAES(CovarianceAdaptation):
    """CMA-ES with the rank-one update and the rank-mu update of positive and negative weights.

    The factor changes every few generations only: the more parameters, the slower it is learned (page 37). Fields as in
    ``CovarianceAdaptation``.
    """

    def initial_covariance(self, n: int) -> PyTreeDict:
        """``factor`` A and its ``inverse``, ``[n, n]``; ``change``, the covariance as seen through the factor: it is
        ``A change A^T``.
        """
        return PyTreeDict(factor=jnp.eye(n), inverse=jnp.eye(n), change=jnp.eye(n))

    def steps(self, state: PyTreeDict, first: jax.Array | int, count: int) -> jax.Array:
        """See ``CovarianceAdaptation``.

        An individual is the same to the last bit, however many are asked for with it.
        """
        num_rows = max(count, min(self.pop_size, LEAST_ROWS))
        return (self._noise(state, first, num_rows) @ state.factor.T)[:count]

    def recombine(self, state: PyTreeDict, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """See ``CovarianceAdaptation``; the devices of a mesh share the samples out."""
        first, count = collectives.share_of(self.pop_size)
        noise = self._noise(state, first, count)
        weights = jnp.pad(weights, (0, collectives.num_shards() * count - self.pop_size))
        weights = jax.lax.dynamic_slice_in_dim(weights, first, count)
        # Steps with negative weights count as if they all had the expected length (eq. 46).
        factors = jnp.where(weights < 0, weights * noise.shape[1] / jnp.sum(jnp.square(noise), axis=1), weights)
        sums = jnp.maximum(weights, 0.0) @ noise, (noise * factors[:, None]).T @ noise
        mean_noise, square = collectives.sum_shards(sums)
        return state.factor @ mean_noise, mean_noise, square

    def adapt(self, state: PyTreeDict, old_share: jax.Array, c_1: float, path: jax.Array, new: jax.Array) -> PyTreeDict:
        """See ``CovarianceAdaptation``; the factor takes the change in when it is due."""
        seen = state.inverse @ path
        state = state.replace(change=old_share * state.change + c_1 * jnp.outer(seen, seen) + new)
        n = path.shape[0]
        constants = self.constants(n)
        interval = max(1, int(1 / (10 * n * (constants.c_1 + constants.c_mu))))
        return when_due((state.generation + 1) % interval == 0, _absorb_change, state)

    def spread(self, state: PyTreeDict) -> jax.Array:
        """See ``CovarianceAdaptation``."""
        return jnp.sqrt(jnp.square(state.factor).sum() / state.factor.shape[0])

    def rescaled(self, state: PyTreeDict, exponent: jax.Array) -> PyTreeDict:
        """See ``CovarianceAdaptation``; the change is seen through the factor and has no scale."""
        factor, inverse = jnp.ldexp(state.factor, exponent), jnp.ldexp(state.inverse, -exponent)
        return state.replace(factor=factor, inverse=inverse)

    def _noise(self, state: PyTreeDict, first: jax.Array | int, count: int) -> jax.Array:
        return noise_rows(self.noise_key(state), state.covariance_path, first, count)


def _absorb_change(state: PyTreeDict) -> PyTreeDict:
    """The state with the change in the factor: ``A sqrt(change)``.

    A change that would make the factor too ill-conditioned for float32 is dropped, unless it makes it better.
    """
    identity = jnp.eye(state.factor.shape[0])
    root, inverse_root = square_roots(0.5 * (state.change + state.change.T))
    factor = state.factor @ root
    inverse = inverse_root @ state.inverse
    # One step of Newton's iteration keeps rounding from taking the two apart.
    inverse = 2.0 * inverse - inverse @ (factor @ inverse)
    before, after = _condition(state.factor, state.inverse), _condition(factor, inverse)
    fits = (jnp.abs(factor @ inverse - identity).max() < MAX_MISFIT) & (after <= jnp.maximum(before, MAX_CONDITION))
    factor, inverse = (jnp.where(fits, a, b) for a, b in ((factor, state.factor), (inverse, state.inverse)))
    return state.replace(factor=factor, inverse=inverse, change=identity)


def _condition(factor: jax.Array, inverse: jax.Array) -> jax.Array:
    """An upper bound of the condition number over the dimension, exact within a factor of n (Frobenius norms)."""
    return jnp.linalg.norm(factor) * jnp.linalg.norm(inverse) / factor.shape[0]


def square_roots(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The positive square root of a symmetric, positive definite matrix ``[n, n]``, and its inverse.

    By the coupled Newton-Schulz iteration (Higham 2008, eq. 6.35), in products only. It is meant for matrices near the
    identity: a condition number of 1e4 is too much for it.
    """
    n = matrix.shape[0]
    scale = jnp.linalg.norm(matrix, ord=jnp.inf)  # no eigenvalue is greater
    identity = jnp.eye(n)

    def not_converged(carry: tuple) -> jax.Array:
        round_number, _, _, residual = carry
        return (jnp.max(jnp.abs(residual)) > 1e-5) & (round_number < MAX_ROUNDS)

    def iterate(carry: tuple) -> tuple:
        round_number, root, inverse, residual = carry
        half = identity + 0.5 * residual
        root, inverse = root @ half, half @ inverse
        return round_number + 1, root, inverse, identity - inverse @ root

    start = matrix / scale
    _, root, inverse, _ = jax.lax.while_loop(not_converged, iterate, (0, start, identity, identity - start))
    return root * jnp.sqrt(scale), inverse * jax.lax.rsqrt(scale)

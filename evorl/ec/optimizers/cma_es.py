"""Covariance matrix adaptation evolution strategy (Hansen 2016, https://arxiv.org/abs/1604.00772).

The covariance ``A A^T`` is represented by its factor A, which is updated directly, as in the Cholesky-CMA-ES (Suttorp
et al. 2009) and in the matrix adaptation of Beyer & Sendhoff (2017). This needs no matrix decompositions, only matrix
products, which run on any device and under ``vmap`` over seeds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.ec.noise import noise_rows
from evorl.ec.optimizers.covariance_adaptation import CovarianceAdaptation, Number
from evorl.ops import collectives
from evorl.ops.loops import when_due
from evorl.types import PyTreeDict

# Minimum number of rows of a product. For fewer (one, or up to 7 on a CPU), XLA sums in a different order.
MIN_ROWS = 16
MAX_ROUNDS = 40  # maximum iterations of the square root; 2 to 8 are typical
# Maximum condition number of the factor; beyond this, float32 cannot represent factor and inverse consistently.
MAX_CONDITION = 1e5
MAX_MISFIT = 1e-2  # maximum entry of the difference between ``factor @ inverse`` and the identity


class CMAES(CovarianceAdaptation):
    """CMA-ES with a full covariance, rank-one and rank-mu updates, and by default also negative weights.

    The factor is updated only every few generations, less often with more parameters (Hansen 2016, page 37). For the
    fields see ``CovarianceAdaptation``.
    """

    def initial_covariance(self, n: int) -> PyTreeDict:
        """Return ``factor`` A, its ``inverse`` and ``change``, identities ``[n, n]``. Covariance: ``A change A^T``."""
        return PyTreeDict(factor=jnp.eye(n), inverse=jnp.eye(n), change=jnp.eye(n))

    def steps(self, state: PyTreeDict, first: jax.Array | int, count: int) -> jax.Array:
        # With at least ``MIN_ROWS`` rows, an individual is bit-identical however many others are requested.
        num_rows = max(count, min(self.pop_size, MIN_ROWS))
        return (self._noise(state, first, num_rows) @ state.factor.T)[:count]

    def recombine(self, state: PyTreeDict, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        first, count = collectives.share_of(self.pop_size)
        noise = self._noise(state, first, count)
        weights = jnp.pad(weights, (0, collectives.num_shards() * count - self.pop_size))
        weights = jax.lax.dynamic_slice_in_dim(weights, first, count)
        # Steps with negative weights are scaled to the expected length (eq. 46).
        factors = jnp.where(weights < 0, weights * noise.shape[1] / jnp.sum(jnp.square(noise), axis=1), weights)
        sums = jnp.maximum(weights, 0.0) @ noise, (noise * factors[:, None]).T @ noise
        mean_noise, square = collectives.sum_shards(sums)
        return state.factor @ mean_noise, mean_noise, square

    def adapt(
        self, state: PyTreeDict, old_share: jax.Array, c_1: Number, path: jax.Array, new: jax.Array
    ) -> PyTreeDict:
        """Update ``change``, and every few generations the factor by ``change``; see ``CovarianceAdaptation.adapt``."""
        whitened = state.inverse @ path
        state = state.replace(change=old_share * state.change + c_1 * jnp.outer(whitened, whitened) + new)
        n = path.shape[0]
        constants = self.constants(n)
        interval = max(1, int(1 / (10 * n * (constants.c_1 + constants.c_mu))))
        return when_due((state.generation + 1) % interval == 0, _absorb_change, state)

    def spread(self, state: PyTreeDict) -> jax.Array:
        return jnp.sqrt(jnp.square(state.factor).sum() / state.factor.shape[0])

    def condition(self, state: PyTreeDict) -> jax.Array:
        return jnp.square(_condition(state.factor, state.inverse))

    def rescaled(self, state: PyTreeDict, exponent: jax.Array) -> PyTreeDict:
        # ``change`` is relative to the factor and does not scale.
        factor, inverse = jnp.ldexp(state.factor, exponent), jnp.ldexp(state.inverse, -exponent)
        return state.replace(factor=factor, inverse=inverse)

    def _noise(self, state: PyTreeDict, first: jax.Array | int, count: int) -> jax.Array:
        return noise_rows(self.noise_key(state), state.covariance_path, first, count)


def _absorb_change(state: PyTreeDict) -> PyTreeDict:
    """Replace the factor A by ``A sqrt(change)``, and ``change`` by the identity.

    The change is dropped if the inverse would be inaccurate, or the condition number would grow and exceed the limit.
    """
    identity = jnp.eye(state.factor.shape[0])
    root, inverse_root = square_roots(0.5 * (state.change + state.change.T))
    factor = state.factor @ root
    inverse = inverse_root @ state.inverse
    # One Newton step keeps factor and inverse consistent despite rounding.
    inverse = 2.0 * inverse - inverse @ (factor @ inverse)
    before, after = _condition(state.factor, state.inverse), _condition(factor, inverse)
    fits = (jnp.abs(factor @ inverse - identity).max() < MAX_MISFIT) & (after <= jnp.maximum(before, MAX_CONDITION))
    factor, inverse = (jnp.where(fits, a, b) for a, b in ((factor, state.factor), (inverse, state.inverse)))
    return state.replace(factor=factor, inverse=inverse, change=identity)


def _condition(factor: jax.Array, inverse: jax.Array) -> jax.Array:
    """Return the product of the Frobenius norms divided by n: the condition number up to a factor of n."""
    return jnp.linalg.norm(factor) * jnp.linalg.norm(inverse) / factor.shape[0]


def square_roots(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the positive square root of a symmetric, positive definite matrix ``[n, n]``, and its inverse.

    The coupled Newton-Schulz iteration (Higham 2008, eq. 6.35) needs only matrix products. It suits matrices near the
    identity: rounding errors and the number of iterations grow with the condition number.
    """
    n = matrix.shape[0]
    scale = jnp.linalg.norm(matrix, ord=jnp.inf)  # upper bound of the eigenvalues
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

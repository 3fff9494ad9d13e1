"""SepCMAES equals CMA-ES on the diagonal of the matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import SepCMAES
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.populations import FITNESS, POP_SIZE, SOLUTION, flat


class TestContract(EvoOptimizerContract):
    chunk_tolerance = 1e-5

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return SepCMAES(pop_size=pop_size)


def test_variances_follow_paths_and_steps() -> None:
    optimizer = SepCMAES(pop_size=POP_SIZE, initial_std=0.5)
    tell = jax.jit(optimizer.tell)
    state = optimizer.init(SOLUTION, jax.random.key(0))
    for _ in range(3):
        state = tell(state, jnp.asarray(FITNESS))
    c = optimizer.constants(10)
    mean, sigma = flat(state.mean), float(state.sigma)
    y = ((flat(optimizer.ask(state), 1) - mean) / sigma)[np.argsort(-FITNESS)]
    step = c.weights @ y
    after = tell(state, jnp.asarray(FITNESS))
    np.testing.assert_allclose(flat(after.mean), mean + sigma * step, rtol=1e-4, atol=1e-5)
    spread = np.sqrt(c.c_sigma * (2 - c.c_sigma) * c.mu_eff)
    sigma_path = (1 - c.c_sigma) * state.sigma_path + spread * step / np.sqrt(state.variance)
    np.testing.assert_allclose(after.sigma_path, sigma_path, rtol=1e-3, atol=1e-4)
    length = np.linalg.norm(sigma_path)
    follows = length / np.sqrt(1 - (1 - c.c_sigma) ** 8) < (1.4 + 2 / 11) * c.chi_n
    old_share = 1 - c.c_1 - c.c_mu + (1 - follows) * c.c_1 * c.c_c * (2 - c.c_c)
    variance = old_share * state.variance + c.c_1 * after.covariance_path**2 + c.c_mu * c.weights @ y**2
    np.testing.assert_allclose(after.variance, variance, rtol=1e-3)
    np.testing.assert_allclose(after.sigma, sigma * np.exp(c.c_sigma / c.damping * (length / c.chi_n - 1)), rtol=1e-3)

"""CMAES equals the update of Hansen (2016), written out in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import CMAES
from evorl.types import PyTreeDict
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.populations import SOLUTION, flat

POP_SIZE = 8
COSTS = 10.0 ** np.linspace(0, 2, 10)


class TestContract(EvoOptimizerContract):
    chunk_tolerance = 1e-5

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return CMAES(pop_size=pop_size)


def _fitness(population: dict) -> np.ndarray:
    return -(flat(population, 1) ** 2 @ COSTS)


@pytest.fixture(scope="module", params=[1.0, 4.0])
def stepped(request: pytest.FixtureRequest) -> tuple[CMAES, PyTreeDict, np.ndarray, PyTreeDict]:
    """Return the optimizer, its state after some generations, the next fitness, and the following state.

    With a factor of the step size's path, the path of the covariance stalls.
    """
    optimizer = CMAES(pop_size=POP_SIZE, initial_std=0.5)
    tell = jax.jit(optimizer.tell)
    state = optimizer.init(SOLUTION, jax.random.key(0))
    for _ in range(6):
        state = tell(state, jnp.asarray(_fitness(optimizer.ask(state))))
    state = state.replace(sigma_path=request.param * state.sigma_path)
    fitness = _fitness(optimizer.ask(state))
    return optimizer, state, fitness, tell(state, jnp.asarray(fitness))


@pytest.mark.parametrize(("pop_size", "n"), [(4, 2), (4, 257), (9, 10), (16, 64), (33, 257), (100, 10), (100, 64)])
def test_an_individual_asked_for_alone_is_the_one_of_the_population(pop_size: int, n: int) -> None:
    """Individuals requested alone are bit-identical to the whole population, for seeds under ``vmap``."""
    optimizer = CMAES(pop_size=pop_size)
    mixing = jnp.asarray(np.random.default_rng(0).normal(size=(n, n)), jnp.float32)

    def searched(key: jax.Array) -> PyTreeDict:
        def generation(state: PyTreeDict, _: None) -> tuple[PyTreeDict, None]:
            return optimizer.tell(state, -jnp.square(optimizer.ask(state)["x"] @ mixing).sum(axis=1)), None

        return jax.lax.scan(generation, optimizer.init({"x": jnp.ones(n)}, key), length=5)[0]

    states = jax.jit(jax.vmap(searched))(jax.random.split(jax.random.key(0), 2))
    populations = jax.jit(jax.vmap(lambda state: optimizer.ask(state)["x"]))(states)
    state = jax.tree.map(lambda x: x[1], states)
    ask = jax.jit(lambda state, first, count: optimizer.ask(state, first, count)["x"], static_argnums=2)
    side_by_side = jax.jit(jax.vmap(lambda state, first: optimizer.ask(state, first, 1)["x"]))
    population = ask(state, 0, pop_size)
    for first in (0, pop_size // 2, pop_size - 1):
        for count in (1, 3):
            alone = ask(state, first, count)[: pop_size - first]
            np.testing.assert_array_equal(alone, population[first : first + count])
        np.testing.assert_array_equal(
            side_by_side(states, jnp.full(2, first))[:, 0], populations[:, first], err_msg=str(first)
        )


def test_a_step_is_the_published_one(stepped: tuple, request: pytest.FixtureRequest) -> None:
    optimizer, state, fitness, after = stepped
    n, c = 10, optimizer.constants(10)
    mean, sigma, g = flat(state.mean), float(state.sigma), int(state.generation) + 1
    y = ((flat(optimizer.ask(state), 1) - mean) / sigma)[np.argsort(-fitness)]  # best first
    weights = np.asarray(c.weights, np.float64)
    factor = np.asarray(state.factor, np.float64)
    covariance, root = factor @ factor.T, np.linalg.inv(factor)
    assert np.linalg.cond(covariance) > 1.5  # the covariance has adapted
    step = np.maximum(weights, 0) @ y
    sigma_path = (1 - c.c_sigma) * np.asarray(state.sigma_path, np.float64)
    sigma_path = sigma_path + np.sqrt(c.c_sigma * (2 - c.c_sigma) * c.mu_eff) * root @ step
    length = np.linalg.norm(sigma_path)
    follows = length / np.sqrt(1 - (1 - c.c_sigma) ** (2 * g)) < (1.4 + 2 / (n + 1)) * c.chi_n
    assert follows == (request.node.callspec.params["stepped"] == 1.0)
    path = (1 - c.c_c) * np.asarray(state.covariance_path, np.float64)
    path = path + follows * np.sqrt(c.c_c * (2 - c.c_c) * c.mu_eff) * step
    lengths = ((y @ root) ** 2).sum(axis=1)
    factors = np.where(weights < 0, weights * n / lengths, weights)
    old_share = 1 + c.c_1 * (1 - follows) * c.c_c * (2 - c.c_c) - c.c_1 - c.c_mu * weights.sum()
    covariance = old_share * covariance + c.c_1 * np.outer(path, path) + c.c_mu * (y.T * factors) @ y
    tolerance = {"rtol": 2e-3, "atol": 2e-3}
    np.testing.assert_allclose(flat(after.mean), mean + sigma * step, **tolerance)
    np.testing.assert_allclose(after.sigma_path, sigma_path, **tolerance)
    np.testing.assert_allclose(after.covariance_path, path, **tolerance)
    np.testing.assert_allclose(
        after.sigma, sigma * np.exp(min(1.0, c.c_sigma / c.damping * (length / c.chi_n - 1))), rtol=1e-3
    )
    np.testing.assert_allclose(after.factor @ after.factor.T, covariance, **tolerance)
    np.testing.assert_allclose(after.factor @ after.inverse, np.eye(n), atol=1e-4)


def test_the_factor_changes_only_now_and_then_where_there_are_many_parameters() -> None:
    optimizer = CMAES(pop_size=4)
    c = optimizer.constants(60)
    interval = int(1 / (600 * (c.c_1 + c.c_mu)))
    assert interval > 1
    tell = jax.jit(optimizer.tell)
    state = optimizer.init({"x": jnp.ones(60)}, jax.random.key(0))
    changes = []
    for _ in range(2 * interval):
        before, state = state, tell(state, jnp.arange(4.0))
        changes.append(bool((before.factor != state.factor).any()))
        covariances = [after.factor @ after.change @ after.factor.T for after in (before, state)]
        assert np.abs(covariances[1] - covariances[0]).max() > 1e-3  # it adapts in every generation
    assert changes == ([False] * (interval - 1) + [True]) * 2

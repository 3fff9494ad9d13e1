"""Factored matrices equal explicit ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.low_rank import LowRankNoise, PerturbedMatrix, explicit, population_axes
from tests.support.small_workflows import assert_identical

KEY = jax.random.key(0)
NUM_INPUTS, NUM_OUTPUTS, POP_SIZE = 5, 3, 4


def _noise(rank: int, size: int = POP_SIZE) -> LowRankNoise:
    numbers = jax.random.normal(KEY, (size, rank, NUM_INPUTS + NUM_OUTPUTS))
    return LowRankNoise.from_normal(numbers, NUM_INPUTS)


def _check_moments(entries: jax.Array) -> None:
    """Assert that entries ``[P, I, O]`` have mean 0 and variance 1 and are not correlated."""
    rows = np.asarray(entries).reshape(len(entries), -1)
    np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose(np.cov(rows.T), np.eye(rows.shape[1]), atol=0.15)


@pytest.mark.parametrize("rank", [1, 4])
def test_entries_have_unit_variance(rank: int) -> None:
    noise = _noise(rank, 20_000)
    _check_moments(noise.matrix())
    np.testing.assert_array_equal(np.linalg.matrix_rank(noise.matrix()[:5]), min(rank, NUM_OUTPUTS))


@pytest.mark.parametrize("factor", [2.0, 0.5], ids=["without the root of the rank", "with the rank"])
def test_another_scale_is_detected(factor: float) -> None:
    with pytest.raises(AssertionError, match="Mismatched"):
        _check_moments(_noise(4, 20_000).scaled(factor).matrix())


@pytest.mark.parametrize("rank", [1, 2])
def test_products_and_sums_equal_those_of_explicit_matrices(rank: int) -> None:
    mean = jax.random.normal(jax.random.key(1), (NUM_INPUTS, NUM_OUTPUTS))
    x = jax.random.normal(jax.random.key(2), (POP_SIZE, 2, NUM_INPUTS))
    weights = jnp.arange(1.0, POP_SIZE + 1.0)
    noise = _noise(rank).scaled(0.3)
    population = PerturbedMatrix(mean=mean, noise=noise)
    matrices = np.stack([np.asarray(noise.left[i]).T @ np.asarray(noise.right[i]) for i in range(POP_SIZE)])
    np.testing.assert_allclose(population.matrix(), mean + matrices, rtol=1e-5, atol=1e-6)
    outputs = jax.vmap(PerturbedMatrix.product, (population_axes(population), 0))(population, x)
    np.testing.assert_allclose(outputs, np.einsum("pei,pio->peo", x, mean + matrices), rtol=1e-5, atol=1e-5)
    expected = np.einsum("p,pio->io", weights, matrices)
    np.testing.assert_allclose(noise.weighted_sum(weights), expected, rtol=1e-5, atol=1e-5)


def test_only_selected_matrices_stay_factored() -> None:
    matrix = PerturbedMatrix(mean=jnp.ones((NUM_INPUTS, NUM_OUTPUTS)), noise=_noise(1))
    population = {"one": matrix, "two": matrix, "bias": jnp.zeros((POP_SIZE, 3))}
    assert_identical(explicit(population), population | dict.fromkeys(("one", "two"), matrix.matrix()))
    some = explicit(population, {"one": True, "two": False, "bias": False})
    assert_identical(some, population | {"two": matrix.matrix()})


def test_the_product_with_the_mean_is_one_for_the_population() -> None:
    """The program multiplies all inputs by the mean at once, and has no matrices of individuals."""
    population = PerturbedMatrix(mean=jnp.ones((NUM_INPUTS, NUM_OUTPUTS)), noise=_noise(1))
    batched = jax.vmap(PerturbedMatrix.product, (population_axes(population), 0))
    text = str(jax.make_jaxpr(batched)(population, jnp.ones((POP_SIZE, NUM_INPUTS))))
    assert f"f32[{POP_SIZE},{NUM_INPUTS},{NUM_OUTPUTS}]" not in text
    explicit_text = str(jax.make_jaxpr(jax.vmap(jnp.matmul))(jnp.ones((POP_SIZE, 1, NUM_INPUTS)), population.matrix()))
    assert f"f32[{POP_SIZE},{NUM_INPUTS},{NUM_OUTPUTS}]" in explicit_text

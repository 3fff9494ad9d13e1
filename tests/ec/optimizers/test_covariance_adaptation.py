"""Constants of covariance matrix adaptation."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.optimizers import CMAES, SepCMAES
from evorl.ec.optimizers.covariance_adaptation import AdaptationConstants
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close, assert_identical


def test_defaults_are_those_of_the_tutorial() -> None:
    c = AdaptationConstants.default(20, 12, 6, diagonal=False)
    raw = np.log(6.5) - np.log(np.arange(1, 13))
    np.testing.assert_allclose(c.weights[:6], raw[:6] / raw[:6].sum(), rtol=1e-5)
    assert c.mu_eff == pytest.approx(raw[:6].sum() ** 2 / (raw[:6] ** 2).sum())
    assert c.c_sigma == pytest.approx((c.mu_eff + 2) / (c.mu_eff + 25))
    assert c.damping == pytest.approx(1 + c.c_sigma)
    assert c.c_1 == pytest.approx(2 / (21.3**2 + c.mu_eff))
    # Eq. 53: negative weights keep the covariance matrix positive definite.
    assert (c.weights[6:] < 0).all()
    assert (1 - c.c_1 - c.c_mu) / 20 + 1e-6 >= c.c_mu * -c.weights[6:].sum()


@pytest.mark.parametrize(("n", "size"), [(1, 4), (2, 5), (5, 101), (30, 16), (300, 9), (300, 1000)])
def test_all_defaults_follow_table_1(n: int, size: int) -> None:
    """Constants equal Hansen 2016, table 1 and eq. 49 to 58, written out for float64."""
    raw = [math.log((size + 1) / 2) - math.log(i) for i in range(1, size + 1)]
    best, rest = raw[: size // 2], raw[size // 2 :]
    mu_eff, rest_eff = (sum(w) ** 2 / sum(x**2 for x in w) for w in (best, rest))
    c_sigma, c_1 = (mu_eff + 2) / (n + mu_eff + 5), 2 / ((n + 1.3) ** 2 + mu_eff)
    c_mu = min(1 - c_1, 2 * (1 / 4 + mu_eff + 1 / mu_eff - 2) / ((n + 2) ** 2 + mu_eff))
    alpha = min(1 + c_1 / c_mu, 1 + 2 * rest_eff / (mu_eff + 2), (1 - c_1 - c_mu) / (n * c_mu))
    negative = -sum(x for x in raw if x < 0)
    found = AdaptationConstants.default(n, size, size // 2, diagonal=False)
    expected = [x / sum(best) if x > 0 else alpha * x / negative for x in raw]
    np.testing.assert_allclose(found.weights, expected, rtol=1e-5, atol=1e-7)
    numbers = {
        "mu_eff": mu_eff,
        "c_sigma": c_sigma,
        "damping": 1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_sigma,
        "c_c": (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n),
        "c_1": c_1,
        "c_mu": c_mu,
        "chi_n": math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2)),
    }
    for name, value in numbers.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-6, err_msg=name)


def test_a_diagonal_is_learned_faster_and_without_negative_weights() -> None:
    full, diagonal = (AdaptationConstants.default(20, 12, 6, diagonal) for diagonal in (False, True))
    assert diagonal.c_1 == pytest.approx(full.c_1 * 22 / 3)
    assert diagonal.c_mu == pytest.approx(full.c_mu * 22 / 3)
    assert diagonal.weights.min() == 0.0
    assert diagonal.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("num_elites", [1, 3, 12])
def test_as_many_are_recombined_as_asked_for(num_elites: int) -> None:
    c = AdaptationConstants.default(20, 12, num_elites, diagonal=True)
    assert (c.weights > 0).sum() == num_elites
    assert 1.0 <= c.mu_eff <= num_elites + 1e-9


def test_weights_may_be_positive_only() -> None:
    with_negative, positive = (AdaptationConstants.default(20, 12, 6, False, x) for x in (False, True))
    np.testing.assert_array_equal(positive.weights[:6], with_negative.weights[:6])
    np.testing.assert_array_equal(positive.weights[6:], 0.0)
    assert positive.old_share == pytest.approx(1 - positive.c_1 - positive.c_mu)
    assert (
        CMAES(pop_size=12).constants(20).weights.min()
        < 0
        == CMAES(12, positive_weights=True).constants(20).weights.min()
    )


@pytest.mark.parametrize("diagonal", [False, True])
def test_constants_by_the_number_of_parents(diagonal: bool) -> None:
    by_parents = jax.jit(lambda k: dataclasses.asdict(AdaptationConstants.by_parents(20, 12, k, diagonal)))
    for k in range(1, 13):
        expected = dataclasses.asdict(AdaptationConstants.default(20, 12, k, diagonal, positive_weights=True))
        for name, value in by_parents(k).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6, err_msg=f"{name} of {k} parents")


@pytest.mark.parametrize("optimizer", [CMAES, SepCMAES])
def test_a_number_of_parents_is_a_number_of_elites(optimizer: type[CMAES]) -> None:
    """Any number in one program; 0 keeps the distribution, with new samples."""
    fitness = jnp.asarray(np.random.default_rng(0).normal(size=8), jnp.float32)
    state = optimizer(pop_size=8).init({"x": jnp.ones(3)}, jax.random.key(0))
    tell = jax.jit(optimizer(pop_size=8).tell)
    for k in (1, 3, 4, 8):
        elites = optimizer(pop_size=8, num_elites=k, positive_weights=True).tell(state, fitness)
        assert_close(tell(state, fitness, jnp.asarray(k)), elites, 1e-5)
    assert_identical(tell(state, fitness, jnp.asarray(0)), state.replace(generation=jnp.ones((), jnp.int32)))


def test_condition_numbers() -> None:
    start = jax.random.key(0)
    state = SepCMAES(pop_size=4).init({"x": jnp.ones(3)}, start)
    assert float(SepCMAES(pop_size=4).condition(state)) == 1.0
    state = state.replace(variance=jnp.array([1.0, 100.0, 10.0]))
    assert float(SepCMAES(pop_size=4).condition(state)) == pytest.approx(100.0)
    state = CMAES(pop_size=4).init({"x": jnp.ones(3)}, start)
    assert float(CMAES(pop_size=4).condition(state)) == pytest.approx(1.0)
    scales = jnp.array([1.0, 1e3, 10.0])
    state = state.replace(factor=jnp.diag(scales), inverse=jnp.diag(1.0 / scales))
    assert 1e6 / 9 <= float(CMAES(pop_size=4).condition(state)) <= 1e6 * 9


@pytest.mark.parametrize("optimizer", [CMAES, SepCMAES])
def test_what_cannot_work_is_refused(optimizer: type[CMAES]) -> None:
    with raises_naming(ValueError, "pop_size=3", "at least 4"):
        optimizer(pop_size=3)
    with raises_naming(ValueError, "num_elites=9", "pop_size=8"):
        optimizer(pop_size=8, num_elites=9)


@pytest.mark.parametrize("optimizer", [CMAES, SepCMAES])
def test_paths_have_their_length_under_random_selection_whatever_fails(optimizer: type[CMAES]) -> None:
    """Without a direction, squared paths have the expectation n, and the step size has no trend."""
    n, shares = 10, jnp.array([0.0, 0.5, 0.75, 0.9])
    search = optimizer(pop_size=16)

    def lane(key: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
        def generation(state: PyTreeDict, number: jax.Array) -> tuple[PyTreeDict, jax.Array]:
            fails, random = jax.random.uniform(jax.random.fold_in(key, number), (2, 16))
            state = search.tell(state, jnp.where(fails < share, jnp.nan, random))
            return state, jnp.square(state.sigma_path).mean()

        state, lengths = jax.lax.scan(generation, search.init({"x": jnp.zeros(n)}, key), jnp.arange(200))
        return lengths[100:].mean(), jnp.log(state.sigma / search.initial_std)

    lanes = jax.vmap(jax.vmap(lane, (0, None)), (None, 0))
    lengths, growth = jax.jit(lanes)(jax.random.split(jax.random.key(0), 32), shares)
    np.testing.assert_allclose(lengths.mean(axis=1), 1.0, atol=0.15)
    assert np.abs(growth.mean(axis=1)).max() < 1.5, growth.mean(axis=1)

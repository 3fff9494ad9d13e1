"""External solutions replace individuals and are evaluated like them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec import EvoOptimizer
from evorl.ec.fitness_shaping import compute_centered_ranks, log_rank_weights, weights_by_rank
from evorl.ec.optimizers import GeneticAlgorithm, OpenES, SepCEM, VanillaES
from evorl.types import PyTreeDict
from tests.support.small_workflows import assert_close, assert_identical

P = 6
START = PyTreeDict(a=jnp.arange(3.0), b=jnp.ones((2, 2)))
SOLUTIONS = jax.tree.map(lambda x: jnp.stack([x + 5.0, x - 7.0]), START)
ROWS = jnp.array([5, 2])
FITNESS = jnp.array([1.0, 0.0, 9.0, 3.0, -2.0, 4.0])
OPTIMIZERS: dict[str, EvoOptimizer] = {
    "ga": GeneticAlgorithm(pop_size=P, num_elites=2),
    "openes": OpenES(pop_size=P, optimizer_name="sgd"),
    "vanilla_es": VanillaES(pop_size=P),
    "sepcem": SepCEM(pop_size=P),
    "sepcem, unpaired": SepCEM(pop_size=P, mirror_sampling=False),
}


def fresh(optimizer: EvoOptimizer) -> PyTreeDict:
    return optimizer.init(START, jax.random.key(0))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "ga"])
def test_samples_from_outside_are_gone_in_the_next_generation(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    state = optimizer.tell(optimizer.inject(fresh(optimizer), SOLUTIONS, ROWS), FITNESS)
    without = PyTreeDict({entry: value for entry, value in state.items() if entry != "injected"})
    assert_identical(optimizer.ask(state), optimizer.ask(without))
    assert_close(
        optimizer.tell(state, FITNESS) | {"injected": None}, optimizer.tell(without, FITNESS) | {"injected": None}, 0.0
    )


@pytest.mark.parametrize("name", ["vanilla_es", "sepcem", "sepcem, unpaired"])
def test_recombination_is_of_the_individuals_that_were_asked_for(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    state = optimizer.inject(fresh(optimizer), SOLUTIONS, ROWS)
    population = optimizer.ask(state)
    weights, _ = weights_by_rank(FITNESS, log_rank_weights(P // 2))
    assert weights[2] > weights[5] > 0.0  # external solutions are the best
    updated = optimizer.tell(state, FITNESS)
    mean = jax.tree.map(lambda x: jnp.tensordot(weights, x, axes=1), population)
    assert_close(optimizer.solution(updated), mean, 1e-5)
    if "sepcem" in name:
        squares = jax.tree.map(lambda x, old: jnp.tensordot(weights, jnp.square(x - old), axes=1), population, START)
        assert_close(updated.variance, squares, 1e-4)


def test_the_estimated_gradient_points_to_them() -> None:
    optimizer = OpenES(pop_size=P, optimizer_name="sgd")
    state = optimizer.inject(fresh(optimizer), SOLUTIONS, ROWS)
    shaped, population = compute_centered_ranks(FITNESS), optimizer.ask(state)
    std, rate = optimizer.scale(state), optimizer.lr_schedule.init
    expected = jax.tree.map(
        lambda mean, x: mean + rate * jnp.tensordot(shaped, (x - mean) / std, axes=1) / (P * std), START, population
    )
    assert_close(optimizer.tell(state, FITNESS).mean, expected, 1e-4)


def test_a_fit_solution_becomes_an_elite() -> None:
    optimizer = OPTIMIZERS["ga"]
    updated = optimizer.tell(optimizer.inject(fresh(optimizer), SOLUTIONS, ROWS), FITNESS)
    assert_identical(optimizer.solution(updated), jax.tree.map(lambda x: x[1], SOLUTIONS))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_policy_of_a_diverged_learner_is_ignored(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    fitness = FITNESS.at[ROWS].set(jnp.nan)
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), SOLUTIONS)
    states = [optimizer.tell(optimizer.inject(fresh(optimizer), x, ROWS), fitness) for x in (broken, SOLUTIONS)]
    if name == "openes":  # failures count as the worst individuals
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(states[0].mean))
        assert (states[0].mean.a != START.a).any()
    else:
        assert_identical(*(optimizer.solution(state) for state in states))


@pytest.mark.parametrize(("name", "expected"), [("ga", 4), ("openes", P), ("vanilla_es", P), ("sepcem", P)])
def test_how_many_may_be_replaced(name: str, expected: int) -> None:
    assert OPTIMIZERS[name].num_replaceable == expected

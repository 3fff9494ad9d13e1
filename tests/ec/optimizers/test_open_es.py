"""OpenES equals its formula on requested populations."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evorl.ec import EvoOptimizer
from evorl.ec.fitness_shaping import compute_centered_ranks, raw_fitness
from evorl.ec.optimizers import OpenES
from evorl.ops.schedules import ExponentialScheduleSpec
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.errors import raises_naming
from tests.support.populations import FITNESS, POP_SIZE, flat, later, parts_of

LEARNING_RATE = ExponentialScheduleSpec(init=0.4, final=0.01, decay=0.5)
NOISE_STD = ExponentialScheduleSpec(init=0.2, final=0.01, decay=0.5)


class TestContract(EvoOptimizerContract):
    takes_others = True

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return OpenES(pop_size=pop_size)


class TestUnpairedContract(EvoOptimizerContract):
    takes_others = True

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return OpenES(pop_size=pop_size, mirror_sampling=False)


def _optimizer(**fields: object) -> OpenES:
    schedules = {"lr_schedule": LEARNING_RATE, "noise_std_schedule": NOISE_STD}
    return OpenES(pop_size=POP_SIZE, **{**schedules, **fields})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mirror_sampling", [True, False])
@pytest.mark.parametrize("shaping", [compute_centered_ranks, raw_fitness])
def test_a_step_is_the_closed_formula(mirror_sampling: bool, shaping: object) -> None:
    """One step adds ``lr / (P std) sum_i shaped_i noise_i`` to the mean (Salimans et al. 2017, algorithm 1)."""
    optimizer = _optimizer(mirror_sampling=mirror_sampling, optimizer_name="sgd", fitness_shaping_fn=shaping)
    state = later(optimizer, 2)
    mean, std, noise = parts_of(optimizer, state)
    np.testing.assert_allclose(std, 0.2 * 0.5**2, rtol=1e-6)
    shaped = np.array([-0.1, -0.5, 0.5, 0.3, 0.1, -0.3]) if shaping is compute_centered_ranks else FITNESS
    gradient = (shaped[:, None] * noise).sum(axis=0) / (POP_SIZE * 0.05)
    after = optimizer.tell(state, jnp.asarray(FITNESS))
    np.testing.assert_allclose(flat(after.mean), mean + 0.1 * gradient, rtol=1e-4, atol=1e-5)
    assert after.generation == 3


def test_adam_follows_the_same_gradient_and_weights_decay() -> None:
    plain, decaying = _optimizer(), _optimizer(weight_decay=0.5)
    state = later(plain, 0)
    mean, std, noise = parts_of(plain, state)
    gradient = compute_centered_ranks(jnp.asarray(FITNESS)) @ noise / (POP_SIZE * std)
    after = flat(plain.tell(state, jnp.asarray(FITNESS)).mean)
    # Adam's first step equals its learning rate in each coordinate.
    np.testing.assert_allclose(after, mean + 0.4 * np.sign(gradient), rtol=1e-3, atol=1e-3)
    decayed = flat(decaying.tell(later(decaying, 0), jnp.asarray(FITNESS)).mean)
    np.testing.assert_allclose(decayed, after - 0.4 * 0.5 * mean, rtol=1e-4, atol=1e-4)


def test_a_failed_individual_counts_as_the_worst() -> None:
    optimizer = _optimizer(optimizer_name="sgd")
    state = optimizer.init({"x": jnp.zeros(3)}, jax.random.key(0))
    failed, as_the_worst = (jnp.asarray(FITNESS).at[2].set(x) for x in (jnp.nan, FITNESS.min() - 1.0))
    after = flat(optimizer.tell(state, failed).mean)
    np.testing.assert_array_equal(after, flat(optimizer.tell(state, as_the_worst).mean))
    assert not np.allclose(after, flat(optimizer.tell(state, jnp.asarray(FITNESS)).mean))


def test_where_all_are_equal_nothing_moves() -> None:
    optimizer = _optimizer()
    state = optimizer.init({"x": jnp.zeros(3)}, jax.random.key(0))
    after = jax.jit(type(optimizer).tell)(optimizer, state, jnp.full(POP_SIZE, 500.0))
    np.testing.assert_array_equal(flat(after.mean), 0.0)


def test_an_unknown_gradient_optimizer_is_refused() -> None:
    with raises_naming(ValueError, "lion, ", "got 'adamx'"):
        _optimizer(optimizer_name="adamx")


def test_the_fields_of_the_published_interface() -> None:
    optimizer = _optimizer(mirror_sampling=True, optimizer_name="adam", weight_decay=None)
    names = {
        "pop_size",
        "lr_schedule",
        "noise_std_schedule",
        "mirror_sampling",
        "optimizer_name",
        "weight_decay",
        "rank",
    }
    assert {field.name for field in dataclasses.fields(optimizer)} == names | {"fitness_shaping_fn", "optimizer"}
    with raises_naming(TypeError, "optimizer"):
        _optimizer(optimizer=optax.adam(0.1))


@pytest.mark.parametrize("weight_decay", [None, 0.5])
def test_the_optimizer_is_that_of_optax_with_the_generations_step_size(weight_decay: float | None) -> None:
    optimizer = _optimizer(optimizer_name="adam", weight_decay=weight_decay)
    assert isinstance(optimizer.optimizer, optax.GradientTransformation)
    state, expected = later(optimizer, 0), later(optimizer, 0).mean
    rate, opt_state = 0.4, None
    for _ in range(2):
        mean, std, noise = parts_of(optimizer, state)
        gradient = -compute_centered_ranks(jnp.asarray(FITNESS)) @ noise / (POP_SIZE * std)
        adam = optax.adam(rate) if weight_decay is None else optax.adamw(rate, weight_decay=weight_decay)
        opt_state = adam.init(jnp.asarray(mean)) if opt_state is None else opt_state
        updates, opt_state = adam.update(jnp.asarray(gradient), opt_state, jnp.asarray(mean))
        expected, rate = mean + np.asarray(updates), rate * 0.5
        state = optimizer.tell(state, jnp.asarray(FITNESS))
        np.testing.assert_allclose(flat(state.mean), expected, rtol=1e-4, atol=1e-4)


def test_other_numbers_share_the_optimizer_and_so_the_program() -> None:
    one, two = _optimizer(weight_decay=0.1), _optimizer(weight_decay=0.2, lr_schedule=NOISE_STD)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert jax.tree.structure(one) != jax.tree.structure(_optimizer(weight_decay=0.1, optimizer_name="radam"))


def test_an_optimizer_whose_steps_have_a_size_of_their_own_is_refused() -> None:
    with raises_naming(ValueError, "optimizer_name", "got 'rprop'"):
        _optimizer(optimizer_name="rprop")

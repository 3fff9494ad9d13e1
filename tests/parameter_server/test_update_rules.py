"""Effects of a push equal numbers computed by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.gradient_tap import tapped, taps_in
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.parameter_server.update_rules import ParameterServerSettings, create, pull, push
from evorl.sample_batch import SampleBatch
from tests.support.compilation import compiled_to_run_long
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close, assert_identical, small

SGD = Optimizer("sgd", 1.0)
GRADIENT = np.asarray([0.1, -0.2, 0.3], np.float32)
ONES = jnp.ones(3)


def _settings(mode: str = "fifo", optimizer: Optimizer = SGD, **changes: Any) -> ParameterServerSettings:
    return ParameterServerSettings(mode=mode, optimizer=optimizer, **changes)  # pyright: ignore[reportArgumentType]


def _params(state: Any) -> np.ndarray:
    return np.asarray(state.params)


def test_fifo_steps_with_every_push_whatever_its_age() -> None:
    settings = _settings()
    state = create(settings, ONES)
    for i, (gradient, age) in enumerate([([1.0, 0, 0], 0), ([0, 2.0, 0], 0), ([0, 0, 4.0], 7)]):
        state, accepted = push(settings, state, jnp.asarray(gradient), 10, age)
        assert accepted
        assert int(state.step) == 10 * (i + 1)
    np.testing.assert_allclose(_params(state), [0.0, -1.0, -3.0])
    assert int(state.updates) == 3


def test_fifo_steps_in_the_order_of_arrival() -> None:
    """Gradients are applied in the order of arrival, which matters with momentum."""
    settings = _settings(optimizer=Optimizer("adam", 0.1))
    gradients = [jnp.asarray([x, -x, 3 * x]) for x in (1.0, -0.5, 0.25)]

    def after(order: list[jax.Array]) -> np.ndarray:
        state = create(settings, ONES)
        for gradient in order:
            state, _ = push(settings, state, gradient, 1, 0)
        return _params(state)

    optimizer, params = settings.optimizer, ONES
    opt_state = optimizer.init(params)
    for gradient in gradients:
        params, opt_state = optimizer.apply(gradient, opt_state, params)
    np.testing.assert_allclose(after(gradients), params, rtol=1e-6)
    assert np.abs(after(gradients[::-1]) - params).max() > 1e-3


def test_averaging_waits_for_its_number_and_drops_what_is_old() -> None:
    settings = _settings("averaging", num_gradients=4)
    state = create(settings, ONES)
    gradients = [jnp.asarray([x, 0.0, 1.0]) for x in (1.0, 2.0, 3.0, 6.0)]
    for gradient in gradients[:3]:
        state, accepted = push(settings, state, gradient, 5, 0)
        assert accepted
    assert_identical(state.params, ONES)
    assert (int(state.step), int(state.count)) == (0, 3)
    state, _ = push(settings, state, gradients[3], 7, 0)
    np.testing.assert_allclose(_params(state), [-2.0, 1.0, 0.0])  # the mean of four is [3, 0, 1]
    assert (int(state.step), int(state.count), int(state.updates)) == (22, 0, 1)

    state, accepted = push(settings, state, gradients[0], 5, 0)
    assert not accepted
    assert (int(state.step), int(state.count)) == (22, 0)
    state, accepted = push(settings, state, gradients[0], 5, 22)
    assert accepted
    assert int(state.count) == 1
    assert int(state.waiting) == 5, "steps of what was dropped do not count"


@pytest.mark.parametrize(
    ("compensation", "expected"), [(0.05, [0.10025, -0.2, 0.2955]), (2.0, [0.11, -0.2, 0.12])], ids=["0.05", "2"]
)
def test_delay_compensation_follows_its_formula(compensation: float, expected: list[float]) -> None:
    """The applied gradient equals the paper's formula for old parameters ``[.5, 1, 2]`` and current ``[1, 1, 1]``."""
    settings = _settings("delay_compensation", compensation=compensation)
    state = create(settings, jnp.asarray([0.5, 1.0, 2.0]))
    state, _ = push(settings, state, jnp.asarray([-0.5, 0.0, 1.0]), 3, 0)  # current version: not compensated
    np.testing.assert_allclose(_params(state), 1.0)
    state, _ = push(settings, state, jnp.asarray(GRADIENT), 3, 0)  # from the initial parameters
    np.testing.assert_allclose(1.0 - _params(state), expected, atol=2e-7)


def test_a_fresh_gradient_is_not_compensated() -> None:
    settings = _settings("delay_compensation", compensation=1e6)
    state = create(settings, ONES)
    for step in (0, 3):
        before = _params(state)
        state, _ = push(settings, state, jnp.asarray(GRADIENT), 3, step)
        np.testing.assert_array_equal(before - GRADIENT, _params(state))


def test_a_forgotten_step_counts_as_the_present_one() -> None:
    settings = _settings("delay_compensation", compensation=2.0, history=3)
    state = create(settings, ONES)

    def pushed(state: Any, worker_step: int) -> tuple[Any, np.ndarray]:
        before = _params(state)
        state, _ = push(settings, state, jnp.asarray(GRADIENT), 10, worker_step)
        return state, before - _params(state)

    for step in (0, 10):
        state, moved = pushed(state, step)
        np.testing.assert_allclose(moved, GRADIENT, atol=2e-7)
    kept = jax.tree.map(jnp.copy, state)
    _, moved = pushed(kept, 0)  # with a history of three, the initial parameters are the oldest
    assert np.abs(moved - GRADIENT).max() > 1e-3
    state, _ = pushed(state, 20)
    state, moved = pushed(state, 0)
    np.testing.assert_allclose(moved, GRADIENT, atol=2e-7)
    assert sorted(np.asarray(state.history.steps.low).tolist()) == [20, 30, 40]


def test_steps_that_are_told_apart_by_their_upper_words_only() -> None:
    settings = _settings("averaging", num_gradients=1)
    state = create(settings, ONES)
    for _ in range(2):
        state, _ = push(settings, state, ONES, 2**31, int(state.step))
    assert int(state.step) == 2**32
    assert not push(settings, state, ONES, 1, 2**31)[1]


@compiled_to_run_long()
@pytest.mark.parametrize("mode", ["fifo", "delay_compensation"])
def test_one_worker_is_the_plain_optimizer_to_the_bit(mode: str) -> None:
    optimizer = Optimizer("adam", Schedule(1e-2, 0.0), max_grad_norm=0.5, weight_decay=1e-3)
    settings = _settings(mode, optimizer, total_timesteps=1e3)
    key = jax.random.key(0)
    params = {"w": jax.random.normal(key, (17, 9)), "b": jnp.zeros(9)}
    state, opt_state = create(settings, params), optimizer.init(params)
    plain = jax.jit(lambda *args: optimizer.apply(*args))
    for i in range(20):
        gradient = jax.tree.map(lambda x, i=i: jnp.cos(x * (i + 1)), params)
        pulled, step = pull(state)
        assert_identical(pulled, params)
        state, _ = push(settings, state, gradient, 30, step)
        params, opt_state = plain(gradient, opt_state, params, min(30 * i / 1e3, 1.0))
    assert_identical(pull(state)[0], params)


def test_the_mean_of_four_workers_is_the_gradient_of_the_fourfold_batch() -> None:
    workflow = tapped(small("a2c", env="CartPole-v1"))
    states = [workflow.init(seed) for seed in range(4)]
    first = states[0].agent_state
    collect = jax.jit(lambda w, s: w.collect(s)[0])
    batches = [collect(workflow, state.replace(agent_state=first)) for state in states]

    @jax.jit
    def gradient(workflow: Any, state: Any, batch: SampleBatch) -> Any:
        return taps_in(workflow.update(state.replace(agent_state=first), batch)[1].opt_state)[0].gradient

    settings = _settings("averaging", Optimizer("adam", 1e-2, max_grad_norm=0.5), num_gradients=4)
    server = create(settings, first.params)
    for batch in batches:
        server, _ = push(settings, server, gradient(workflow, states[0], batch), 64, 0)

    joined = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *batches)
    alone = create(_settings("fifo", settings.optimizer), first.params)
    alone, _ = push(_settings("fifo", settings.optimizer), alone, gradient(workflow, states[0], joined), 256, 0)
    assert int(server.step) == int(alone.step) == 256
    assert_close(server.opt_state, alone.opt_state, 1e-6)
    assert_close(server.params, alone.params, 1e-5)


def test_deltas_are_added() -> None:
    fifo = _settings(send="delta")
    state, _ = push(fifo, create(fifo, ONES), jnp.asarray(GRADIENT), 3, 0)
    np.testing.assert_allclose(_params(state), 1.0 + GRADIENT)
    averaging = _settings("averaging", send="delta", num_gradients=2)
    state = create(averaging, ONES)
    for delta in (GRADIENT, 3.0 * GRADIENT):
        state, _ = push(averaging, state, jnp.asarray(delta), 3, 0)
    np.testing.assert_allclose(_params(state), 1.0 + 2.0 * GRADIENT, rtol=1e-6)


def test_the_schedule_is_that_of_the_steps_of_all() -> None:
    settings = _settings(optimizer=Optimizer("sgd", Schedule(1.0, 0.0)), total_timesteps=100.0)
    state = create(settings, jnp.zeros(()))
    moved = []
    for _ in range(3):
        before = float(state.params)
        state, _ = push(settings, state, jnp.ones(()), 50, 0)
        moved.append(before - float(state.params))
    assert moved == [1.0, 0.5, 0.0]


def test_a_push_takes_the_memory_of_the_state() -> None:
    """A push donates the state, instead of copying its ring of 20 parameter sets."""
    settings = _settings("delay_compensation")
    first = create(settings, ONES)
    pulled, _ = pull(first)
    push(settings, first, jnp.asarray(GRADIENT), 1, 0)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first.history))
    assert_identical(pulled, ONES)
    assert_identical(ONES, jnp.ones(3))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"mode": "avg"}, ("parameters.mode", "averaging, delay_compensation, fifo")),
        ({"send": "weights"}, ("parameters.send", "delta, gradient")),
        ({"num_gradients": 0}, ("num_gradients", "got 0")),
        ({"history": 0}, ("history", "got 0")),
        ({"compensation": -1.0}, ("compensation", "at least 0", "got -1")),
        ({"mode": "delay_compensation", "send": "delta"}, ("parameters.send=delta", "fifo or averaging")),
    ],
)
def test_wrong_settings_are_refused_in_words(changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        _settings(**changes)


@pytest.mark.parametrize(("steps", "worker_step"), [(-1, 0), (2**32, 0), (1, -1), (1, 2**64)])
def test_numbers_of_steps_that_cannot_be(steps: int, worker_step: int) -> None:
    settings = _settings()
    with raises_naming(ValueError, f"got {steps}" if worker_step == 0 else f"got {worker_step}"):
        push(settings, create(settings, ONES), ONES, steps, worker_step)

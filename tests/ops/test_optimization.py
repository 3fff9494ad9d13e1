from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from evorl.ops.collectives import DATA_AXIS
from evorl.ops.optimization import Optimizer, OptimizerName, gradient_step, scan_minibatches, standardize
from evorl.ops.platform import compiled_for
from evorl.ops.schedules import Schedule
from tests.support.errors import raises_naming

PARAMS = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
GRADIENTS = {"w": jnp.array([3.0, 4.0]), "b": jnp.array(0.0)}


def _steps(optimizer: Optimizer, num: int, progress: float = 0.0) -> dict:
    def step(carry: tuple, _: None) -> tuple:
        params, state = carry
        return optimizer.apply(GRADIENTS, state, params, progress), None

    return jax.lax.scan(step, (PARAMS, optimizer.init(PARAMS)), length=num)[0][0]


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        (Optimizer(learning_rate=0.1), optax.adam(0.1)),
        (Optimizer("radam", learning_rate=0.1), optax.radam(0.1)),
        (
            Optimizer("sgd", learning_rate=0.1, max_grad_norm=1.0),
            optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        ),
        (Optimizer(learning_rate=0.1, weight_decay=0.01), optax.adamw(0.1, weight_decay=0.01)),
        (Optimizer("adamw", learning_rate=0.1, weight_decay=0.01), optax.adamw(0.1, weight_decay=0.01)),
        (Optimizer("rmsprop", 0.1, epsilon=1e-3, options={"decay": 0.5}), optax.rmsprop(0.1, decay=0.5, eps=1e-3)),
        (
            Optimizer("sgd", learning_rate=0.1, options={"momentum": 0.5, "nesterov": True}),
            optax.sgd(0.1, momentum=0.5, nesterov=True),
        ),
        (Optimizer("lion", learning_rate=0.1, beta1=0.5, epsilon=1.0), optax.lion(0.1, b1=0.5)),
    ],
    ids=["adam", "radam", "clipped_sgd", "decayed_adam", "adamw", "rmsprop", "nesterov", "lion"],
)
def test_it_steps_as_the_optimizer_of_its_name(optimizer: Optimizer, reference: optax.GradientTransformation) -> None:
    params, state = PARAMS, reference.init(PARAMS)
    for _ in range(3):
        updates, state = reference.update(GRADIENTS, state, params)
        params = optax.apply_updates(params, updates)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        jax.jit(_steps, static_argnums=1)(optimizer, 3),
        params,
    )


@pytest.mark.parametrize(("beta1", "kept"), [(0.5, 0.5), (None, 0.9), (0.0, 0.0)])
def test_adam_keeps_as_much_of_past_gradients_as_told(beta1: float | None, kept: float) -> None:
    optimizer, reference = Optimizer(learning_rate=0.1, beta1=beta1), optax.adam(0.1, b1=kept)
    params, state = PARAMS, optimizer.init(PARAMS)
    expected, reference_state = PARAMS, reference.init(PARAMS)
    for sign in (1.0, -2.0, 0.5):
        gradients = jax.tree.map(lambda g, sign=sign: sign * g, GRADIENTS)
        params, state = optimizer.apply(gradients, state, params)
        updates, reference_state = reference.update(gradients, reference_state, expected)
        expected = optax.apply_updates(expected, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, expected)


NAMES = typing.get_args(OptimizerName)


@pytest.mark.parametrize("name", NAMES)
def test_any_optimizer_goes_down_a_quadratic(name: str) -> None:
    """Every optimizer decreases a quadratic with a changing learning rate in one program."""
    loss = lambda params: sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(params))  # noqa: E731
    rate = 0.02 if name == "rprop" else Schedule(0.02, 0.01)
    optimizer = Optimizer(name, learning_rate=rate)  # pyright: ignore[reportArgumentType]  # each name is a literal

    def step(carry: tuple, progress: jax.Array) -> tuple:
        params, state = carry
        return optimizer.apply(jax.grad(loss)(params), state, params, progress), None

    start = (PARAMS, optimizer.init(PARAMS))
    after, _ = jax.jit(lambda start: jax.lax.scan(step, start, jnp.linspace(0.0, 1.0, 10)))(start)
    assert loss(after[0]) < loss(PARAMS)


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_has_an_effect_or_is_refused(name: str) -> None:
    if name == "rprop":
        with raises_naming(ValueError, "rprop", "learning_rate", "number"):
            Optimizer(name, learning_rate=Schedule(0.02, 0.01))
        return
    optimizer = Optimizer(name, learning_rate=Schedule(0.02, 0.01))  # pyright: ignore[reportArgumentType]  # a literal
    state = optimizer.init(PARAMS)
    early, late = (optimizer.apply(GRADIENTS, state, PARAMS, progress)[0]["w"] - PARAMS["w"] for progress in (0.0, 1.0))
    np.testing.assert_allclose(late, 0.5 * early, rtol=0.1)


def test_the_names_are_those_of_optax() -> None:
    """All of optax's optimizers are available, except for parts, sm3, and optimizers with loss values or random
    numbers.
    """
    others = {
        "lbfgs",
        "noisy_sgd",
        "optimistic_adam",
        "optimistic_adam_v2",
        "sm3",
        "scale_by_learning_rate",
        "scale_by_rprop",
    }
    functions = {name: getattr(optax, name) for name in dir(optax) if not name.startswith("_")}
    callables = {name: f for name, f in functions.items() if inspect.isroutine(f) or isinstance(f, functools.partial)}
    found = {name for name, f in callables.items() if next(iter(_parameters(f)), "") == "learning_rate"}
    assert found - others == set(NAMES)


def _parameters(function: Callable) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:
        return []


def test_numbers_among_options_are_data() -> None:
    traces = []

    @jax.jit
    def step(optimizer: Optimizer) -> jax.Array:
        traces.append(optimizer)
        return optimizer.apply(GRADIENTS, optimizer.init(PARAMS), PARAMS)[0]["w"]

    for momentum in (0.9, 0, 0.5):
        step(Optimizer("sgd", options={"momentum": momentum, "nesterov": True}))
    assert len(traces) == 1
    step(Optimizer("sgd", options={"momentum": 0.9, "nesterov": False}))
    assert len(traces) == 2
    optimizer = Optimizer("sgd", options={"momentum": 0.9, "nesterov": True})
    assert jax.tree.structure(optimizer.replace(learning_rate=0.1)) == jax.tree.structure(optimizer)


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"name": "sgd", "options": {"momentun": 0.9}}, ("sgd", "'momentun'", "momentum, nesterov")),
        ({"name": "adam", "options": {"eps": 0.1}}, ("adam", "'eps'", "set epsilon")),
        ({"name": "sgd", "options": {"nesterov": 1.0}}, ("options.nesterov", "sgd", "true or false", "got 1.0")),
        ({"name": "sgd", "options": {"momentum": True}}, ("options.momentum", "sgd", "number", "got True")),
        ({"name": "rprop", "weight_decay": 0.1}, ("rprop", "weight_decay=0.1")),
    ],
)
def test_options_that_an_optimizer_lacks_are_refused(fields: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        Optimizer(**fields)


def test_beta1_is_for_adam() -> None:
    with raises_naming(ValueError, "beta1=0.5", "adam", "sgd"):
        Optimizer("sgd", beta1=0.5)


def test_the_learning_rate_falls_linearly_with_progress() -> None:
    optimizer = Optimizer("sgd", learning_rate=Schedule(0.2, 0.1))
    for progress, rate in ((0.0, 0.2), (0.5, 0.15), (1.0, 0.1), (2.0, 0.1)):
        moved = _steps(optimizer, 1, progress)["w"]
        np.testing.assert_allclose(moved, PARAMS["w"] - rate * GRADIENTS["w"], rtol=1e-5)


def test_its_numbers_are_data() -> None:
    traces = []

    @jax.jit
    def step(optimizer: Optimizer) -> dict:
        traces.append(optimizer.name)
        return optimizer.apply(GRADIENTS, optimizer.init(PARAMS), PARAMS)[0]

    slow, fast = step(Optimizer("sgd", learning_rate=0.1)), step(Optimizer("sgd", learning_rate=0.2))
    assert traces == ["sgd"]
    np.testing.assert_allclose(PARAMS["w"] - fast["w"], 2 * (PARAMS["w"] - slow["w"]), rtol=1e-5)


def test_an_unknown_rule_is_refused() -> None:
    with raises_naming(ValueError, "adabelief, ", " yogi", "got 'adm'"):
        Optimizer("adm")  # pyright: ignore[reportArgumentType]


def _loss(params: dict, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss = jnp.mean(jnp.square(batch @ params["w"] + params["b"]))
    return loss, loss


def test_a_gradient_step_goes_downhill_and_reports() -> None:
    optimizer, batch = Optimizer("sgd", learning_rate=0.01), jnp.array([[1.0, 2.0], [0.5, -1.0]])
    params, _, loss = gradient_step(_loss, optimizer, PARAMS, optimizer.init(PARAMS), batch)
    assert loss == _loss(PARAMS, batch)[0]
    assert _loss(params, batch)[0] < loss


def test_minibatches_and_steps_do_not_depend_on_the_number_of_devices() -> None:
    optimizer = Optimizer("sgd", learning_rate=0.01)
    data, key = jax.random.normal(jax.random.key(0), (16, 2)), jax.random.key(1)

    def train(data: jax.Array) -> tuple[dict, jax.Array]:
        def update(carry: tuple, batch: jax.Array) -> tuple:
            params, state, _ = gradient_step(_loss, optimizer, *carry, standardize(batch))
            return (params, state), batch.shape[0] * jnp.ones(())

        (params, _), sizes = scan_minibatches(update, (PARAMS, optimizer.init(PARAMS)), data, key, 2, 2)
        return params, sizes

    mesh = jax.make_mesh((4,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    whole = PartitionSpec()
    sharded = jax.jit(jax.shard_map(train, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False))
    (alone, sizes), (joined, share) = jax.jit(train)(data), sharded(data)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), joined, alone)
    np.testing.assert_array_equal(sizes, [8.0] * 4)
    np.testing.assert_array_equal(share, [2.0] * 4)


def test_every_epoch_sees_every_row_once_in_its_own_order() -> None:
    def update(carry: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        return carry + 1, batch

    count, batches = scan_minibatches(update, jnp.array(0), jnp.arange(12), jax.random.key(0), 3, 4)
    assert count == 12
    epochs = batches.reshape(3, 12)
    np.testing.assert_array_equal(jnp.sort(epochs, axis=1), [list(range(12))] * 3)
    assert not np.array_equal(epochs[0], epochs[1])
    with raises_naming(ValueError, "12 rows", "5 equal minibatches"):
        scan_minibatches(update, jnp.array(0), jnp.arange(12), jax.random.key(0), 1, 5)


def test_standardize_has_mean_0_and_deviation_1() -> None:
    result = standardize(jnp.array([1.0, 5.0, 9.0]))
    np.testing.assert_allclose(result, [-np.sqrt(1.5), 0.0, np.sqrt(1.5)], rtol=1e-5)
    np.testing.assert_array_equal(standardize(jnp.ones(3)), 0.0)


def test_accelerators_take_the_steps_of_a_cpu() -> None:
    """With gradients clipped by another program, and minibatches and parameters packed."""
    batch = {"x": jax.random.normal(jax.random.key(1), (12, 3)), "y": jnp.arange(12.0), "kept": jnp.arange(12) > 3}
    params = {"w": jnp.ones(3), "b": jnp.zeros(())}
    optimizer = Optimizer(learning_rate=0.1, max_grad_norm=0.5)

    def loss(params: dict, minibatch: dict) -> tuple:
        errors = jnp.where(minibatch["kept"], minibatch["x"] @ params["w"] + params["b"] - minibatch["y"], 0.0)
        return jnp.square(errors).mean(), {"loss": jnp.square(errors).mean()}

    def update(carry: tuple, minibatch: dict) -> tuple:
        *carry, metrics = gradient_step(loss, optimizer, *carry, minibatch)
        return tuple(carry), metrics

    def trained() -> tuple:
        start = (params, optimizer.init(params))
        return jax.jit(lambda: scan_minibatches(update, start, batch, jax.random.key(0), 3, 2))()

    expected = trained()
    with compiled_for("gpu"):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), trained(), expected)


@pytest.mark.parametrize("value", ["abc", [0.9], {"a": 1}, math.nan, math.inf, -math.inf, True], ids=str)
@pytest.mark.parametrize(
    ("name", "option"),
    [("sgd", "momentum"), ("adam", "b2"), ("adafactor", "decay_rate"), ("adafactor", "min_dim_size_to_factor")],
)
def test_an_option_that_is_no_finite_number_is_refused(name: str, option: str, value: Any) -> None:
    with raises_naming(ValueError, f"options.{option} of {name}", "number", "got"):
        Optimizer(name, options={option: value})


@pytest.mark.parametrize(
    ("name", "option", "value"), [("adam", "b2", 2.0), ("adan", "b3", 1), ("rmsprop", "decay", -1)]
)
def test_decay_rates_among_options_have_a_range(name: str, option: str, value: float) -> None:
    with raises_naming(ValueError, f"options.{option} of {name}", "[0, 1", f"got {value}"):
        Optimizer(name, options={option: value})


def test_an_option_with_a_text_as_default_is_text() -> None:
    optimizer = Optimizer("adafactor", options={"dtype_momentum": "bfloat16", "momentum": 0.9, "decay_offset": 3})
    assert {str(x.dtype) for x in jax.tree.leaves(optimizer.init(PARAMS))} >= {"bfloat16"}

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from evorl.ops.collectives import DATA_AXIS
from evorl.ops.optimization import Optimizer, gradient_step, scan_minibatches, standardize, when_due

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
    ],
    ids=["adam", "radam", "clipped_sgd", "adamw"],
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


def test_an_update_that_is_not_due_changes_nothing() -> None:
    def update(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return state[0] + 1.0, state[1] * 2

    state = (jnp.ones(3), jnp.int32(5))
    due, not_due = (jax.jit(when_due, static_argnums=1)(jnp.bool_(due), update, state) for due in (True, False))
    jax.tree.map(np.testing.assert_array_equal, due, update(state))
    jax.tree.map(np.testing.assert_array_equal, not_due, state)
    several = jax.vmap(lambda due: when_due(due, update, state))(jnp.array([True, False]))
    np.testing.assert_array_equal(several[1], [10, 5])


def test_beta1_is_for_adam() -> None:
    with pytest.raises(ValueError, match=r"beta1 is for adam and radam, and optimizer\.name is sgd: leave one"):
        Optimizer("sgd", beta1=0.5)


def test_the_learning_rate_falls_linearly_with_progress() -> None:
    optimizer = Optimizer("sgd", learning_rate=0.2, final_learning_rate=0.1)
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
    with pytest.raises(ValueError, match="one of adam, radam, rmsprop, sgd; got 'adm'"):
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
    with pytest.raises(ValueError, match="12 rows cannot be cut into 5 equal minibatches"):
        scan_minibatches(update, jnp.array(0), jnp.arange(12), jax.random.key(0), 1, 5)


def test_standardize_has_mean_0_and_deviation_1() -> None:
    result = standardize(jnp.array([1.0, 5.0, 9.0]))
    np.testing.assert_allclose(result, [-np.sqrt(1.5), 0.0, np.sqrt(1.5)], rtol=1e-5)
    np.testing.assert_array_equal(standardize(jnp.ones(3)), 0.0)

"""Recurrent cells equal formulas in NumPy, and unrolling equals stepping."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.networks.gated_transformer import GTrXL
from evorl.networks.heads import ValueNetwork
from evorl.networks.linear_cells import LRU, MinGRU
from evorl.networks.recurrent import GRU, LSTM, Cell, DilatedLSTM, RecurrentNetwork, build_cell
from evorl.networks.torsos import Torso, dense_torso
from tests.support.errors import raises_naming

KEY = jax.random.key(0)
SIZE, FEATURES, ROWS, STEPS = 6, 4, 3, 7
X = np.random.default_rng(1).normal(size=(STEPS, ROWS, FEATURES)).astype(np.float32)
CELLS = [GRU(SIZE), LSTM(SIZE), DilatedLSTM(SIZE, num_cores=3), MinGRU(SIZE), LRU(SIZE), GTrXL(SIZE, num_heads=2)]


applied = jax.jit(lambda network, *given: network.apply(*given), static_argnums=0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _started(cell: Cell) -> tuple[Any, dict]:
    """Return a nonzero state and parameters."""
    network = RecurrentNetwork(Torso(), cell, _Identity())
    state = cell.initial_state((ROWS,))
    params = jax.jit(network.init)(KEY, X[0], state)
    for x in X[:2]:
        _, state = network.apply(params, x, state)
    return jax.tree.map(np.asarray, state), jax.tree.map(np.asarray, params["params"]["cell"])


class _Identity(Torso):
    """Head that returns the cell's outputs."""


def _step(cell: Cell, params: dict, x: jax.Array, state: Any) -> tuple[jax.Array, Any]:
    """Run a step operation by operation, for bitwise comparison of cells."""
    network = RecurrentNetwork(Torso(), cell, _Identity())
    return jax.tree.map(np.asarray, network.apply({"params": {"cell": params}}, x, state))


def test_gru_is_its_formula() -> None:
    state, params = _started(GRU(SIZE))
    assert set(params) == {"input_gates", "state_gates"}
    x, h = np.asarray(X[2]), np.asarray(state.hidden)
    of_x = x @ params["input_gates"]["kernel"] + params["input_gates"]["bias"]
    of_h = h @ params["state_gates"]["kernel"] + params["state_gates"]["bias"]
    reset = _sigmoid(of_x[:, :SIZE] + of_h[:, :SIZE])
    update = _sigmoid(of_x[:, SIZE : 2 * SIZE] + of_h[:, SIZE : 2 * SIZE])
    new = np.tanh(of_x[:, 2 * SIZE :] + reset * of_h[:, 2 * SIZE :])
    output, after = _step(GRU(SIZE), params, X[2], state)
    np.testing.assert_allclose(output, (1 - update) * new + update * h, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(after.hidden, output)


def test_lstm_is_its_formula() -> None:
    state, params = _started(LSTM(SIZE))
    gates = np.asarray(X[2]) @ params["input_gates"]["kernel"] + params["input_gates"]["bias"]
    gates += np.asarray(state.hidden) @ params["state_gates"]["kernel"]
    write, forget, new, read = (gates[:, i * SIZE : (i + 1) * SIZE] for i in range(4))
    cell = _sigmoid(forget + 1.0) * np.asarray(state.cell) + _sigmoid(write) * np.tanh(new)
    output, after = _step(LSTM(SIZE), params, X[2], state)
    np.testing.assert_allclose(after.cell, cell, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(output, _sigmoid(read) * np.tanh(cell), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(after.hidden, output)


def test_cores_of_a_dilated_lstm_take_turns_and_the_others_hold() -> None:
    dilated = DilatedLSTM(SIZE, num_cores=3)
    state, params = _started(dilated)
    for step in range(2, 2 + 4):
        plain = _plain_state(state)
        _, whole = _step(LSTM(SIZE), params, X[step], plain)
        output, after = _step(dilated, params, X[step], state)
        turn = np.arange(SIZE) // 2 == step % 3
        for name in ("cell", "hidden"):
            np.testing.assert_array_equal(after[name][:, ~turn], state[name][:, ~turn])  # bitwise
            np.testing.assert_array_equal(after[name][:, turn], whole[name][:, turn])
            assert not np.array_equal(after[name][:, turn], state[name][:, turn])
        np.testing.assert_array_equal(output, after.hidden)
        np.testing.assert_array_equal(after.step, step + 1)
        state = after


def _plain_state(state: Any) -> Any:
    """Return the plain LSTM state for that of a dilated one."""
    return type(state)(cell=state.cell, hidden=state.hidden)


def test_one_core_is_the_plain_lstm() -> None:
    one, plain = DilatedLSTM(SIZE, num_cores=1), LSTM(SIZE)
    (state, params), (plain_state, plain_params) = _started(one), _started(plain)
    jax.tree.map(np.testing.assert_array_equal, params, plain_params)
    for x in X[2:]:
        output, state = _step(one, params, x, state)
        expected, plain_state = _step(plain, params, x, plain_state)
        np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(state.cell, plain_state.cell)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: type(cell).__name__)
def test_unrolling_is_stepping_with_resets_where_episodes_start(cell: Cell) -> None:
    network = RecurrentNetwork(dense_torso(5), cell, ValueNetwork(dense_torso(3)))
    state = jax.tree.map(lambda x: np.asarray(x) + 1, cell.initial_state((ROWS,)))
    params = jax.jit(network.init)(KEY, X[0], state)
    starts = np.zeros((STEPS, ROWS), bool)
    starts[[3, 0], [1, 2]] = True
    unroll = jax.jit(lambda *given: network.apply(*given, method="unroll"))
    values, states = jax.tree.map(np.asarray, unroll(params, X, state, starts))
    assert values.shape == (STEPS, ROWS)
    for t in range(STEPS):
        for row in np.flatnonzero(starts[t]):
            state = jax.tree.map(np.array, state)
            for leaf in jax.tree.leaves(state):
                leaf[row] = 0
        value, state = applied(network, params, X[t], state)
        np.testing.assert_allclose(values[t], value, rtol=1e-4, atol=1e-5)
        jax.tree.map(lambda a, b, t=t: np.testing.assert_allclose(a[t], b, rtol=1e-4, atol=1e-5), states, state)


@pytest.mark.parametrize(
    "cell", [LSTM(SIZE), MinGRU(SIZE), LRU(SIZE), GTrXL(SIZE, num_heads=2)], ids=lambda cell: type(cell).__name__
)
def test_gradients_reach_through_time_and_stop_at_an_episodes_start(cell: Cell) -> None:
    network = RecurrentNetwork(Torso(), cell, _Identity())
    state = network.initial_state((ROWS,))
    params = jax.jit(network.init)(KEY, X[0], state)

    def last_output(x: jax.Array, starts: jax.Array) -> jax.Array:
        return network.apply(params, x, state, starts, method="unroll")[0][-1].sum()

    starts = np.zeros((STEPS, ROWS), bool)
    starts[4, 0] = True
    gradient = np.asarray(jax.jit(jax.grad(last_output))(X, starts))
    assert not gradient[:4, 0].any()
    assert gradient[4:, 0].any(axis=-1).all()
    assert gradient[:, 1:].any(axis=-1).all()


def test_a_state_has_the_rows_it_is_asked_for() -> None:
    shapes = jax.tree.map(jnp.shape, DilatedLSTM(8).initial_state((2, 3)))
    assert shapes == {"cell": (2, 3, 8), "hidden": (2, 3, 8), "step": (2, 3)}
    assert all(not leaf.any() for leaf in jax.tree.leaves(GRU(4).initial_state()))


def test_cells_are_built_from_a_config() -> None:
    assert build_cell(None) is None
    assert build_cell("gru") == GRU()
    assert build_cell({"name": "lstm", "size": 32}) == LSTM(32)
    assert build_cell({"name": "dilated_lstm", "size": 12, "num_cores": 3}) == DilatedLSTM(12, num_cores=3)
    assert build_cell("min_gru") == MinGRU()
    assert build_cell({"name": "min_gru", "size": 16, "horizon": 20}) == MinGRU(16, horizon=20)
    assert build_cell({"name": "lru", "size": 16}) == LRU(16)
    assert build_cell({"name": "gtrxl", "size": 16, "num_heads": 2, "window": 8}) == GTrXL(16, num_heads=2, window=8)
    assert hash(build_cell("gru")) == hash(GRU())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("lsmt", ("recurrent cell 'lsmt'", "'lstm'")),
        ({"size": 3}, ("recurrent cell", "gru, lstm, dilated_lstm, min_gru, lru, gtrxl.")),
        ({"name": "min_gru", "num_cores": 3}, ("option of recurrent cell min_gru", "'num_cores'", "horizon")),
        ({"name": "lru", "horizon": 0}, ("recurrent.horizon", "got 0")),
        ({"name": "lru", "horizon": 10}, ("recurrent.horizon of lru", "more than 10", "got 10")),
        ({"name": "gtrxl", "size": 10}, ("size=10", "num_heads=4", "divisor")),
        ({"name": "gtrxl", "window": 0}, ("recurrent.window", "got 0")),
        ("mingru", ("recurrent cell 'mingru'", "'min_gru'")),
        ({"name": "lstm", "sise": 3}, ("option of recurrent cell lstm", "'sise'", "'size'")),
        ({"name": "gru", "num_cores": 3}, ("option of recurrent cell gru", "'num_cores'")),
        ({"name": "gru", "size": 0}, ("size", "got 0")),
        ({"name": "dilated_lstm", "size": 8, "num_cores": 3}, ("size=8", "num_cores=3", "divisor")),
    ],
)
def test_nonsense_is_refused_in_words(config: Any, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        build_cell(config)

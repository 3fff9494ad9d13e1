"""GTrXL against its formula in NumPy, unrolling against stepping, and planted bugs that these checks catch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evorl.networks import gated_transformer
from evorl.networks.gated_transformer import GTrXL
from evorl.ops.trees import zeros_where
from evorl.types import PyTreeDict

SIZE, FEATURES, ROWS, STEPS, WINDOW = 6, 4, 3, 12, 3
CELL = GTrXL(SIZE, num_layers=2, num_heads=2, window=WINDOW)
RNG = np.random.default_rng(1)
X = RNG.normal(size=(STEPS, ROWS, FEATURES)).astype(np.float32)
SOME_STARTS = np.random.default_rng(2).random((STEPS, ROWS)) < 0.25


def _step(cell: Any, x: jax.Array, state: Any) -> tuple[Any, jax.Array]:
    return cell(state, cell.inputs(x))


def _unroll(cell: Any, x: jax.Array, state: Any, starts: jax.Array) -> tuple[Any, jax.Array]:
    return cell.unroll(state, cell.inputs(x), starts)


@functools.partial(jax.jit, static_argnums=0)
def _stepped(cell: Any, params: Any, x: jax.Array, state: Any, start: jax.Array) -> tuple[Any, jax.Array]:
    return cell.apply(params, x, zeros_where(start, state), method=_step)


def _fresh_params(cell: Any) -> Any:
    """Parameters that are all different from zero, biases too."""
    init = jax.jit(lambda: cell.init(jax.random.key(0), X[0], cell.initial_state((ROWS,)), method=_step))
    return jax.tree.map(lambda p: np.asarray(p) + 0.3 * RNG.normal(size=p.shape).astype(np.float32), init())


_params: Callable[[Any], Any] = functools.cache(_fresh_params)


def _state(cell: GTrXL) -> PyTreeDict:
    """States after 0, 2 and 7 steps of an episode, with a memory that is nonzero where it is visible."""
    count = np.array([0, 2, 7], np.int32)
    shape = cell.initial_state((ROWS,)).memory.shape
    is_filled = cell.window - np.arange(cell.window) <= count[:, None, None, None]
    memory = np.where(np.moveaxis(is_filled, 2, 3), np.random.default_rng(3).normal(size=shape), 0.0)
    return PyTreeDict(memory=memory.astype(np.float32), count=count)


def _assert_unrolling_is_stepping(cell: GTrXL, starts: np.ndarray, unroll: Callable = _unroll) -> None:
    """States and outputs of ``unroll`` equal the results of single steps, to 1e-4 of their size."""
    params, state = _params(cell), _state(cell)
    run = jax.jit(lambda *given: cell.apply(*given, method=unroll))
    states, outputs = jax.tree.map(np.asarray, run(params, X, state, starts))
    for t, start in enumerate(starts):
        state, output = _stepped(cell, params, X[t], state, start)
        np.testing.assert_allclose(outputs[t], output, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(states.memory[t], state.memory, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(states.count[t], state.count)


@settings(max_examples=8)
@given(flags=st.lists(st.booleans(), min_size=STEPS * ROWS, max_size=STEPS * ROWS))
def test_unrolling_is_stepping_wherever_episodes_start(flags: list[bool]) -> None:
    _assert_unrolling_is_stepping(CELL, np.reshape(flags, (STEPS, ROWS)))


def test_a_window_may_be_longer_than_the_sequence_or_one_step() -> None:
    for window in (1, STEPS + 5):
        _assert_unrolling_is_stepping(CELL.clone(window=window), SOME_STARTS)


def _without_reset(cell: Any, x: jax.Array, state: Any, starts: jax.Array) -> Any:
    return _unroll(cell, x, state, jnp.zeros_like(starts))


def _with_late_reset(cell: Any, x: jax.Array, state: Any, starts: jax.Array) -> Any:
    return _unroll(cell, x, state, jnp.concatenate([jnp.zeros_like(starts[:1]), starts[:-1]]))


def _without_first_state(cell: Any, x: jax.Array, state: Any, starts: jax.Array) -> Any:
    return _unroll(cell, x, jax.tree.map(jnp.zeros_like, state), starts)


def _with_old_memory(cell: Any, x: jax.Array, state: Any, starts: jax.Array) -> Any:
    """Zeros of the memory are visible, as if every episode were long."""
    return _unroll(cell, x, state.replace(count=jnp.full_like(state.count, 99)), starts)


@pytest.mark.parametrize("planted", [_without_reset, _with_late_reset, _without_first_state, _with_old_memory])
def test_planted_bugs_of_unrolling_are_found(planted: Callable) -> None:
    _assert_unrolling_is_stepping(CELL, SOME_STARTS)
    with pytest.raises(AssertionError):
        _assert_unrolling_is_stepping(CELL, SOME_STARTS, planted)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_each_step_is_placed_at_what_it_sees(num_steps: int) -> None:
    """Against a loop over steps."""
    x = RNG.normal(size=(2, num_steps, WINDOW + 1)).astype(np.float32)
    expected = np.zeros((2, num_steps, WINDOW + num_steps))
    for t in range(num_steps):
        expected[:, t, t : t + WINDOW + 1] = x[:, t]
    np.testing.assert_array_equal(gated_transformer._placed(jnp.asarray(x)), expected)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _gated(p: dict, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Section 3.2 of the paper, for one row."""
    w_r, w_z, w_g = np.split(p["of_outputs"]["kernel"], 3, axis=1)
    u_r, u_z = np.split(p["of_inputs"]["kernel"], 2, axis=1)
    r, z = _sigmoid(y @ w_r + x @ u_r), _sigmoid(y @ w_z + x @ u_z - p["bias"])
    return (1.0 - z) * x + z * np.tanh(y @ w_g + (r * x) @ p["of_kept"]["kernel"])


def _normalized(p: dict, x: np.ndarray) -> np.ndarray:
    scaled = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    return scaled * p["scale"] + p["bias"]


def _layer_by_hand(p: dict, x: np.ndarray, memory: np.ndarray, count: int, num_heads: int = 2) -> np.ndarray:
    """Outputs of a layer for one row, with a loop over heads and over the steps that it sees."""
    seen = _normalized(p["attention_norm"], np.concatenate([memory, x[None]]))
    keys, values = np.split(seen @ p["keys_values"]["kernel"], 2, axis=1)
    query, depth = seen[-1] @ p["queries"]["kernel"], SIZE // num_heads
    attended = np.zeros(SIZE)
    for head in range(num_heads):
        own = slice(head * depth, (head + 1) * depth)
        scores = {}
        for age in range(min(WINDOW, count) + 1):
            angles = age * 10_000.0 ** (-np.arange(3) / 3)
            distance = (np.concatenate([np.sin(angles), np.cos(angles)]) @ p["distances"]["kernel"])[own]
            by_content = (query[own] + p["content_bias"][head]) @ keys[WINDOW - age, own]
            scores[age] = (by_content + (query[own] + p["distance_bias"][head]) @ distance) / np.sqrt(depth)
        total = sum(np.exp(score) for score in scores.values())
        attended[own] = sum(np.exp(score) / total * values[WINDOW - age, own] for age, score in scores.items())
    y = np.maximum(attended @ p["attended"]["kernel"] + p["attended"]["bias"], 0.0)
    x = _gated(p["attention_gate"], x, y)
    hidden = _normalized(p["hidden_norm"], x) @ p["hidden"]["kernel"] + p["hidden"]["bias"]
    outputs = np.asarray(jax.nn.gelu(hidden)) @ p["outputs"]["kernel"] + p["outputs"]["bias"]
    return _gated(p["hidden_gate"], x, outputs)


def test_a_step_is_the_formula() -> None:
    params, state = _params(CELL), _state(CELL)
    p = params["params"]
    after, outputs = _stepped(CELL, params, X[0], state, np.zeros(ROWS, bool))
    for row in range(ROWS):
        x = X[0, row] @ p["embedding"]["kernel"] + p["embedding"]["bias"]
        for number in range(2):
            memory = state.memory[row, number]
            np.testing.assert_allclose(after.memory[row, number, -1], x, rtol=1e-4, atol=1e-5)  # inputs of the layer
            np.testing.assert_allclose(after.memory[row, number, :-1], memory[1:], rtol=1e-6)
            x = _layer_by_hand(p[f"layers_{number}"], x, memory, int(state.count[row]))
        np.testing.assert_allclose(outputs[row], x, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(after.count, state.count + 1)


def test_the_last_steps_are_seen_and_no_others() -> None:
    """Two layers of a window of 3 see 6 steps back; gradients tell which."""
    params, state = _params(CELL), _state(CELL)

    @jax.jit
    @jax.grad
    def last_output(x: jax.Array) -> jax.Array:
        outputs: Any = CELL.apply(params, x, state, np.zeros((STEPS, ROWS), bool), method=_unroll)[1]
        return outputs[-1].sum()

    is_seen = np.asarray(last_output(X)).any(axis=(1, 2))
    np.testing.assert_array_equal(np.flatnonzero(is_seen), np.arange(STEPS - 1 - 2 * WINDOW, STEPS))


def test_initially_a_layer_passes_its_inputs_on() -> None:
    """The gates are almost closed; without their bias, a third of the inputs is lost."""
    cell = GTrXL(64, num_heads=4)
    x = np.random.default_rng(4).normal(size=(ROWS, FEATURES)).astype(np.float32)
    state = cell.initial_state((ROWS,))
    params = jax.jit(lambda: cell.init(jax.random.key(0), x, state, method=_step))()["params"]

    def kept(params: Any) -> float:
        inputs = x @ params["embedding"]["kernel"]
        outputs = cell.apply({"params": params}, x, state, method=_step)[1]
        return float((inputs * outputs).sum() / np.square(inputs).sum())

    layer = params["layers_0"]
    gates = {name: {**layer[name], "bias": jnp.zeros(64)} for name in ("attention_gate", "hidden_gate")}
    assert 0.7 < kept(params) < 1.0
    assert kept({**params, "layers_0": {**layer, **gates}}) < 0.5


def test_states_start_as_zeros_and_are_the_inputs_of_the_window() -> None:
    state = GTrXL(8, num_layers=2, window=5).initial_state((2, 3))
    assert jax.tree.map(jnp.shape, state) == {"memory": (2, 3, 2, 5, 8), "count": (2, 3)}
    assert all(not leaf.any() for leaf in jax.tree.leaves(state))
    np.testing.assert_array_equal(
        gated_transformer._windows(jnp.arange(7.0)[:, None, None], 5)[:, 0, :, 0], [range(1, 6), range(2, 7)]
    )

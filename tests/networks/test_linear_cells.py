"""MinGRU and LRU against their formulas, unrolling against stepping, and planted bugs that these checks catch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evorl.networks import linear_cells
from evorl.networks.linear_cells import LRU, MinGRU, linear_scan
from evorl.ops.trees import zeros_where
from evorl.types import PyTreeDict

SIZE, FEATURES, ROWS, STEPS = 5, 4, 3, 12
KEY = jax.random.key(0)
CELLS = [MinGRU(SIZE), LRU(SIZE)]
X = np.random.default_rng(1).normal(size=(STEPS, ROWS, FEATURES)).astype(np.float32)
SOME_STARTS = np.random.default_rng(2).random((STEPS, ROWS)) < 0.25
by_class = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: type(cell).__name__)


@pytest.fixture(params=["in sequence", "parallel"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of the scan, that of a CPU and that of other devices."""
    monkeypatch.setattr(linear_cells, "on_cpu", lambda: request.param == "in sequence")
    return request.param


def _step(cell: Any, x: jax.Array, state: Any) -> tuple[Any, jax.Array]:
    return cell(state, cell.inputs(x))


@functools.partial(jax.jit, static_argnums=0)
def _stepped(cell: Any, params: Any, x: jax.Array, state: Any, start: jax.Array) -> tuple[Any, jax.Array]:
    return cell.apply(params, x, zeros_where(start, state), method=_step)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _unrolled(cell: Any, form: str, *args: Any) -> tuple[Any, jax.Array]:
    """Sequences; each form of the scan is compiled separately."""
    return cell.apply(*args, method=_unroll)


def _unroll(cell: Any, x: jax.Array, state: Any, starts: jax.Array) -> tuple[Any, jax.Array]:
    return cell.unroll(state, cell.inputs(x), starts)


def _fresh_params(cell: Any) -> Any:
    return jax.jit(lambda key: cell.init(key, jnp.zeros((1, FEATURES)), cell.initial_state((1,)), method=_step))(KEY)


_params: Callable[[Any], Any] = functools.cache(_fresh_params)


def _state(cell: Any, scale: float = 1.0) -> Any:
    """A state before the first step that is not zeros, and differs between units, rows and parts."""
    numbers = np.linspace(-1.0, 2.0, 2 * ROWS * SIZE, dtype=np.float32).reshape(2, ROWS, SIZE)
    return PyTreeDict({name: scale * numbers[i] for i, name in enumerate(cell.initial_state())})


def _assert_unrolling_is_stepping(cell: Any, form: str, starts: np.ndarray) -> None:
    """States and outputs of ``unroll`` equal the results of single steps, to 1e-5 and 1e-4 of their size."""
    params, state = _params(cell), _state(cell)
    states, outputs = jax.tree.map(np.asarray, _unrolled(cell, form, params, X, state, starts))
    for t, start in enumerate(starts):
        state, output = _stepped(cell, params, X[t], state, start)
        np.testing.assert_allclose(outputs[t], output, rtol=1e-4, atol=1e-5)
        for name, after in state.items():
            np.testing.assert_allclose(states[name][t], after, rtol=1e-4, atol=1e-5)


@by_class
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flags=st.lists(st.booleans(), min_size=STEPS * ROWS, max_size=STEPS * ROWS))
def test_unrolling_is_stepping_wherever_episodes_start(cell: Any, form: str, flags: list[bool]) -> None:
    _assert_unrolling_is_stepping(cell, form, np.reshape(flags, (STEPS, ROWS)))


class _NoReset(MinGRU):
    def unroll(self, state: Any, inputs: jax.Array, starts: jax.Array) -> Any:
        return super().unroll(state, inputs, jnp.zeros_like(starts))


class _NoResetOfRotated(LRU):
    def unroll(self, state: Any, inputs: jax.Array, starts: jax.Array) -> Any:
        return super().unroll(state, inputs, jnp.zeros_like(starts))


class _LateReset(MinGRU):
    def unroll(self, state: Any, inputs: jax.Array, starts: jax.Array) -> Any:
        return super().unroll(state, inputs, jnp.concatenate([jnp.zeros_like(starts[:1]), starts[:-1]]))


class _ForgottenFirstState(MinGRU):
    def unroll(self, state: Any, inputs: jax.Array, starts: jax.Array) -> Any:
        return super().unroll(jax.tree.map(jnp.zeros_like, state), inputs, starts)


class _FirstStateAsCandidate(MinGRU):
    """The paper's transformation of candidates, applied to the first state as well."""

    def unroll(self, state: Any, inputs: jax.Array, starts: jax.Array) -> Any:
        return super().unroll(
            jax.tree.map(lambda h: jnp.where(h >= 0, h + 0.5, jax.nn.sigmoid(h)), state), inputs, starts
        )


class _LogSpace(MinGRU):
    """The paper's parallel form with logarithms of cumulative products, of candidates of any sign."""

    def unroll(self, state: Any, inputs: jax.Array, starts: jax.Array) -> Any:
        update, candidates = jnp.split(inputs, 2, axis=-1)
        log_decays = jnp.cumsum(jnp.log(jnp.where(starts[..., None], 0.0, 1.0 - update)), axis=0)
        terms = update * candidates * jnp.exp(-log_decays)
        hidden = jnp.exp(log_decays) * (state.hidden + jnp.cumsum(terms, axis=0))
        return PyTreeDict(hidden=hidden), hidden


class _UnrotatedFirstState(LRU):
    """Its states are one angle behind: the inputs are rotated from zero."""

    def unroll(self, state: Any, inputs: jax.Array, starts: jax.Array) -> Any:
        phase = jnp.exp(self.theta)
        real, imaginary = linear_cells._rotated(state.real, state.imaginary, -phase)
        return super().unroll(PyTreeDict(real=real, imaginary=imaginary), inputs, starts)


class _SwappedParts(LRU):
    def unroll(self, state: Any, inputs: jax.Array, starts: jax.Array) -> Any:
        return super().unroll(PyTreeDict(real=state.imaginary, imaginary=state.real), inputs, starts)


@pytest.mark.parametrize(
    "planted",
    [
        _NoReset,
        _NoResetOfRotated,
        _LateReset,
        _ForgottenFirstState,
        _FirstStateAsCandidate,
        _LogSpace,
        _UnrotatedFirstState,
        _SwappedParts,
    ],
)
def test_planted_bugs_of_unrolling_are_found(planted: Any) -> None:
    plain = MinGRU if issubclass(planted, MinGRU) else LRU
    _assert_unrolling_is_stepping(plain(SIZE), "in sequence", SOME_STARTS)
    with pytest.raises(AssertionError):
        _assert_unrolling_is_stepping(planted(SIZE), "in sequence", SOME_STARTS)


def test_both_scans_are_the_recurrence(form: str) -> None:
    rng = np.random.default_rng(3)
    decays, inputs, first = rng.random((9, 2, 1)), rng.normal(size=(9, 2, 3)), rng.normal(size=(2, 3))
    decays[4, 1] = 0.0
    states = linear_scan(*(jnp.asarray(x, jnp.float32) for x in (decays, inputs, first)))
    expected = first
    for t in range(9):
        expected = decays[t] * expected + inputs[t]
        np.testing.assert_allclose(states[t], expected, rtol=1e-5, atol=1e-6)


def test_min_gru_is_its_formula() -> None:
    cell, state = MinGRU(SIZE), _state(MinGRU(SIZE))
    params = _params(cell)
    dense = jax.tree.map(np.asarray, params["params"]["input_gates"])
    x = X[0] @ dense["kernel"] + dense["bias"]
    update = 1.0 / (1.0 + np.exp(-x[:, :SIZE]))
    expected = (1.0 - update) * state.hidden + update * x[:, SIZE:]
    after, output = cell.apply(params, X[0], state, method=_step)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(after.hidden, output)


def test_lru_is_its_formula_with_complex_numbers() -> None:
    cell, state = LRU(SIZE), _state(LRU(SIZE))
    params = _params(cell)
    p = jax.tree.map(np.asarray, params["params"])
    eigenvalues = np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))
    x, c = X[0] @ p["input_product"]["kernel"], p["state_product"]["kernel"]
    h = eigenvalues * (state.real + 1j * state.imaginary)
    h += np.exp(p["gamma"]) * (x[:, :SIZE] + 1j * x[:, SIZE : 2 * SIZE])
    y = (h @ (c[:SIZE] - 1j * c[SIZE:])).real + x[:, 2 * SIZE :]
    gated = np.asarray(jax.nn.gelu(y))
    gated = gated * np.asarray(jax.nn.sigmoid(gated @ p["output_gate"]["kernel"] + p["output_gate"]["bias"]))
    after, output = cell.apply(params, X[0], state, method=_step)
    np.testing.assert_allclose(after.real + 1j * np.asarray(after.imaginary), h, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(output, gated, rtol=1e-4, atol=1e-5)


@by_class
def test_states_are_real_numbers_that_start_as_zeros(cell: Any) -> None:
    leaves = jax.tree.leaves(cell.initial_state((2, 3)))
    assert all(leaf.shape == (2, 3, SIZE) and leaf.dtype == np.float32 and not leaf.any() for leaf in leaves)
    params = jax.tree.leaves(_params(cell))
    assert {leaf.dtype for leaf in params} == {np.dtype(np.float32)}


@by_class
def test_long_sequences_have_finite_states_and_gradients(cell: Any, form: str) -> None:
    """Also with inputs so large that gates are exactly 0 or 1, where logarithms would be infinite."""
    num_steps = 3000 if form == "in sequence" else 300
    x = np.random.default_rng(4).normal(size=(num_steps, ROWS, FEATURES)).astype(np.float32)
    starts = np.random.default_rng(5).random((num_steps, ROWS)) < 1e-3

    @jax.jit
    @jax.value_and_grad
    def loss(params: Any, scale: float) -> jax.Array:
        _, outputs = cell.apply(params, scale * x, _state(cell), jnp.asarray(starts), method=_unroll)
        return jnp.square(outputs / scale).mean()

    for scale in (1.0, 1e3):
        value, gradients = loss(_params(cell), scale)
        assert np.isfinite(value)
        for leaf in map(np.asarray, jax.tree.leaves(gradients)):
            assert np.isfinite(leaf).all()
            assert leaf.any()


def test_an_lru_rotates_exactly_for_many_steps() -> None:
    """The first state, after 2,000 steps without inputs, against double precision."""
    cell, state = LRU(SIZE, horizon=10**6), _state(LRU(SIZE))
    inner = {**_params(LRU(SIZE))["params"], "nu": np.full(SIZE, -10.0, np.float32)}
    states, _ = _unrolled(cell, "in sequence", {"params": inner}, *_nothing(2000, state))
    eigenvalues = np.exp(-np.exp(-10.0) + 1j * np.exp(np.asarray(inner["theta"], np.float64)))
    expected = eigenvalues**2000 * (state.real + 1j * state.imaginary)
    np.testing.assert_allclose(states.real[-1] + 1j * np.asarray(states.imaginary[-1]), expected, atol=2e-3)


def _nothing(num_steps: int, state: Any) -> tuple[np.ndarray, Any, np.ndarray]:
    return np.zeros((num_steps, ROWS, FEATURES), np.float32), state, np.zeros((num_steps, ROWS), bool)


def _spread_of_units(change: Callable[[Any], Any] = lambda params: params) -> float:
    """Largest over smallest variance of an LRU's units, fed with white noise."""
    cell = LRU(32)
    x = jax.random.normal(KEY, (3000, 8, FEATURES))
    starts = jnp.zeros((3000, 8), bool)

    @jax.jit
    def variances(params: Any) -> jax.Array:
        states, _ = cell.apply(params, x, cell.initial_state((8,)), starts, method=_unroll)
        kernel = params["params"]["input_product"]["kernel"]
        scale = jnp.square(kernel[:, :32]).sum(0) + jnp.square(kernel[:, 32:64]).sum(0)
        return (jnp.square(states.real) + jnp.square(states.imaginary))[1000:].mean((0, 1)) / scale

    found = np.asarray(variances(change(_params(cell))))
    return float(found.max() / found.min())


def test_gamma_gives_units_of_all_moduli_the_same_variance() -> None:
    def without_gamma(params: Any) -> Any:
        inner = params["params"]
        return {"params": {**inner, "gamma": jnp.zeros_like(inner["gamma"])}}

    assert _spread_of_units() < 2.0
    assert _spread_of_units(without_gamma) > 10.0  # a planted bug


def test_an_lru_starts_with_a_memory_of_its_horizon_and_never_explodes() -> None:
    params = _params(LRU(512))["params"]
    moduli, phases = np.exp(-np.exp(np.asarray(params["nu"]))), np.exp(np.asarray(params["theta"]))
    assert 0.9 <= moduli.min() < 0.91
    assert 0.99 < moduli.max() <= 0.9991
    assert phases.min() > 0.0
    assert phases.max() <= np.pi / 10 + 1e-6
    assert np.mean(moduli**100 > 0.1) > 0.2  # a tenth is left after 100 steps
    assert np.all(np.exp(-np.exp(np.linspace(-80.0, 80.0, 100, dtype=np.float32))) <= 1.0)


def test_the_gates_of_a_min_gru_start_with_time_constants_up_to_the_horizon() -> None:
    bias = np.asarray(_params(MinGRU(9, horizon=50))["params"]["input_gates"]["bias"])
    np.testing.assert_allclose(np.exp(-bias[:9]), np.geomspace(1.0, 50.0, 9), rtol=1e-5)
    assert not bias[9:].any()


def test_units_of_a_min_gru_with_any_time_constant_have_the_same_variance() -> None:
    """With gates that do not depend on the input, fed with white noise; without the scales of the weights it fails."""
    cell = MinGRU(16, horizon=100)
    x = jax.random.normal(KEY, (3000, 8, FEATURES))
    inner = _params(cell)["params"]["input_gates"]
    update = jax.nn.sigmoid(inner["bias"][:16])
    candidates = inner["kernel"][:, 16:]
    unscaled = candidates * jnp.sqrt(update / (2.0 - update))

    @jax.jit
    def spread(candidates: jax.Array) -> jax.Array:
        params = {"input_gates": {**inner, "kernel": jnp.concatenate([jnp.zeros((FEATURES, 16)), candidates], axis=-1)}}
        starts = jnp.zeros((3000, 8), bool)
        states, _ = cell.apply({"params": params}, x, cell.initial_state((8,)), starts, method=_unroll)
        variances = jnp.square(states.hidden)[1000:].mean((0, 1)) / jnp.square(unscaled).sum(0)
        return variances.max() / variances.min()

    assert spread(candidates) < 2.0
    assert spread(unscaled) > 30.0


@by_class
def test_long_unrolling_in_single_precision_is_exact(cell: Any, form: str) -> None:
    """Against stepping in double precision with NumPy, for 1,000 steps with few starts."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(1000, ROWS, FEATURES)).astype(np.float32)
    starts = rng.random((1000, ROWS)) < 5e-3
    states, _ = _unrolled(cell, form, _params(cell), x, _state(cell), starts)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), _params(cell)["params"])
    if isinstance(cell, MinGRU):
        gates, candidates = np.split(x @ p["input_gates"]["kernel"] + p["input_gates"]["bias"], 2, axis=-1)
        update = 1.0 / (1.0 + np.exp(-gates))
        decays, inputs, h, found = 1.0 - update, update * candidates, _state(cell).hidden, states.hidden
    else:
        products = x @ p["input_product"]["kernel"][:, : 2 * SIZE]
        inputs = np.exp(p["gamma"]) * (products[..., :SIZE] + 1j * products[..., SIZE:])
        decays = np.broadcast_to(np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"])), inputs.shape)
        h, found = _state(cell).real + 1j * _state(cell).imaginary, states.real + 1j * np.asarray(states.imaginary)
    for t, start in enumerate(starts):
        h = decays[t] * np.where(start[:, None], 0.0, h) + inputs[t]
        np.testing.assert_allclose(found[t], h, rtol=1e-3, atol=1e-3)

"""Loops of accelerators have the results of CPUs."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.loops import SMALL, in_loop, precomputed, repeated, unpacked, when_due
from evorl.ops.platform import compiled_for
from evorl.types import PyTreeDict
from tests.support.small_workflows import assert_identical


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_an_update_that_is_not_due_changes_nothing(platform: str) -> None:
    with compiled_for(platform):
        _check_updates_that_are_due()


def _check_updates_that_are_due() -> None:
    def update(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return state[0] + 1.0, state[1] * 2

    state = (jnp.ones(3), jnp.int32(5))
    due, not_due = (jax.jit(when_due, static_argnums=1)(jnp.bool_(due), update, state) for due in (True, False))
    jax.tree.map(np.testing.assert_array_equal, due, update(state))
    jax.tree.map(np.testing.assert_array_equal, not_due, state)
    several = jax.vmap(lambda due: when_due(due, update, state))(jnp.array([True, False]))
    np.testing.assert_array_equal(several[1], [10, 5])


def _reset(key: jax.Array, state: jax.Array) -> jax.Array:
    """Return a state that depends only on the key: compilers move this out of an ordinary loop."""
    return jax.lax.fori_loop(0, 50, lambda _, x: jnp.sin(x) @ x, jax.random.normal(key, state.shape))


def _outer_loops(step: Callable[..., jax.Array], *inputs: jax.Array) -> int:
    """Return the number of loops in the compiled step that are not inside other loops."""
    _, _, entry = jax.jit(step).lower(*inputs).compile().as_text().partition("\nENTRY ")
    assert entry
    return entry.count(" while(")


def _several_seeds() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return, for two seeds, whether the update is due, the keys and the states."""
    return jnp.array([True, False]), jax.random.split(jax.random.key(0)), jnp.ones((2, 8, 8))


def test_an_update_that_is_not_due_computes_nothing() -> None:
    """Nothing that the update computes from closed-over values runs outside the loop, with one seed or several."""

    def in_barrier(due: jax.Array, key: jax.Array, state: jax.Array) -> jax.Array:
        return when_due(due, lambda state: _reset(key, state), state)

    due, keys, states = _several_seeds()
    assert _outer_loops(in_barrier, due[0], keys[0], states[0]) == 1
    assert _outer_loops(jax.vmap(in_barrier), due, keys, states) == 1


def test_the_compiler_still_moves_constants_out_of_loops() -> None:
    """If this fails, ``when_due`` is correct but needs no barrier."""

    def in_ordinary_loop(due: jax.Array, key: jax.Array, state: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, due.astype(jnp.int32), lambda _, state: _reset(key, state), state)

    due, keys, states = _several_seeds()
    assert _outer_loops(in_ordinary_loop, due[0], keys[0], states[0]) > 1, "the compiler no longer moves it: simplify"


@pytest.mark.parametrize(
    ("between", "numbers"), [((3, 4), (0, 3, 4)), ((0, 1), (0, 1)), (None, (0, 2, 7)), ((3, 3), (0, 3))]
)
def test_the_number_of_turns_is_as_told(between: tuple[int, int] | None, numbers: tuple[int, ...]) -> None:
    def update(i: jax.Array, carry: PyTreeDict) -> PyTreeDict:
        return PyTreeDict(total=carry.total * 1.5 + i, turns=carry.turns + 1)

    def run(num_updates: jax.Array) -> PyTreeDict:
        return repeated(update, PyTreeDict(total=jnp.ones(2), turns=jnp.int32(0)), num_updates, between)

    many = jnp.array(numbers)
    expected = [jax.jit(run)(n) for n in many]
    assert [int(x.turns) for x in expected] == list(numbers)
    with compiled_for("gpu"):
        assert_identical([jax.jit(run)(n) for n in many], expected)
        assert_identical([repeated(update, expected[0], 2, between).turns], [expected[0].turns + 2])
        together = jax.vmap(run)(many)
    assert_identical(together, jax.tree.map(lambda *x: jnp.stack(x), *expected))


def test_a_loop_carries_small_leaves_together() -> None:
    tree = PyTreeDict(w=jnp.ones((2, 3)), done=jnp.array([True, False]), n=jnp.int32(-1), large=jnp.arange(SMALL + 1.0))
    assert in_loop(tree) is tree  # on a CPU
    assert unpacked(tree) is tree
    with compiled_for("gpu"):
        carried = in_loop(tree)
        assert [x.size for x in jax.tree.leaves(carried) if x.size > SMALL] == [SMALL + 1]
        assert len(jax.tree.leaves(carried)) == 2
        assert_identical(unpacked(carried), tree)
        _, stacked = jax.lax.scan(lambda x, _: (x, in_loop(PyTreeDict(x=x, y=x > 0))), jnp.float32(2), length=4)
        assert_identical(unpacked(stacked), PyTreeDict(x=jnp.full(4, 2.0), y=jnp.ones(4, bool)))


def test_inputs_of_turns_may_be_computed_before() -> None:
    def inputs(i: jax.Array) -> PyTreeDict:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), i), 4)
        return PyTreeDict(row_keys=keys, numbers=jnp.arange(8.0).reshape(4, 2) + i, even=jnp.arange(4) % 2 == i % 2)

    assert precomputed(inputs, 3) is inputs  # on a CPU
    expected = [inputs(jnp.int32(i)) for i in range(3)]
    with compiled_for("gpu"):
        of_turn = precomputed(inputs, 3)
        assert_identical([of_turn(jnp.int32(i)) for i in range(3)], expected)

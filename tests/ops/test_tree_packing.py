"""A packed tree is one array per dtype, and unpacks to the original."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.platform import compiled_for
from evorl.ops.trees import means, pack
from evorl.types import PyTreeDict


def _tree(*leading: int) -> PyTreeDict:
    """Return leaves of several dtypes and ranks with common leading axes; all numbers of a dtype differ."""
    size = int(np.prod(leading))

    def numbers(start: int, *shape: int) -> np.ndarray:
        return np.arange(start, start + size * int(np.prod(shape))).reshape(*leading, *shape)

    return PyTreeDict(
        obs=PyTreeDict(
            image=jnp.asarray(numbers(0, 2, 3) % 256, jnp.uint8), state=jnp.asarray(numbers(0, 4), "float32")
        ),
        reward=jnp.asarray(numbers(1000), jnp.float32),
        matrix=jnp.asarray(numbers(2000, 2, 2), jnp.float32),
        done=jnp.asarray(numbers(0) % 2, jnp.bool_),
        steps=jnp.asarray(numbers(0), jnp.int32),
        nothing=jnp.zeros((*leading, 0), jnp.float32),
        key=jax.random.split(jax.random.key(0), leading),
        absent=None,
    )


def _assert_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        if jnp.issubdtype(e.dtype, jax.dtypes.prng_key):
            a, e = jax.random.key_data(a), jax.random.key_data(e)
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("leading", [(5,), (3, 2), (2, 1, 3)])
def test_what_is_packed_comes_back(leading: tuple[int, ...]) -> None:
    tree = _tree(*leading)
    packed = pack(tree, num_axes=len(leading))
    assert {name: array.shape for name, array in packed.arrays.items()} == {
        "uint8": (*leading, 6),
        "float32": (*leading, 4 + 1 + 4),
        "bool": (*leading, 1),
        "int32": (*leading, 1),
        "uint32": (*leading, 2),  # the data of the key
    }
    assert all(str(array.dtype) == name for name, array in packed.arrays.items())
    _assert_equal(packed.unpack(), tree)


def test_a_tree_without_leading_axes_is_packed_to_vectors() -> None:
    tree = {"scalar": jnp.float32(1.5), "vector": jnp.arange(3.0), "key": jax.random.key(1), "flag": jnp.bool_(True)}
    packed = pack(tree, num_axes=0)
    np.testing.assert_array_equal(packed.arrays["float32"], [1.5, 0.0, 1.0, 2.0])
    _assert_equal(packed.unpack(), tree)


def test_rows_may_be_chosen_or_stacked_before_they_are_unpacked() -> None:
    tree = _tree(5)
    packed = pack(tree)
    rows = jnp.array([[4, 0], [2, 2], [1, 3]])
    _assert_equal(jax.tree.map(lambda x: x[rows], packed).unpack(), jax.tree.map(lambda x: x[rows], tree))
    _assert_equal(jax.tree.map(lambda x: x[3], packed).unpack(), jax.tree.map(lambda x: x[3], tree))


def test_it_works_inside_a_trace_and_carries_the_generator_of_keys() -> None:
    tree = {"x": jnp.arange(6.0).reshape(2, 3), "key": jax.random.split(jax.random.key(0, impl="rbg"), 2)}

    @jax.jit
    def shifted(tree: Any) -> Any:
        packed = pack(tree)
        arrays = packed.arrays | {"float32": packed.arrays["float32"] + 1.0}
        return packed.replace(arrays=arrays).unpack()

    _assert_equal(shifted(tree), {**tree, "x": tree["x"] + 1.0})


def test_one_dtype_makes_one_array_and_nothing_makes_none() -> None:
    assert pack({"a": jnp.ones((2, 3)), "b": jnp.ones((2,))}).arrays.keys() == {"float32"}
    packed = pack({"a": None})
    assert packed.arrays == {}
    assert packed.unpack() == {"a": None}


def test_accelerators_pack_into_one_array() -> None:
    """Bools and all numbers of 32 bits become words without a change."""
    tree = _tree(3, 2)
    tree.reward = tree.reward.at[0, 0].set(jnp.nan).at[1, 1].set(-0.0)
    with compiled_for("gpu"):
        packed = pack(tree, 2)
        assert set(packed.arrays) == {"int32", "uint8"}
        _assert_equal(packed.unpack(), tree)
        _assert_equal(jax.jit(lambda tree: pack(tree, 2).unpack())(tree), tree)


def test_means_over_updates() -> None:
    losses = PyTreeDict(a=jnp.arange(4.0), b=-jnp.arange(4.0))
    expected = PyTreeDict(a=jnp.float32(1.5), b=jnp.float32(-1.5))
    _assert_equal(means(losses), expected)
    with compiled_for("gpu"):
        _assert_equal(means(losses), expected)

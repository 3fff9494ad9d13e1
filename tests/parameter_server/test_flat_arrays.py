"""Trees of arrays as bytes and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.parameter_server.flat_arrays import FlatArrays
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical

TREE = {"b": jnp.arange(6.0).reshape(2, 3), "a": jnp.asarray(-1, jnp.int32), "c": jnp.asarray([True, False])}


def test_there_and_back() -> None:
    layout = FlatArrays(TREE)
    data = layout.to_bytes(TREE)
    assert len(data) == layout.num_bytes == 4 + 24 + 2
    assert_identical(layout.from_bytes(data), TREE)
    assert data[:4] == (-1).to_bytes(4, "little", signed=True), "leaves stand in the order of the tree"
    assert data[4:8] == np.float32(0).tobytes()


def test_shapes_are_enough() -> None:
    shapes = jax.eval_shape(lambda: TREE)
    assert FlatArrays(shapes).digest == FlatArrays(TREE).digest


@pytest.mark.parametrize(
    "other", [{**TREE, "a": jnp.asarray(0.0)}, {**TREE, "b": jnp.zeros((3, 2))}, {"b": TREE["b"], "a": TREE["a"]}]
)
def test_the_digest_tells_structures_apart(other: dict) -> None:
    assert FlatArrays(other).digest != FlatArrays(TREE).digest


@pytest.mark.parametrize("num_bytes", [0, 29, 31])
def test_bytes_that_do_not_fit(num_bytes: int) -> None:
    with raises_naming(ValueError, "30 bytes", f"got {num_bytes}."):
        FlatArrays(TREE).from_bytes(bytes(num_bytes))


def test_keys_stay_at_home() -> None:
    with raises_naming(TypeError, "['key']", "key<fry>"):
        FlatArrays({"key": jax.random.key(0)})

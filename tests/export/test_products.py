"""Convolutions and products over arbitrary axes, as matrix products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from evorl.export.artifacts import policy_graph
from evorl.export.graph import NoRule
from tests.support.errors import raises_naming
from tests.support.portable import numpy_step, portable_function

KERNEL = np.random.default_rng(0).standard_normal((3, 3, 2, 4)).astype(np.float32)


@pytest.mark.parametrize("order", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OIHW", "NCHW")])
def test_convolutions_of_any_order(order: tuple[str, str, str]) -> None:
    kernel = KERNEL if order[1] == "HWIO" else KERNEL.transpose(3, 2, 0, 1)
    shape = (6, 5, 2) if order[0] == "NHWC" else (2, 6, 5)

    def fn(x: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x[None], kernel, (1, 2), ((1, 0), (0, 2)), dimension_numbers=order)[0]

    rows = np.random.default_rng(1).standard_normal((4, *shape)).astype(np.float32)
    actual = numpy_step(portable_function(fn, shape))({"obs": rows})["action"]
    np.testing.assert_allclose(actual, jax.vmap(fn)(rows), atol=1e-5)


def test_dilated_convolutions_have_no_rule() -> None:
    def fn(x: jax.Array) -> jax.Array:
        order = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x[None], KERNEL, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=order)[
            0
        ]

    with raises_naming(NoRule, "dilated", "grouped convolution"):
        policy_graph(portable_function(fn, (6, 5, 2)))


def test_a_product_of_rows_with_themselves() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.einsum("ij,kj->ik", x, x)

    rows = np.random.default_rng(1).standard_normal((4, 3, 5)).astype(np.float32)
    actual = numpy_step(portable_function(fn, (3, 5)))({"obs": rows})["action"]
    np.testing.assert_allclose(actual, jax.vmap(fn)(rows), atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_the_padding_of_a_maximum_never_is_the_maximum(dtype: type, padding: str) -> None:
    def fn(x: jax.Array) -> jax.Array:
        lowest = -np.inf if dtype is np.float32 else np.iinfo(dtype).min
        return lax.reduce_window(x.astype(dtype), np.asarray(lowest, dtype), lax.max, (3, 3), (2, 2), padding)

    rows = np.random.default_rng(1).integers(-99, -1, (4, 5, 4)).astype(np.float32)
    actual = numpy_step(portable_function(fn, (5, 4)))({"obs": rows})["action"]
    np.testing.assert_array_equal(actual, jax.vmap(fn)(rows))

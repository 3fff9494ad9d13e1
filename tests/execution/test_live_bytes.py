"""Live memory of a traced program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from evorl.execution.live_bytes import aval_bytes, num_equations, temporary_bytes
from evorl.ops.platform import compiled_for

ROWS = jnp.zeros((100, 250))  # 100 kB
SQUARE = jnp.zeros((250, 250))  # 250 kB
KB = 1000


def product(x: jax.Array) -> jax.Array:
    return x @ SQUARE


def products(x: jax.Array) -> jax.Array:
    first = product(x)
    second = product(first)  # the last use of the first
    return product(second) + first.sum()


def stacked(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, _: (carry, product(carry)), x, length=10)[1]


def carried(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 10, lambda _, carry: product(carry), x)


def written(x: jax.Array) -> jax.Array:
    return x.at[3].set(1.0)


def chosen(x: jax.Array) -> jax.Array:
    return jax.lax.cond(x[0, 0] > 0, lambda x: jnp.concatenate([x, x])[:100], lambda x: x, x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: (jnp.exp(x) * 2 + 1).sum(), 0),  # one fused loop over the argument
        (lambda x: jnp.exp(x) * 2 + 1, 100 * KB),  # the result is stored
        (product, 100 * KB),
        (products, 300 * KB),
        (stacked, (1000 + 100) * KB),
        (carried, 100 * KB),
        (written, 0),
        (jax.jit(written), 0),  # also within a called program
        (chosen, 200 * KB),
        (jax.jit(product), 100 * KB),
    ],
)
def test_what_is_alive_together(function: Any, expected: int) -> None:
    traced = jax.make_jaxpr(function)(ROWS)
    assert temporary_bytes(traced) == pytest.approx(expected, abs=2 * KB)


def test_equations_of_a_program_that_is_called_twice_count_once() -> None:
    inner = jax.jit(lambda x: jnp.sin(jnp.cos(x)))
    once = num_equations(jax.make_jaxpr(lambda x: inner(x))(1.0))
    twice = num_equations(jax.make_jaxpr(lambda x: inner(inner(x)))(1.0))
    assert once == 3
    assert twice == once + 1


def test_keys_have_eight_bytes() -> None:
    assert aval_bytes(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))) == 24
    assert aval_bytes(None) == 0


def test_a_cpu_computes_bfloat16_in_float32() -> None:
    numbers = jax.ShapeDtypeStruct((3, 2), jnp.bfloat16)
    assert aval_bytes(numbers) == 24
    with compiled_for("gpu"):
        assert aval_bytes(numbers) == 12

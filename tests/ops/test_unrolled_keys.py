"""The unrolled generator is bit-identical to JAX's default one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.random import UNROLLED_THREEFRY, _threefry_2x32, unrolled
from tests.support.errors import raises_naming

KEY = jax.random.key(7)
LOGITS = jnp.array([[0.1, 1.0, -2.0], [3.0, 0.0, 0.5]])


def _words(tree: Any) -> Any:
    """Return keys as their data, independent of their generator."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def _draws(key: jax.Array) -> dict[str, Any]:
    """Use every random function of the package."""
    first, second = jax.random.split(key)
    return _words(
        {
            "uniform": jax.random.uniform(key, (3, 5)),
            "one uniform": jax.random.uniform(key),
            "normal": jax.random.normal(key, (7,)),
            "split": (first, second),
            "split to a shape": jax.random.split(key, (2, 3)),
            "fold_in": jax.random.fold_in(key, 123_456_789),
            "chain": jax.random.normal(jax.random.fold_in(second, 3)),
            "categorical": jax.random.categorical(key, LOGITS),
            "randint": jax.random.randint(key, (6,), -3, 1000),
            "bits": {str(d): jax.random.bits(key, (2, 9), jnp.dtype(d)) for d in ("uint8", "uint16", "uint32")},
            "nothing": jax.random.uniform(key, (0, 2)),
        }
    )


_DRAWS = jax.jit(_draws)
_ROWS_OF_DRAWS = jax.jit(jax.vmap(_draws))


def _assert_equal(actual: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_every_draw_is_that_of_the_default_generator(seed: int) -> None:
    key = jax.random.key(seed)
    _assert_equal(_DRAWS(unrolled(key)), _DRAWS(key))


def test_a_key_for_each_row_gives_each_row_its_draws() -> None:
    keys = jax.random.split(KEY, 4)
    rows = _ROWS_OF_DRAWS(unrolled(keys))
    _assert_equal(rows, _ROWS_OF_DRAWS(keys))
    _assert_equal(jax.tree.map(lambda x: x[2], rows), _DRAWS(keys[2]))


def test_a_loop_may_carry_the_key() -> None:
    def step(key: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
        key, draw_key = jax.random.split(key)
        return key, jax.random.normal(draw_key, (2,))

    walk = jax.jit(lambda key: jax.lax.scan(step, key, length=5))
    (last, drawn), (expected_last, expected) = walk(unrolled(KEY)), walk(KEY)
    _assert_equal(drawn, expected)
    _assert_equal(_words(last), _words(expected_last))


def test_fold_in_takes_traced_numbers() -> None:
    numbers = jnp.array([0, 1, 2**31 - 1], jnp.int32)
    fold = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))
    _assert_equal(_words(fold(unrolled(KEY), numbers)), _words(fold(KEY, numbers)))


def test_a_seed_makes_the_same_key() -> None:
    _assert_equal(_words(jax.random.key(42, impl=UNROLLED_THREEFRY)), _words(jax.random.key(42)))


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_cipher_passes_the_known_answer_test(key: tuple, counter: tuple, expected: tuple) -> None:
    """The cipher reproduces the published test vectors for 20 rounds."""
    assert tuple(map(int, _threefry_2x32(jnp.array(key, jnp.uint32), *jnp.array(counter, jnp.uint32)))) == expected


def test_keys_of_other_generators_pass_as_they_are() -> None:
    other = jax.random.key(0, impl="rbg")
    assert unrolled(other) is other
    again = unrolled(unrolled(KEY))
    _assert_equal(_words(again), _words(KEY))


def test_a_draw_too_large_for_its_counter_is_refused() -> None:
    with raises_naming(ValueError, "2^32", "got shape (65536, 65536)"):
        jax.jit(lambda key: jax.random.bits(key, (1 << 16, 1 << 16))).lower(unrolled(KEY))

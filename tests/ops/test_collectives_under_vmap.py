"""Collectives over axes mapped by ``vmap``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.collectives import any_under_vmap, joined_under_vmap, joining_vmap


def test_rows_of_all_are_one_batch() -> None:
    seen = []

    def centered(x: jax.Array, y: jax.Array) -> jax.Array:
        seen.append(x.shape)
        return x - x.mean(axis=0) + y

    x, y = jnp.arange(24.0).reshape(2, 3, 4), jnp.ones((3, 4))
    joined = jax.vmap(joined_under_vmap(centered), (0, None))(x, y)
    assert seen[-1] == (6, 4)
    np.testing.assert_allclose(joined, x - x.reshape(6, 4).mean(axis=0) + 1.0)


def test_rows_may_have_no_elements() -> None:
    """Mapped rows may be empty, as for physics states without contacts."""
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.zeros((2, 3, 0, 2))
    doubled, empty = jax.vmap(joined_under_vmap(lambda x, y: (2.0 * x, y)))(x, y)
    np.testing.assert_array_equal(doubled, 2.0 * x)
    assert empty.shape == y.shape


def test_a_loop_goes_on_while_it_does_for_any() -> None:
    def count(limit: jax.Array) -> tuple[jax.Array, jax.Array]:
        def running(carry: tuple) -> jax.Array:
            return any_under_vmap(carry[0] < limit)

        return jax.lax.while_loop(running, lambda c: (c[0] + 1, c[1] + 1), (0, jnp.zeros((), jnp.int32)))

    np.testing.assert_array_equal(jax.vmap(count)(jnp.array([2, 5, 3]))[0], [5, 5, 5])
    assert count(jnp.asarray([2]))[0] == 2
    nested = jax.vmap(jax.vmap(count))(jnp.array([[1, 4], [2, 0]]))
    np.testing.assert_array_equal(nested[1], np.full((2, 2), 4))


def test_rows_of_all_seeds_are_one_batch() -> None:
    sizes = []
    probe = jax.custom_batching.custom_vmap(lambda x: 2.0 * x)

    @probe.def_vmap
    def record(size: int, is_batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        sizes.append(size)
        return 2.0 * x, is_batched[0]

    x = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(joining_vmap(probe)(x[0]), 2.0 * x[0])
    np.testing.assert_array_equal(jax.vmap(joining_vmap(probe))(x), 2.0 * x)
    assert set(sizes) == {2, 6}


def test_rows_of_all_seeds_have_gradients() -> None:
    x = jnp.arange(6.0).reshape(3, 2)
    numbers, keys = jnp.arange(6).reshape(3, 2), jax.random.split(jax.random.key(0), (3, 2))

    def total(x: jax.Array, number: jax.Array, key: jax.Array) -> jax.Array:
        def row(x: jax.Array, number: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            return x * jnp.sin(x) * number, key

        return joining_vmap(row)(x, number, key)[0].sum()

    expected = (jnp.sin(x) + x * jnp.cos(x)) * numbers
    np.testing.assert_allclose(jax.vmap(jax.grad(total))(x, numbers, keys), expected, rtol=1e-6)

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.random import as_typed_key, draw, keys_of_seeds, per_leaf, per_row, row_keys, seed_or_key
from tests.support.errors import raises_naming


def _same(a: jax.Array, b: jax.Array) -> bool:
    return bool((jax.random.key_data(a) == jax.random.key_data(b)).all())


def test_legacy_keys_become_typed_and_typed_ones_pass() -> None:
    key = jax.random.key(7)
    assert _same(as_typed_key(key), key)
    assert _same(as_typed_key(jax.random.PRNGKey(7)), key)
    assert _same(as_typed_key(np.asarray(jax.random.PRNGKey(7))), key)
    batch = as_typed_key(jax.random.split(jax.random.PRNGKey(7), 3))
    assert batch.shape == (3,)
    assert _same(batch, jax.random.split(key, 3))
    assert _same(jax.jit(as_typed_key)(jax.random.PRNGKey(7)), key)


@pytest.mark.parametrize("wrong", [7, None, jnp.zeros(2)])
def test_other_things_are_refused(wrong) -> None:
    with raises_naming(TypeError, "random key", "jax.random.key"):
        as_typed_key(wrong)


def test_a_draw_per_row_equals_the_row_drawn_alone() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    rows = draw(jax.random.normal, keys, (4, 3))
    np.testing.assert_array_equal(rows[2], jax.random.normal(keys[2], (3,)))
    grid = draw(jax.random.normal, keys.reshape(2, 2), (2, 2, 3))
    np.testing.assert_array_equal(grid.reshape(4, 3), rows)
    np.testing.assert_array_equal(draw(jax.random.normal, keys[0], (4, 3)), jax.random.normal(keys[0], (4, 3)))


def test_keys_that_do_not_match_the_leading_axes_are_refused() -> None:
    with raises_naming(ValueError, "keys (4,)", "leading axes", "(3, 2)"):
        draw(jax.random.normal, jax.random.split(jax.random.key(0), 4), (3, 2))


def test_per_row_maps_arguments_with_keys() -> None:
    def shifted(key: jax.Array, tree: dict) -> jax.Array:
        return tree["loc"] + jax.random.uniform(key)

    keys, loc = jax.random.split(jax.random.key(0), 2), jnp.array([0.0, 10.0])
    rows = per_row(shifted, keys, {"loc": loc})
    np.testing.assert_allclose(rows[1], shifted(keys[1], {"loc": 10.0}), rtol=1e-6)
    assert per_row(shifted, jax.random.PRNGKey(0), {"loc": loc}).shape == (2,)


def test_rows_get_a_key_each() -> None:
    key = jax.random.key(3)
    keys = row_keys(key, 4)
    assert keys.shape == (4,)
    assert len(np.unique(jax.random.key_data(keys), axis=0)) == 4
    assert _same(row_keys(keys, 4), keys)
    assert _same(row_keys(jax.random.PRNGKey(3), 4), keys)
    with raises_naming(ValueError, "shape (4,)", "3 rows"):
        row_keys(keys, 3)


def test_leaves_get_a_key_each() -> None:
    """Leaves of equal shape get different random numbers; with row keys, a row does not depend on the others."""
    tree, offsets = {"a": jnp.zeros((3, 5)), "b": (jnp.zeros((3, 5)), jnp.zeros(3))}, {"a": 0.0, "b": (1.0, 2.0)}
    offsets = jax.tree.map(lambda x, offset: x + offset, tree, offsets)

    def sample(key: jax.Array, x: jax.Array, offset: jax.Array) -> jax.Array:
        return x + offset + jax.random.uniform(key, x.shape)

    drawn = per_leaf(sample, jax.random.key(0), tree, offsets)
    assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(jnp.shape, tree)
    assert np.abs(drawn["a"] + 1.0 - drawn["b"][0]).min() > 0.0
    keys = row_keys(jax.random.key(1), 3)
    rows = per_leaf(sample, keys, tree, offsets)
    alone = per_leaf(sample, keys[1], *jax.tree.map(lambda x: x[1], (tree, offsets)))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b), rows, alone)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_of_seeds_are_those_of_single_runs(impl: str) -> None:
    keys = keys_of_seeds(jax.random.key(5, impl=impl), jnp.array([0, 1, 4]))
    assert _same(keys, jnp.stack([jax.random.key(seed, impl=impl) for seed in (5, 6, 9)]))


@pytest.mark.parametrize("seed", [3, np.int64(3), np.uint8(3), np.array(3), jnp.int32(3)], ids=repr)
def test_an_integer_is_a_seed(seed: Any) -> None:
    assert _same(seed_or_key(seed), jax.random.key(3))


@pytest.mark.parametrize("key", [jax.random.key(3), jax.random.key_data(jax.random.key(3))], ids=["typed", "raw"])
def test_a_key_is_not_treated_as_a_seed(key: Any) -> None:
    assert _same(seed_or_key(key), jax.random.key(3))


@pytest.mark.parametrize("wrong", [True, np.bool_(True), jnp.array(True), 3.0, "3", None, np.arange(2)], ids=repr)
def test_other_things_are_no_seeds(wrong: Any) -> None:
    with raises_naming(TypeError, "random key", "jax.random.key"):
        seed_or_key(wrong)

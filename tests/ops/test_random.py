from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.random import as_typed_key, draw, per_row


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
    with pytest.raises(TypeError, match=r"expected a random key.*jax\.random\.key"):
        as_typed_key(wrong)


def test_a_draw_per_row_equals_the_row_drawn_alone() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    rows = draw(jax.random.normal, keys, (4, 3))
    np.testing.assert_array_equal(rows[2], jax.random.normal(keys[2], (3,)))
    grid = draw(jax.random.normal, keys.reshape(2, 2), (2, 2, 3))
    np.testing.assert_array_equal(grid.reshape(4, 3), rows)
    np.testing.assert_array_equal(draw(jax.random.normal, keys[0], (4, 3)), jax.random.normal(keys[0], (4, 3)))


def test_keys_that_do_not_match_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="one key, or one per row"):
        draw(jax.random.normal, jax.random.split(jax.random.key(0), 4), (3, 2))


def test_per_row_maps_arguments_with_keys() -> None:
    def shifted(key: jax.Array, tree: dict) -> jax.Array:
        return tree["loc"] + jax.random.uniform(key)

    keys, loc = jax.random.split(jax.random.key(0), 2), jnp.array([0.0, 10.0])
    rows = per_row(shifted, keys, {"loc": loc})
    np.testing.assert_allclose(rows[1], shifted(keys[1], {"loc": 10.0}), rtol=1e-6)
    assert per_row(shifted, jax.random.PRNGKey(0), {"loc": loc}).shape == (2,)

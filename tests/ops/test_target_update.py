from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.trees import hard_update, polyak_update

TARGET, ONLINE = {"w": jnp.zeros(2), "b": jnp.array(1.0)}, {"w": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}


def test_polyak_update_moves_by_tau() -> None:
    result = jax.jit(polyak_update)(TARGET, ONLINE, 0.25)
    np.testing.assert_allclose(result["w"], [0.25, 0.5])
    np.testing.assert_allclose(result["b"], 1.5)
    jax.tree.map(np.testing.assert_array_equal, polyak_update(TARGET, ONLINE, 1.0), ONLINE)
    jax.tree.map(np.testing.assert_array_equal, polyak_update(TARGET, ONLINE, 0.0), TARGET)


def test_equal_parameters_stay_bitwise_equal() -> None:
    params = {"w": jax.random.normal(jax.random.key(0), (50,))}
    np.testing.assert_array_equal(polyak_update(params, params, 0.005)["w"], params["w"])


def test_the_whole_way_is_a_copy() -> None:
    """With step size 1 the target equals the online parameters exactly, in spite of rounding."""
    keys = jax.random.split(jax.random.key(0), 4)
    target, online = (
        jax.random.normal(a, (500,)) * 10.0 ** jax.random.uniform(b, (500,), minval=-6) for a, b in (keys[:2], keys[2:])
    )
    np.testing.assert_array_equal(jax.jit(polyak_update)(target, online, 1.0), online)
    assert (target + (online - target) != online).any()


def test_hard_update_copies_when_due() -> None:
    update = jax.jit(hard_update)
    jax.tree.map(np.testing.assert_array_equal, update(TARGET, ONLINE, True), ONLINE)
    jax.tree.map(np.testing.assert_array_equal, update(TARGET, ONLINE, False), TARGET)
    jax.tree.map(np.testing.assert_array_equal, hard_update(TARGET, ONLINE), ONLINE)

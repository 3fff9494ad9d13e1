from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.networks.convolutions import convolution

KEY = jax.random.key(0)


@pytest.mark.parametrize("border", ["same", "valid"])
@pytest.mark.parametrize(("size", "stride", "height"), [(3, 1, 10), (3, 2, 10), (4, 2, 9), (8, 4, 12)])
def test_windows_of_any_size_have_values_and_gradients_of_a_convolution(size, stride, height, border):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, height, height + 1, 3)), jnp.float32)
    module = convolution(6, size, stride, border, orthogonal=True, scale=1.0)
    params = jax.jit(module.init)(KEY, x)["params"]
    numbers = ("NHWC", "HWIO", "NHWC")

    def plain(params: dict, x: jax.Array) -> jax.Array:
        y = jax.lax.conv_general_dilated(x, params["kernel"], (stride, stride), border.upper(), None, None, numbers)
        return y + params["bias"]

    def with_derivatives(apply) -> tuple:  # first-order, and second-order: forward over reverse
        gradient = jax.grad(lambda params, x: jnp.sin(apply(params, x)).sum(), (0, 1))
        return apply(params, x), gradient(params, x), jax.jvp(gradient, (params, x), (params, x))[1]

    ours = jax.jit(lambda: with_derivatives(lambda params, x: module.apply({"params": params}, x)))()
    theirs = jax.jit(lambda: with_derivatives(plain))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, theirs)


def test_members_of_an_ensemble_have_their_own_windows():
    x = jax.random.normal(KEY, (3, 2, 10, 10, 4))
    module = convolution(5, 3, 1, "valid", orthogonal=False, scale=1.0)
    params = jax.jit(jax.vmap(module.init))(jax.random.split(KEY, 3), x)
    together, apply = jax.jit(jax.vmap(module.apply))(params, x), jax.jit(module.apply)
    params, x, together = jax.tree.map(np.asarray, (params, x, together))
    for i in range(3):
        alone = apply(jax.tree.map(lambda leaf, i=i: leaf[i], params), x[i])
        np.testing.assert_allclose(together[i], alone, rtol=1e-5, atol=1e-5)


def test_kernels_are_orthogonal_with_their_gain():
    module = convolution(8, 3, 1, "same", orthogonal=True, scale=2.0)
    params = jax.jit(module.init)(KEY, np.zeros((1, 5, 5, 2), np.float32))["params"]
    params = jax.tree.map(np.asarray, params)
    kernel = params["kernel"].reshape(-1, 8)
    np.testing.assert_allclose(kernel.T @ kernel, 4.0 * np.eye(8), atol=1e-4)
    assert not params["bias"].any()

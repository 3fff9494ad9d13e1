from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.networks.cnn import CNN

MODULE = CNN(channels=(2, 3), kernel_sizes=(3, 3), strides=(2, 1), hidden_sizes=(5,))


@pytest.fixture(scope="module")
def params() -> dict:
    return jax.jit(MODULE.init)(jax.random.key(0), jnp.zeros((1, 6, 6, 4)))


def test_leading_axes_are_free(params: dict) -> None:
    images = jax.random.normal(jax.random.key(1), (2, 3, 6, 6, 4))
    result = MODULE.apply(params, images)
    assert result.shape == (2, 3, 5)
    np.testing.assert_allclose(MODULE.apply(params, images[1, 2]), result[1, 2], rtol=1e-4, atol=1e-5)


def test_layers_have_their_shapes(params: dict) -> None:
    shapes = jax.tree.map(jnp.shape, params["params"])
    assert shapes["Conv_0"]["kernel"] == (3, 3, 4, 2)
    assert shapes["Conv_1"]["kernel"] == (3, 3, 2, 3)
    assert shapes["MLP_0"]["Dense_0"]["kernel"] == (3 * 3 * 3, 5)


def test_modules_are_compared_by_value() -> None:
    assert CNN() == CNN()
    assert hash(CNN(channels=(8, 8, 8))) != hash(CNN())

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.networks.activations import ACTIVATIONS, activation_by_name
from tests.support.errors import raises_naming


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_name_is_a_function_of_features(name: str) -> None:
    result = activation_by_name(name)(jnp.array([-1.0, 0.5]))
    assert result.shape == (2,)
    assert np.isfinite(result).all()


def test_bounded_ones() -> None:
    x = jnp.array([[-1.0, 2.0, 7.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(activation_by_name("relu6")(x), [[0.0, 2.0, 6.0], [0.0] * 3])
    softmax = activation_by_name("softmax")(x)
    np.testing.assert_allclose(softmax.sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(softmax[1], 1 / 3, rtol=1e-6)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with raises_naming(ValueError, "activation 'Tahn'", "'tanh'"):
        activation_by_name("Tahn")
    with raises_naming(ValueError, "activation 'zzzzzz'", "Available: celu"):
        activation_by_name("zzzzzz")

"""A distributional Q network with a prediction of the next step: outputs, layers, and separate heads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.networks.q_networks import PredictiveQNetwork
from evorl.networks.torsos import dense_torso
from tests.support.errors import raises_naming

OBS, ACTIONS = jnp.ones((5, 3)), jnp.full((5, 2), 0.5)


def _network() -> PredictiveQNetwork:
    options = {"activation": "relu", "orthogonal": False}
    return PredictiveQNetwork(dense_torso(8, **options), dense_torso(6, **options), num_atoms=11, embedding_size=4)


def test_both_heads_read_the_activated_embedding() -> None:
    network = _network()
    params = jax.tree.map(np.asarray, jax.jit(network.init)(jax.random.key(0), OBS, ACTIONS))
    logits, embedding, prediction = jax.jit(network.apply)(params, OBS, ACTIONS)
    layers = params["params"]

    def dense(layer: dict, x: np.ndarray) -> np.ndarray:
        return x @ layer["kernel"] + layer["bias"]

    joined = np.concatenate([OBS, ACTIONS], axis=-1)
    expected = dense(layers["embedding"], np.maximum(dense(layers["torso"]["Dense_0"], joined), 0.0))
    np.testing.assert_allclose(embedding, expected, rtol=1e-4, atol=1e-5)
    for output, torso, head in ((logits, "head_torso", "head"), (prediction, "prediction_torso", "prediction")):
        hidden = np.maximum(dense(layers[torso]["Dense_0"], np.maximum(expected, 0.0)), 0.0)
        np.testing.assert_allclose(output, dense(layers[head], hidden), rtol=1e-4, atol=1e-5)
    assert (logits.shape, prediction.shape) == ((5, 11), (5, 5))
    assert (layers["head_torso"]["Dense_0"]["kernel"] != layers["prediction_torso"]["Dense_0"]["kernel"]).any()


def test_leading_axes_are_free() -> None:
    network = _network()
    params = network.init(jax.random.key(0), OBS, ACTIONS)
    rows, _, _ = network.apply(params, OBS, ACTIONS)
    folded, _, _ = network.apply(params, OBS.reshape(5, 1, 3), ACTIONS.reshape(5, 1, 2))
    np.testing.assert_allclose(folded[:, 0], rows, rtol=1e-5)


def test_images_are_refused() -> None:
    network = _network()
    convolutional = network.clone(torso=dense_torso().clone(layers=()), observation_ndim=2)
    assert convolutional.torso.input_ndim == 1
    with raises_naming(ValueError, "2 axes", "(3,)"):
        convolutional.init(jax.random.key(0), jnp.ones(3), jnp.ones(2))

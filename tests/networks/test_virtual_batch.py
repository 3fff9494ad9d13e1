"""Virtual batch normalization: folded weights equal layer-by-layer normalization."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.config.custom_parts import CustomPart
from evorl.networks.blocks import BatchRenormalization
from evorl.networks.heads import PolicyNetwork
from evorl.networks.torsos import Torso, build_torso
from evorl.networks.virtual_batch import check_normalizable, virtually_normalized
from evorl.types import Params
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close, assert_identical

CONVOLUTIONS = [
    {"conv": {"filters": 3, "border": "valid"}},
    {"conv": {"filters": 4, "size": 2, "stride": 2, "border": "valid"}},
    "flatten",
    6,
]
RESIDUAL = [{"residual": {"filters": 4, "num_blocks": 1}}, "flatten", 6]
SHAPES = {"dense": (3,), "convolutions": (8, 7, 2), "residual": (8, 7, 2)}
TORSOS: dict[str, list] = {"dense": [8, 6], "convolutions": CONVOLUTIONS, "residual": RESIDUAL}


_folded = jax.jit(virtually_normalized, static_argnums=0)
_outputs = jax.jit(lambda network, params, obs: network.apply(params, obs), static_argnums=0)


@functools.cache
def _made(name: str, activation: str = "tanh") -> tuple[PolicyNetwork, Params, jax.Array, jax.Array]:
    """Return a network, its parameters (with nonzero biases), a reference batch, and other inputs."""
    shape = SHAPES[name]
    network = PolicyNetwork(
        build_torso({"torso": TORSOS[name], "activation": activation}), 2, len(shape), output_scale=1.0
    )
    param_key, bias_key, reference_key, input_key = jax.random.split(jax.random.key(0), 4)
    reference = 3.0 * jax.random.normal(reference_key, (12, *shape)) + 1.0
    params = jax.jit(network.init)(param_key, reference)
    noise = 0.5 * jax.random.normal(bias_key, (8,))
    params = jax.tree.map(lambda x: x + noise[: x.shape[0]] if x.ndim == 1 else x, params)
    return network, params, reference, jax.random.normal(input_key, (5, *shape))


def _sums(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """Return a layer's output without bias; convolutions are computed window by window."""
    if kernel.ndim == 2:
        return x.reshape(len(x), -1) @ kernel
    height, width = ((x.shape[i + 1] - kernel.shape[i]) // stride + 1 for i in range(2))
    sums = np.zeros((len(x), height, width, kernel.shape[-1]))
    for i in range(height):
        for j in range(width):
            window = x[:, i * stride :, j * stride :][:, : kernel.shape[0], : kernel.shape[1]]
            sums[:, i, j] = np.tensordot(window, kernel, 3)
    return sums


def _normalized_step_by_step(params: Params, reference: jax.Array, inputs: jax.Array) -> np.ndarray:
    """Return a tanh network's outputs for ``inputs`` with strides 1 and 2; both batches pass through every layer."""
    batch, x = np.asarray(reference, np.float64), np.asarray(inputs, np.float64)
    torso, head = params["params"]["torso"], params["params"]["head"]
    for layer, stride in (("Conv_0", 1), ("Conv_1", 2), ("Dense_0", 1), ("Dense_1", 1)):
        if layer in torso:
            kernel, bias = (np.asarray(torso[layer][name], np.float64) for name in ("kernel", "bias"))
            sums, own = _sums(batch, kernel, stride), _sums(x, kernel, stride)
            flat = sums.reshape(-1, sums.shape[-1])
            mean, deviation = flat.mean(axis=0), np.sqrt(flat.var(axis=0) + 1e-5)
            batch, x = (np.tanh((rows - mean) / deviation + bias) for rows in (sums, own))
    return x @ np.asarray(head["kernel"]) + np.asarray(head["bias"])


@pytest.mark.parametrize("name", ["dense", "convolutions"])
def test_folded_weights_act_as_normalized_layers(name: str) -> None:
    network, params, reference, inputs = _made(name)
    folded = _folded(network, params, reference)
    expected = _normalized_step_by_step(params, reference, inputs)
    np.testing.assert_allclose(_outputs(network, folded, inputs), expected, rtol=1e-4, atol=1e-4)
    assert not np.allclose(_outputs(network, params, inputs), expected, atol=0.05)


@functools.partial(jax.jit, static_argnums=0)
def _layers(network: PolicyNetwork, params: Params, obs: jax.Array) -> dict[str, jax.Array]:
    """Return the output of each layer of the torso before its activation."""
    _, seen = network.apply(params, obs, capture_intermediates=lambda module, _: isinstance(module, nn.Dense | nn.Conv))
    return {name: outputs["__call__"][0] for name, outputs in seen["intermediates"]["torso"].items()}


@pytest.mark.parametrize(("name", "activation"), [("dense", "kaf"), ("residual", "relu")])
def test_sums_have_variance_1_and_the_bias_as_mean(name: str, activation: str) -> None:
    network, params, reference, _ = _made(name, activation)
    folded = _folded(network, params, reference)
    layers = _layers(network, folded, reference)
    assert len(layers) == {"dense": 2, "residual": 4}[name]
    for layer, outputs in layers.items():
        rows = np.asarray(outputs).reshape(-1, outputs.shape[-1])
        np.testing.assert_allclose(rows.mean(axis=0), params["params"]["torso"][layer]["bias"], atol=1e-4)
        np.testing.assert_allclose(rows.var(axis=0), 1.0, rtol=2e-3)
    assert jax.tree.structure(folded) == jax.tree.structure(params)
    assert_identical(folded["params"]["head"], params["params"]["head"])


def test_the_scale_of_hidden_kernels_does_not_matter() -> None:
    network, params, reference, _ = _made("dense")
    larger = jax.tree.map(lambda x: 7.0 * x if x.ndim == 2 else x, params)
    larger["params"]["head"] = params["params"]["head"]
    assert_close(_folded(network, larger, reference), _folded(network, params, reference), 1e-3)


def test_a_feature_that_never_changes_stays_finite() -> None:
    network, params, reference, inputs = _made("dense")
    folded = _folded(network, params, jnp.broadcast_to(reference[:1], reference.shape))
    assert np.isfinite(_outputs(network, folded, inputs)).all()


@pytest.mark.parametrize(
    ("torso", "message"),
    [
        (build_torso({"torso": [4], "layer_norm": True}), ("layer_norm or batch_renorm", "virtual_batch")),
        (build_torso({"torso": [4, "layer_norm"]}), ("layer_norm or batch_renorm", "virtual_batch")),
        (build_torso({"torso": [4, "rms_norm"]}), ("rms_norm", "virtual_batch")),
        (build_torso({"torso": [{"dense": {"size": 4, "rms_norm": True}}]}), ("rms_norm", "virtual_batch")),
        (build_torso({"torso": [4, {"simba": 1}]}), ("simba", "virtual_batch")),
        (Torso((BatchRenormalization(),)), ("layer_norm or batch_renorm", "virtual_batch")),
        (build_torso({"torso": []}), ("agent.network.torso", "no layer with weights", "virtual_batch=null")),
        (build_torso({"torso": ["flatten"]}), ("agent.network.torso", "no layer with weights", "virtual_batch=null")),
    ],
    ids=str,
)
def test_torsos_without_use_for_it_are_refused(torso: Torso, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        check_normalizable(torso)
    check_normalizable(build_torso({"torso": "impala"}))


class Biasless(nn.Module):
    """A user's layer without a bias."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(4, use_bias=False)(x)


def test_a_layer_without_bias_is_refused() -> None:
    torso = Torso((CustomPart("my_parts:Biasless", Biasless),))
    check_normalizable(torso)
    network = PolicyNetwork(torso, 2)
    params = network.init(jax.random.key(0), jnp.ones((3, 2)))
    with raises_naming(ValueError, "virtual_batch", "Biasless_0/Dense_0", "use_bias", "virtual_batch=null"):
        virtually_normalized(network, params, jnp.ones((3, 2)))

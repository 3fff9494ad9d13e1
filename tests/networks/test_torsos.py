from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from evorl.networks.torsos import PRESETS, Convolution, Dense, ResidualStage, Torso, build_torso, dense_torso
from tests.support.errors import raises_naming

KEY = jax.random.key(0)
RNG = np.random.default_rng(1)
X = RNG.normal(size=(5, 6)).astype(np.float32)
IMAGES = RNG.normal(size=(2, 3, 6, 6, 4)).astype(np.float32)
GRID = [{"conv": {"filters": 2, "stride": 2}}, {"conv": {"filters": 3}}, "flatten", 5]


def _params(module: Torso, x: jax.Array = X) -> dict:
    return jax.tree.map(np.asarray, jax.jit(module.init)(KEY, x)["params"])


def _output(module: Torso, params: dict, x: Any) -> np.ndarray:
    return np.asarray(jax.jit(module.apply)({"params": params}, x))


def test_mappings_become_modules_compared_by_value() -> None:
    config = {"torso": [64, {"dense": 32}], "activation": "swish", "layer_norm": True, "orthogonal": False}
    expected = dense_torso(64, 32, activation="swish", layer_norm=True, orthogonal=False)
    assert build_torso(config) == expected
    assert hash(build_torso(config)) == hash(expected)
    assert build_torso({}, **config) == expected != build_torso(config, torso=(3,)).clone(activation="relu")
    layers = (Convolution(2, 3, 2, "same"), Convolution(3), "flatten", Dense(5))
    assert build_torso({"torso": GRID}).layers == layers
    assert build_torso({"torso": "minatar"}).layers == PRESETS["minatar"]


def test_dense_layers_compute_what_they_say() -> None:
    module = dense_torso(8, 2, activation="relu")
    params = _params(module)
    hidden = np.maximum(X @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"], 0.0)
    expected = np.maximum(hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"], 0.0)
    np.testing.assert_allclose(_output(module, params, X), expected, rtol=1e-4, atol=1e-5)
    kernel = _params(dense_torso(4))["Dense_0"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(4), atol=1e-5)


def test_a_layer_may_have_an_activation_of_its_own() -> None:
    module = build_torso({"torso": [{"dense": {"size": 8, "activation": "identity"}}, 2], "activation": "relu"})
    params = _params(module)
    hidden = X @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
    expected = np.maximum(hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"], 0.0)
    np.testing.assert_allclose(_output(module, params, X), expected, rtol=1e-4, atol=1e-5)


def test_rms_norm_of_a_layer_stands_before_the_activation() -> None:
    module = build_torso({"torso": [{"dense": {"size": 8, "rms_norm": True}}], "activation": "relu"})
    params = _params(module)
    sums = X @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
    normalized = sums / np.sqrt(np.square(sums).mean(axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(_output(module, params, X), np.maximum(normalized, 0.0), rtol=1e-4, atol=1e-5)
    assert params["RMSNorm_0"]["scale"].shape == (8,)
    with raises_naming(ValueError, "rms_norm", "true or false", "'yes'"):
        build_torso({"torso": [{"dense": {"size": 8, "rms_norm": "yes"}}]})


@pytest.mark.parametrize(
    "layer", [{"conv": {"filters": 2, "activation": "relu"}}, {"residual": {"filters": 2, "activation": "relu"}}]
)
def test_images_too(layer: dict) -> None:
    both = [build_torso({"torso": [layer, "flatten"], "activation": name}) for name in ("tanh", "relu")]
    params = _params(both[0], IMAGES)
    np.testing.assert_array_equal(*(_output(module, params, IMAGES) for module in both))
    assert (_output(both[0], params, IMAGES) >= 0.0).all()


def test_learned_activations_of_single_layers() -> None:
    kaf = {"dense": {"size": 8, "activation": {"name": "kaf", "kernel": "rbf2d"}}}
    params = _params(build_torso({"torso": [kaf, 4]}))
    assert params["Dense_1"]["kernel"].shape == (4, 4)
    with raises_naming(ValueError, "activation 'rely'", "'relu'"):
        build_torso({"torso": [{"dense": {"size": 8, "activation": "rely"}}]})
    odd = {"dense": {"size": 7, "activation": {"name": "kaf", "kernel": "rbf2d"}}}
    with raises_naming(ValueError, "rbf2d", "has 7"):
        build_torso({"torso": [odd]})


def test_layers_by_type_are_answered_by_their_kind() -> None:
    theirs = {"type": "Convolution", "activation": "elu", "n_filters": 8, "filter_size": [3, 3], "stride": [2, 2]}
    with raises_naming(ValueError, "key 'type'") as error:
        build_torso({"torso": [{**theirs, "border": "valid"}]})
    ours = str(error.value).partition("as the key: ")[2].rstrip(".")
    assert ours == "{conv: {activation: elu, filters: 8, size: 3, stride: 2, border: valid}}"
    assert build_torso({"torso": [yaml.safe_load(ours), "flatten"]}).layers[0].activation == "elu"


def test_layer_norm_stands_before_the_activation() -> None:
    module = dense_torso(16, activation="identity", layer_norm=True)
    params = _params(module)
    result = _output(module, params, X)
    assert "LayerNorm_0" in params
    np.testing.assert_allclose(result.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(result.std(-1), 1.0, rtol=1e-2)
    as_layer = build_torso({"torso": [16, "layer_norm"], "activation": "relu"})
    np.testing.assert_allclose(_output(as_layer, _params(as_layer), X).mean(-1), 0.0, atol=1e-5)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_leading_axes_are_free(leading: tuple[int, ...]) -> None:
    module = dense_torso(4, 4)
    assert _output(module, _params(module), np.ones((*leading, 6), np.float32)).shape == (*leading, 4)


def test_convolutions_have_their_shapes_and_free_leading_axes() -> None:
    module = build_torso({"torso": GRID})
    params = _params(module, IMAGES)
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes["Conv_0"]["kernel"] == (3, 3, 4, 2)
    assert shapes["Conv_1"]["kernel"] == (3, 3, 2, 3)
    assert shapes["Dense_0"]["kernel"] == (3 * 3 * 3, 5)
    result = _output(module, params, IMAGES)
    assert result.shape == (2, 3, 5)
    alone = _output(module, params, IMAGES[1, 2])
    np.testing.assert_allclose(alone, result[1, 2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("border", "side"), [("same", 3), ("valid", 2)])
def test_the_border_of_a_convolution(border: str, side: int) -> None:
    module = build_torso({"torso": [{"conv": {"filters": 2, "stride": 2, "border": border}}, "flatten"]})
    params = _params(module, IMAGES[0])
    assert _output(module, params, IMAGES[0]).shape == (3, side * side * 2)


def test_a_residual_stage_adds_what_its_blocks_compute() -> None:
    module = Torso((ResidualStage(2, num_blocks=1), "flatten"), activation="relu", orthogonal=False)
    params = _params(module, IMAGES[0])
    kernels = [params[f"Conv_{i}"]["kernel"] for i in range(3)]
    assert not any(np.any(params[f"Conv_{i}"]["bias"]) for i in range(3))

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    @jax.jit
    def expected(images: jax.Array) -> jax.Array:
        x = nn.max_pool(convolve(images, kernels[0]), (3, 3), (2, 2), "SAME")
        return jax.nn.relu(x + convolve(jax.nn.relu(convolve(jax.nn.relu(x), kernels[1])), kernels[2]))

    x = expected(IMAGES[0])
    np.testing.assert_allclose(_output(module, params, IMAGES[0]), x.reshape(3, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "shape", "size"),
    [
        ("minatar", (10, 10, 4), 128),
        ("nature", (84, 84, 4), 512),
        ("impala", (16, 16, 3), 256),
        ("universe", (84, 84, 4), 6 * 6 * 32),
        ("classic", (84, 84, 4), 11 * 11 * 32),
    ],
)
def test_presets_read_images(preset: str, shape: tuple[int, ...], size: int) -> None:
    module = build_torso({"torso": preset, "activation": "relu"})
    features = jax.eval_shape(lambda: module.init_with_output(KEY, jnp.zeros((7, *shape)))[0])
    assert features.shape == (7, size)


def test_two_convolutions_of_whole_windows_leave_one_place() -> None:
    layer = {"conv": {"filters": 8, "size": 3, "stride": 2, "border": "valid"}}
    module = build_torso({"torso": [layer, layer, "flatten"], "activation": "relu"})
    assert jax.eval_shape(lambda: module.init_with_output(KEY, jnp.zeros((2, 7, 7, 3)))[0]).shape == (2, 8)


def test_the_universe_torso_is_four_equal_convolutions() -> None:
    module = build_torso({"torso": "universe", "activation": "elu"})
    params = jax.eval_shape(lambda: module.init(KEY, jnp.zeros((1, 84, 84, 4))))["params"]
    kernels = [layer["kernel"].shape for layer in params.values()]
    assert kernels == [(3, 3, 4, 32), *(3 * [(3, 3, 32, 32)])]


def test_no_layer_is_the_identity() -> None:
    np.testing.assert_array_equal(Torso().apply({}, X), X)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"torsos": [4]}, ("key of agent.network 'torsos'", "'torso'")),
        (
            {"torso": "natur"},
            ("torso 'natur'", "'nature'", "Available: minatar, nature, classic"),
        ),
        ({"torso": [4, 0]}, ("torso: size", "positive", "got 0")),
        ({"torso": [4.5]}, ("size", "positive", "got 4.5")),
        (
            {"torso": 64},
            ("torso", "[64, 64]", "minatar", "got 64"),
        ),
        ({"torso": ["flaten"]}, ("layer 'flaten'", "'flatten'")),
        ({"torso": [{"cnv": 3}]}, ("layer 'cnv'", "'conv'")),
        ({"torso": [{"conv": {"filter": 3}}]}, ("option of conv", "'filter'", "'filters'")),
        ({"torso": [{"conv": {"size": 3}}]}, ("conv layer", "'filters'")),
        ({"torso": [{"conv": {"filters": 3, "border": "full"}}]}, ("border", "same, valid", "got 'full'")),
        ({"torso": [{"conv": 3, "dense": 4}]}, ("one kind", "{'conv': 3, 'dense': 4}")),
        ({"torso": [{"conv": 3}, 4]}, ("convolutions", "first, then 'flatten', then dense")),
        ({"torso": [4, {"conv": 3}]}, ("convolutions", "first, then 'flatten'")),
        ({"torso": [{"conv": 3}]}, ("convolutions", "first, then 'flatten'")),
        ({"torso": [{"batch_renorm": {"momentum": 1.0}}]}, ("momentum", "[0, 1), got 1.0")),
        ({"torso": [{"batch_renorm": {"momentun": 0.9}}]}, ("'momentun'", "'momentum'")),
        ({"torso": [{"batch_renorm": {"warmup": 0}}]}, ("warmup", "positive", "got 0")),
        ({"torso": [4], "layer_norm": "no"}, ("layer_norm", "true or false, got 'no'")),
        ({"torso": [4], "activation": "rellu"}, ("'rellu'", "'relu'")),
    ],
)
def test_nonsense_is_refused_with_the_nearest_name(config: dict[str, Any], message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        build_torso(config)


def test_a_dense_layer_has_one_normalization() -> None:
    for first, second in ((True, False), (False, True), (False, False)):
        build_torso({"torso": [{"dense": {"size": 4, "batch_norm": first, "rms_norm": second}}]}, keeps_statistics=True)
    with raises_naming(ValueError, "agent.network.torso", "batch_norm", "rms_norm"):
        build_torso({"torso": [{"dense": {"size": 4, "batch_norm": True, "rms_norm": True}}]}, keeps_statistics=True)

"""Residual blocks compute the published formulas, from the published initial weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.networks.blocks import (
    Bro,
    BroBlocks,
    Flash,
    FlashBlocks,
    Hypersphere,
    HypersphereBlocks,
    ResidualBlocks,
    Scaler,
    Simba,
    SimbaBlocks,
)
from evorl.networks.layers import STATISTICS
from evorl.networks.q_networks import apply_in_training
from evorl.networks.torsos import Dense, build_torso
from tests.support.errors import raises_naming
from tests.support.small_workflows import arrays, small

KEY = jax.random.key(0)
X = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)


def _moved(module: Any) -> dict[str, Any]:
    """Return parameters with non-trivial biases and gains."""
    params = jax.jit(module.init)(KEY, X)["params"]
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: np.asarray(x) + 0.1 * rng.normal(size=x.shape).astype(np.float32), params)


def _norm(x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-6) * params["scale"] + params["bias"]


def _dense(x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    return x @ params["kernel"] + params["bias"]


def _output(module: Any, params: dict[str, Any]) -> np.ndarray:
    return np.asarray(jax.jit(module.apply)({"params": params}, X))


def test_simba_is_linear_embedding_blocks_and_a_last_normalization() -> None:
    module = SimbaBlocks(2, 8)
    p = _moved(module)
    x = _dense(X, p["Dense_0"])  # no activation
    for i in range(2):
        hidden = np.maximum(_dense(_norm(x, p[f"LayerNorm_{i}"]), p[f"Dense_{2 * i + 1}"]), 0.0)
        assert hidden.shape == (5, 32)
        x = x + _dense(hidden, p[f"Dense_{2 * i + 2}"])
    np.testing.assert_allclose(_output(module, p), _norm(x, p["LayerNorm_2"]), rtol=1e-4, atol=1e-5)


def test_simba_normalizes_with_the_epsilon_of_flax() -> None:
    """Features of variance 1e-6 show the epsilon of each layer normalization: 1e-6, in torch 1e-5."""
    module = SimbaBlocks(1)
    small = 1e-3 * X
    p = jax.tree.map(np.asarray, jax.jit(module.init)(KEY, small)["params"])
    p["Dense_1"]["kernel"] = 1e-3 * p["Dense_1"]["kernel"]  # the block's outputs are as small as its inputs

    def by_hand(epsilon: tuple[float, float]) -> np.ndarray:
        def norm(x: np.ndarray, epsilon: float) -> np.ndarray:
            return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)

        hidden = np.maximum(_dense(norm(small, epsilon[0]), p["Dense_0"]), 0.0)
        return norm(small + _dense(hidden, p["Dense_1"]), epsilon[1])

    outputs = np.asarray(jax.jit(module.apply)({"params": p}, small))
    np.testing.assert_allclose(outputs, by_hand((1e-6, 1e-6)), rtol=1e-3, atol=1e-4)
    for of_torch in ((1e-5, 1e-6), (1e-6, 1e-5)):  # planted faults
        assert not np.allclose(outputs, by_hand(of_torch), rtol=0.1, atol=0.1)


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_simba_v2_steps_on_a_sphere() -> None:
    """The outputs follow the paper's formulas: embedding, two interpolations, and the first layer of the head."""
    module = HypersphereBlocks(2, 8)
    p = _moved(module)
    assert not [path for path in arrays(p) if "bias" in path]
    kernel = [p[f"Dense_{i}"]["kernel"] for i in range(6)]
    scale = [p[f"Scaler_{i}"]["scale"] for i in range(6)]
    x = _unit(np.concatenate([X, np.full((5, 1), 3.0, np.float32)], axis=-1)) @ kernel[0]
    x = _unit(scale[0] * x)  # initial and stored value are equal
    for i in (1, 3):
        hidden = np.maximum(scale[i] * (x @ kernel[i]), 0.0)
        assert hidden.shape == (5, 32)
        step = _unit(hidden @ kernel[i + 1]) - x
        x = _unit(x + scale[i + 1] * np.sqrt(8.0) / 3.0 * step)
    np.testing.assert_allclose(_output(module, p), scale[5] * (x @ kernel[5]), rtol=1e-4, atol=1e-5)
    without_shift = _unit(scale[0] * (_unit(X) @ kernel[0][:6]))  # a planted fault: lengths of inputs are lost
    np.testing.assert_allclose(without_shift, _unit(scale[0] * (_unit(2.0 * X) @ kernel[0][:6])), rtol=1e-4)
    assert not np.allclose(_output(module, p), np.asarray(module.apply({"params": p}, 2.0 * X)), rtol=1e-2)


def test_scalers_start_at_the_published_values() -> None:
    """Stored values of width 8 and two blocks; the shares of a step start at 1/3."""
    p = jax.jit(HypersphereBlocks(2, 8).init)(KEY, X)["params"]
    stored = [0.5, 0.25, 8**-0.5, 0.25, 8**-0.5, 1.0]
    assert [p[f"Scaler_{i}"]["scale"].shape for i in range(6)] == [(8,), (32,), (8,), (32,), (8,), (8,)]
    for i, value in enumerate(stored):
        np.testing.assert_allclose(p[f"Scaler_{i}"]["scale"], value, rtol=1e-6)
    share = Scaler(1.0 / 3.0, 8**-0.5)
    np.testing.assert_allclose(share.init_with_output(KEY, jnp.ones(3))[0], 1.0 / 3.0, rtol=1e-6)


def test_vectors_of_length_0_have_finite_gradients() -> None:
    module: Any = HypersphereBlocks(1)
    params = jax.jit(module.init)(KEY, X)
    gradient = jax.jit(jax.grad(lambda x: module.apply(params, x).sum()))(jnp.zeros((2, 6)))
    assert np.isfinite(gradient).all()


def test_flash_normalizes_over_the_batch_before_each_relu() -> None:
    """Training uses the statistics of the batch, and moves the running ones by a hundredth; acting uses those."""
    module = FlashBlocks(2, 8)
    variables = jax.jit(module.init)(KEY, X)
    p = _moved(module)
    assert not [path for path in arrays(p) if "Dense" in path and "bias" in path]

    def forward(statistics: Any) -> np.ndarray:
        def norm(x: np.ndarray, i: int) -> np.ndarray:
            own = statistics(x, i)
            return (x - own[0]) / np.sqrt(own[1] + 1e-5) * p[f"BatchRenorm_{i}"]["scale"] + p[f"BatchRenorm_{i}"][
                "bias"
            ]

        kernel = [p[f"Dense_{i}"]["kernel"] for i in range(5)]
        x = norm(X, 0) @ kernel[0]
        for i in (1, 3):
            hidden = np.maximum(norm(x @ kernel[i], i), 0.0)
            assert hidden.shape == (5, 32)
            x = x + np.maximum(norm(hidden @ kernel[i + 1], i + 1), 0.0)
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * p["RMSNorm_0"]["scale"]

    outputs, running = apply_in_training(module, {"params": p}, variables[STATISTICS], jnp.asarray(X))
    np.testing.assert_allclose(outputs, forward(lambda x, _: (x.mean(axis=0), x.var(axis=0))), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(running["BatchRenorm_0"]["mean"], 0.01 * X.mean(axis=0), rtol=1e-4)
    running = jax.tree.map(lambda x: np.asarray(x) + 0.1, running)
    acted: Any = module.apply({"params": p, STATISTICS: running}, jnp.asarray(X))
    known = [running[f"BatchRenorm_{i}"] for i in range(5)]
    expected = forward(lambda _, i: (known[i]["mean"], known[i]["variance"]))
    np.testing.assert_allclose(acted, expected, rtol=1e-3, atol=1e-4)


def test_flash_needs_running_statistics() -> None:
    torso = build_torso({"torso": [8, {"flash": 2}]}, keeps_statistics=True)
    assert torso.layers == (Flash(2, 8),)
    with raises_naming(ValueError, "flash", "running statistics", "CrossQ"):
        build_torso({"torso": [8, {"flash": 2}]})


def test_bro_normalizes_after_each_dense_layer() -> None:
    module = BroBlocks(2, 8)
    p = _moved(module)
    x = np.maximum(_norm(_dense(X, p["Dense_0"]), p["LayerNorm_0"]), 0.0)
    for i in (1, 3):
        hidden = np.maximum(_norm(_dense(x, p[f"Dense_{i}"]), p[f"LayerNorm_{i}"]), 0.0)
        x = x + _norm(_dense(hidden, p[f"Dense_{i + 1}"]), p[f"LayerNorm_{i + 1}"])
    np.testing.assert_allclose(_output(module, p), x, rtol=1e-4, atol=1e-5)


def test_initial_weights_are_the_published_ones() -> None:
    """SimBa: an orthogonal embedding of gain 1 and He's normal weights; BRO: orthogonal weights of gain sqrt(2)."""
    inputs = np.ones((1, 64), np.float32)
    params = jax.jit(SimbaBlocks(1, 64).init)(KEY, inputs)["params"]
    kernels = [np.asarray(params[f"Dense_{i}"]["kernel"]) for i in range(3)]
    np.testing.assert_allclose(kernels[0].T @ kernels[0], np.eye(64), atol=1e-4)
    for kernel, fan_in in ((kernels[1], 64), (kernels[2], 256)):
        np.testing.assert_allclose(kernel.std(), np.sqrt(2.0 / fan_in), rtol=0.03)
        assert abs(kernel).max() > np.sqrt(6.0 / fan_in)  # beyond the range of uniform weights of the same gain
    params = jax.jit(BroBlocks(1, 64).init)(KEY, inputs)["params"]
    for i in range(3):
        kernel = np.asarray(params[f"Dense_{i}"]["kernel"])
        np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(64), atol=1e-4)
        assert not np.any(params[f"Dense_{i}"]["bias"])


@pytest.mark.parametrize(("kind", "blocks"), [("simba", Simba), ("simba_v2", Hypersphere), ("bro", Bro)])
def test_the_dense_layer_before_blocks_is_their_embedding(kind: str, blocks: type[ResidualBlocks]) -> None:
    torso = build_torso({"torso": [16, 8, {kind: 2}], "activation": "relu"})
    assert torso.layers == (Dense(16), blocks(2, 8))
    assert torso == build_torso({"torso": [16, {kind: {"num_blocks": 2, "size": 8}}], "activation": "relu"})
    assert hash(torso) == hash(torso.clone())
    assert build_torso({"torso": [{"dense": {"size": 8, "activation": "relu"}}, {kind: 2}]}).layers[1] == blocks(2)
    assert build_torso({"torso": [8, {kind: 1}, {kind: 1}]}).layers == (blocks(1, 8), blocks(1))
    assert build_torso({"torso": [8, "layer_norm", {kind: 1}]}).layers == (Dense(8), "layer_norm", blocks(1))
    features = jax.eval_shape(lambda: build_torso({"torso": [{kind: 1}]}).init_with_output(KEY, jnp.asarray(X))[0])
    assert features.shape == X.shape  # the width of the input


def test_blocks_read_flattened_images() -> None:
    torso = build_torso({"torso": [{"conv": 2}, "flatten", 8, {"simba": 1}]})
    assert jax.eval_shape(lambda: torso.init_with_output(KEY, jnp.ones((3, 4, 4, 1)))[0]).shape == (3, 8)
    with raises_naming(ValueError, "convolutions", "first"):
        build_torso({"torso": [8, {"simba": 1}, {"conv": 2}, "flatten"]})


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    torso = build_torso({"torso": ["rms_norm"]})
    params = {"RMSNorm_0": {"scale": np.arange(6, dtype=np.float32)}}
    expected = X / np.sqrt((X**2).mean(axis=-1, keepdims=True) + 1e-6) * np.arange(6)
    np.testing.assert_allclose(_output(torso, params), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "parts"),
    [
        ({"simba": 0}, ("num_blocks", "positive", "got 0")),
        ({"simba": {"size": 4}}, ("simba layer", "'num_blocks'")),
        ({"bro": {"num_block": 1}}, ("option of bro", "'num_block'", "'num_blocks'")),
        ({"simbo": 2}, ("layer 'simbo'", "'simba'")),
        ("rms_nrom", ("layer 'rms_nrom'", "'rms_norm'")),
    ],
)
def test_impossible_blocks_are_refused(layer: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        build_torso({"torso": [4, layer]})


@pytest.mark.parametrize(("algorithm", "env"), [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")])
@pytest.mark.parametrize("layers", [[8, {"simba": 1}], [8, {"simba_v2": 1}], [8, {"bro": 1}]])
def test_algorithms_train_all_weights_of_the_blocks(algorithm: str, env: str, layers: list) -> None:
    workflow = small(algorithm, env, agent={"network": {"torso": layers}})
    before = workflow.init(0)
    start, state = arrays(before.agent_state.params.policy), before
    for _ in range(4):
        _, state = workflow.step(state)
    trained = arrays(state.agent_state.params.policy)
    assert any("Blocks" in path for path in trained)
    assert all(np.isfinite(x).all() and (x != start[path]).any() for path, x in trained.items())

"""Kernel activation functions equal loops, and networks use them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.ppo import PPOWorkflow
from evorl.networks.activations import (
    KernelActivation,
    KernelActivationLayer,
    activation_by_name,
    build_activation,
)
from evorl.networks.torsos import Torso, build_torso
from tests.support.errors import raises_naming
from tests.support.small_workflows import fresh_state, small

KEY = jax.random.key(0)
X = np.random.default_rng(1).uniform(-2.5, 2.5, (5, 6)).astype(np.float32)
KERNELS = ("rbf", "rbf2d")


def _layer(**options: Any) -> tuple[KernelActivationLayer, np.ndarray]:
    """Return a layer and random weights for it."""
    layer = KernelActivationLayer(KernelActivation(**options))
    weights = jax.eval_shape(layer.init, KEY, X)["params"]["weights"]
    return layer, np.random.default_rng(2).normal(size=weights.shape).astype(np.float32)


def _expected(x: np.ndarray, weights: np.ndarray, size: int, boundary: float, gamma: float) -> list[float]:
    """Compute one row by the formula."""
    step = 2 * boundary / (size - 1)
    grid = [-boundary + i * step for i in range(size)]
    sharpness = gamma / (6 * step**2)
    if weights.ndim == 2:
        return [
            sum(w * np.exp(-sharpness * (s - d) ** 2) for w, d in zip(ws, grid, strict=True))
            for s, ws in zip(x, weights, strict=True)
        ]
    pairs = zip(x[0::2], x[1::2], weights, strict=True)
    return [
        sum(
            ws[i, j] * np.exp(-sharpness * ((s - grid[i]) ** 2 + (t - grid[j]) ** 2))
            for i in range(size)
            for j in range(size)
        )
        for s, t, ws in pairs
    ]


@pytest.mark.parametrize("kernel", KERNELS)
def test_values_are_those_of_the_formula(kernel: Any) -> None:
    layer, weights = _layer(kernel=kernel, size=7, boundary=2.0, gamma=1.5)
    assert weights.shape == ((6, 7) if kernel == "rbf" else (3, 7, 7))
    result = jax.jit(layer.apply)({"params": {"weights": weights}}, X)
    expected = [_expected(np.asarray(x), np.asarray(weights), 7, 2.0, 1.5) for x in X]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_a_sum_of_five_bumps_by_its_numbers() -> None:
    """The output equals a sum of five Gaussians; their factor is 1, as ``gamma`` is 6 for a step of 1."""
    layer = KernelActivationLayer(KernelActivation(size=5, boundary=2.0, gamma=6.0))
    weights = np.array([[0.1, 0.2, 0.3, 0.4, 0.5]], np.float32)
    result = jax.jit(layer.apply)({"params": {"weights": weights}}, np.array([[0.0], [1.5]], np.float32))
    np.testing.assert_allclose(result[:, 0], [0.53172, 0.73293], atol=5e-6)


def test_a_wave_is_fitted_by_weights_alone() -> None:
    layer = KernelActivation(size=20, boundary=2.0)
    x = np.linspace(-2.0, 2.0, 200, dtype=np.float32)[:, None]
    bumps = np.exp(-layer.sharpness * np.square(x - np.asarray(layer.grid)))
    weights = np.linalg.lstsq(bumps, np.sin(2 * x[:, 0]))[0].astype(np.float32)
    fitted = jax.jit(KernelActivationLayer(layer).apply)({"params": {"weights": weights[None]}}, x)
    assert np.mean(np.square(fitted[:, 0] - np.sin(2 * x[:, 0]))) < 1e-2


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("initial", ["elu", "tanh"])
def test_it_starts_near_a_known_activation(kernel: Any, initial: str) -> None:
    layer = KernelActivationLayer(KernelActivation(kernel=kernel, initial=initial))
    outputs, params = jax.jit(layer.init_with_output)(KEY, X)
    known = activation_by_name(initial)(X if kernel == "rbf" else np.maximum(X[:, 0::2], X[:, 1::2]))
    np.testing.assert_allclose(outputs, known, atol=0.02 if kernel == "rbf" else 0.15)
    far = jax.jit(layer.apply)(params, np.full((1, 6), 50.0, np.float32))
    np.testing.assert_array_equal(far, 0.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_feature_learns_its_own(kernel: Any) -> None:
    layer, weights = _layer(kernel=kernel, size=5)

    def loss(params: dict, x: jax.Array) -> jax.Array:
        outputs = layer.apply(params, x)
        return jnp.square(outputs * jnp.arange(outputs.shape[-1])).sum()

    to_weights, to_inputs = jax.jit(jax.grad(loss, argnums=(0, 1)))({"params": {"weights": weights}}, X)
    gradients = np.asarray(to_weights["params"]["weights"])
    assert not gradients[0].any()
    assert (np.abs(gradients[1:]).max(axis=tuple(range(1, gradients.ndim))) > 0).all()
    assert np.abs(to_inputs).max() > 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_leading_axes_are_free(kernel: Any) -> None:
    layer, weights = _layer(kernel=kernel, size=5)
    params = {"params": {"weights": weights}}
    many = np.asarray(jax.jit(layer.apply)(params, np.stack([X, -X])))
    np.testing.assert_allclose(many[1, 2], jax.jit(layer.apply)(params, -X[2]), rtol=1e-5, atol=1e-6)


def test_names_and_mappings_become_activations() -> None:
    assert build_activation("relu") == build_activation({"name": "relu"}) == "relu"
    assert build_activation("kaf") == KernelActivation() == build_activation(KernelActivation())
    made = build_activation({"name": "kaf", "kernel": "rbf2d", "size": 12, "boundary": 2.0, "initial": "tanh"})
    assert made == KernelActivation("rbf2d", 12, 2.0, initial="tanh")


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("kaff", ("activation 'kaff'", "'kaf'")),
        ({"name": "relu", "size": 3}, ("option of activation relu", "'size'")),
        ({"name": "kaf", "sise": 3}, ("'sise'", "'size'")),
        ({"name": "kaf", "kernel": "rbf3d"}, ("kernel 'rbf3d'", "rbf, rbf2d")),
        ({"name": "kaf", "size": 1}, ("size", "from 2 to", "got 1")),
        ({"name": "kaf", "size": 2.5}, ("size", "got 2.5")),
        ({"name": "kaf", "boundary": 0}, ("boundary", "above 0, got 0")),
        ({"name": "kaf", "gamma": "1"}, ("gamma", "got '1'")),
        ({"name": "kaf", "initial": "ellu"}, ("'ellu'", "'elu'")),
        ({"kernel": "rbf"}, ("activation None",)),
    ],
)
def test_nonsense_is_refused_in_words(config: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        build_activation(config)


TORSOS = {
    "dense": ([8, 4], X),
    "convolution": ([{"conv": {"filters": 4}}, "flatten", 4], jnp.ones((2, 5, 5, 3))),
    "residual": ([{"residual": {"filters": 4}}, "flatten", 4], jnp.ones((2, 4, 4, 3))),
}


@pytest.mark.parametrize("name", TORSOS)
def test_layers_of_every_kind_have_half_as_many_outputs_with_rbf2d(name: str) -> None:
    layers, x = TORSOS[name]
    for kernel, size in (("rbf", 4), ("rbf2d", 2)):
        torso = build_torso({"torso": layers, "activation": {"name": "kaf", "kernel": kernel, "size": 5}})
        outputs, variables = jax.eval_shape(torso.init_with_output, KEY, x)
        assert outputs.shape == (len(x), size)
        weights = [v.shape for k, v in variables["params"].items() if k.startswith("Kernel") for v in v.values()]
        assert weights[-1] == ((4, 5) if kernel == "rbf" else (2, 5, 5))
        assert len(weights) == {"dense": 2, "convolution": 2, "residual": 6}[name]


@pytest.mark.parametrize(
    ("layers", "num_features"),
    [([8, 5], 5), ([{"conv": {"filters": 3}}, "flatten"], 3), ([{"residual": 7}, "flatten"], 7)],
)
def test_odd_layers_have_no_pairs(layers: list, num_features: int) -> None:
    with raises_naming(ValueError, "rbf2d", "pairs", f"has {num_features}"):
        build_torso({"torso": layers, "activation": {"name": "kaf", "kernel": "rbf2d"}})
    assert isinstance(build_torso({"torso": layers, "activation": "kaf"}), Torso)


@pytest.mark.parametrize("algorithm", ["a2c", "dqn", "ppo", "sac"])
def test_every_agent_takes_them(algorithm: str) -> None:
    activation = {"name": "kaf", "kernel": "rbf2d", "size": 5}
    workflow = small(algorithm, agent={"network": {"torso": [8], "activation": activation}})
    params = fresh_state(workflow.agent, workflow.env).params
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    assert any("KernelActivationLayer_0" in path for path in paths)


@pytest.mark.parametrize("kernel", KERNELS)
def test_ppo_learns_with_them(kernel: str) -> None:
    """PPO with kernel activations nearly solves CartPole after 16 iterations."""
    workflow = PPOWorkflow.build_from_config(
        {
            "env": "CartPole-v1",
            "num_envs": 16,
            "rollout_length": 64,
            "num_epochs": 4,
            "num_minibatches": 4,
            "total_timesteps": 16_384,
            "eval_interval": 0,
            "devices": 1,
            "optimizer": {"learning_rate": 3e-3, "max_grad_norm": None, "epsilon": 1e-8},
            "agent": {"network": {"torso": [32, 32], "activation": {"name": "kaf", "kernel": kernel, "size": 10}}},
        }
    )
    state = workflow.learn()
    assert float(workflow.evaluate(state).episode_return) > 300

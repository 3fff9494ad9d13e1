"""Networks that compute in bfloat16: parameters, outputs, statistics and gradients are float32, and nearly the same."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.part_settings import differing_torsos
from evorl.config.values import short_repr
from evorl.networks.curiosity import CuriosityModel, DistillationNetwork
from evorl.networks.heads import FeatureNetwork, PolicyNetwork, ValueNetwork
from evorl.networks.layers import STATISTICS, BatchRenorm, NoisyDense, dense, float32_outputs
from evorl.networks.linear_cells import LRU, MinGRU
from evorl.networks.q_networks import EnsembleQNetwork, QNetwork
from evorl.networks.recurrent import GRU, LSTM, DilatedLSTM, RecurrentNetwork, assemble, build_cell, computing_in
from evorl.networks.torsos import Torso, build_torso
from evorl.networks.virtual_batch import virtually_normalized
from tests.support.errors import raises_naming
from tests.support.products import factors, sums

KEY = jax.random.key(0)
ROUNDING = 2.0**-8  # largest relative error of one rounding to bfloat16
X = np.random.default_rng(1).normal(size=(64, 6)).astype(np.float32)
ACTIONS = np.random.default_rng(2).normal(size=(64, 3)).astype(np.float32)
IMAGES = np.random.default_rng(3).integers(0, 255, (4, 10, 10, 3), np.uint8)
SMALL = {"torso": [16, 8], "dtype": "bfloat16"}
CONVOLUTIONS = {"torso": [{"conv": {"filters": 4}}, {"residual": {"filters": 4}}, "flatten", 8], "dtype": "bfloat16"}
NORMALIZED = {"torso": ["layer_norm", 16, 8], "layer_norm": True, "dtype": "bfloat16"}
RENORMALIZED = build_torso({"torso": ["batch_renorm", 16, "batch_renorm"], "dtype": "bfloat16"}, keeps_statistics=True)
NETWORKS = {
    "features": (FeatureNetwork(build_torso(SMALL)), (X,)),
    "policy": (PolicyNetwork(build_torso(SMALL), 4, state_independent_std=True), (X,)),
    "normalized": (PolicyNetwork(build_torso(NORMALIZED), 4, output_scale=1.0), (X,)),
    "renormalized": (PolicyNetwork(RENORMALIZED, 4), (X,)),
    "hypersphere": (PolicyNetwork(build_torso({"torso": [16, {"simba_v2": 1}], "dtype": "bfloat16"}), 4), (X,)),
    "linear": (ValueNetwork(Torso(dtype="bfloat16")), (X,)),
    "images": (ValueNetwork(build_torso(CONVOLUTIONS), observation_ndim=3), (IMAGES,)),
    "ensemble": (EnsembleQNetwork(build_torso(SMALL), 3), (X, ACTIONS)),
    "atoms": (EnsembleQNetwork(build_torso(SMALL), 2, num_actions=5, num_atoms=7), (X,)),
    "rainbow": (QNetwork(build_torso(SMALL), 3, num_atoms=5, dueling=True, noisy=True), (X, None, KEY)),
    "curiosity": (CuriosityModel(build_torso(SMALL), 3, 8), (X, ACTIONS, X)),
    "distillation": (DistillationNetwork(build_torso(SMALL), 8, (4,)), (X,)),
}
CELLS = [GRU(8), LSTM(8), DilatedLSTM(8, num_cores=2), MinGRU(8), LRU(8)]


def dtypes(tree: Any) -> set[Any]:
    """The dtypes of all leaves but counters."""
    return {x.dtype for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)}


def compared(network: nn.Module, *inputs: Any) -> None:
    """Check dtypes of a network, and compare its outputs and gradients with the same network in float32."""
    wide = computing_in(network, "float32")
    assert wide != network
    params: Any = jax.jit(network.init)(KEY, *inputs)
    assert dtypes(params) == {jnp.dtype("float32")}
    jax.tree.map(np.testing.assert_array_equal, params, jax.jit(wide.init)(KEY, *inputs))
    others = {name: value for name, value in params.items() if name != "params"}

    def loss(params: Any, network: nn.Module) -> tuple[jax.Array, Any]:
        outputs = network.apply({"params": params, **others}, *inputs)
        return sum(jnp.sin(x).mean() for x in jax.tree.leaves(outputs)), outputs

    program = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    (gradients, outputs), (exact_gradients, exact) = program(params["params"], network), program(params["params"], wide)
    assert dtypes((gradients, outputs)) == {jnp.dtype("float32")}
    jaxpr = program.trace(params["params"], network).jaxpr
    assert factors(jaxpr) == {jnp.dtype("bfloat16")}
    assert jnp.dtype("bfloat16") not in sums(jaxpr)  # such as gradients of biases
    close(outputs, exact)
    close(gradients, exact_gradients)
    differences = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (outputs, exact)), strict=True)]
    assert max(differences) > 0.0


def close(actual: Any, expected: Any) -> None:
    """A few roundings apart, relative to the largest number of each array: three for each layer of a deep network.

    jaxlib 0.11 rounds after each operation, as a GPU does, and 0.10 only after each group of fused operations.
    """
    pairs = list(zip(*map(jax.tree.leaves, (actual, expected)), strict=True))
    num_roundings = max(16, 3 * len(pairs) // 2)  # a layer has two arrays
    for a, b in pairs:
        assert np.abs(a - b).max() <= num_roundings * ROUNDING * max(np.abs(b).max(), 1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_nearly_those_in_float32(name: str) -> None:
    network, inputs = NETWORKS[name]
    compared(network, *inputs)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: type(cell).__name__)
def test_recurrent_networks_remember_in_float32(cell: Any) -> None:
    network = assemble(build_torso(SMALL), cell, (), lambda torso, ndim: PolicyNetwork(torso, 4, ndim, 1.0), 1)
    assert isinstance(network, RecurrentNetwork)
    state = network.initial_state((64,))
    compared(network, X, state)
    _, after = jax.eval_shape(network.apply, jax.eval_shape(network.init, KEY, X, state), X, state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


def test_learned_activations_compute_in_float32() -> None:
    torso = build_torso({**SMALL, "activation": {"name": "kaf", "size": 5}})
    params: Any = torso.init(KEY, X)
    outputs = torso.apply(params, X)
    assert outputs.dtype == jnp.bfloat16
    close(outputs.astype(jnp.float32), computing_in(torso, "float32").apply(params, X))


def test_sums_of_the_last_layer_are_not_rounded() -> None:
    hidden, last = (dense(5, True, 1.0, **each) for each in ({"dtype": jnp.bfloat16}, float32_outputs("bfloat16")))
    params = {"params": {**hidden.init(KEY, X)["params"], "bias": jnp.linspace(0.1, 0.7, 5)}}
    rounded = [jnp.asarray(x, jnp.bfloat16).astype(jnp.float32) for x in (X, params["params"]["kernel"])]
    exact = rounded[0] @ rounded[1] + params["params"]["bias"]
    assert hidden.apply(params, X).dtype == jnp.bfloat16
    outputs = last.apply(params, X)
    assert outputs.dtype == jnp.float32
    np.testing.assert_allclose(outputs, exact, rtol=1e-5, atol=1e-6)
    noisy = NoisyDense(5, dtype="bfloat16")
    weights = jax.tree.map(jnp.zeros_like, noisy.init(KEY, X)["params"]) | params["params"]
    np.testing.assert_allclose(noisy.apply({"params": weights}, X), exact, rtol=1e-5, atol=1e-6)


def test_statistics_of_large_batches_are_not_rounded() -> None:
    network = PolicyNetwork(RENORMALIZED, 4)
    x = 3.0 + np.random.default_rng(0).normal(size=(4096, 6)).astype(np.float32)
    params: Any = network.init(KEY, x)
    _, changed = network.apply(params, x, mutable=[STATISTICS])
    first: Any = changed[STATISTICS]["torso"]["BatchRenorm_0"]
    np.testing.assert_allclose(first["mean"], 0.01 * x.mean(axis=0), rtol=1e-4)


def test_statistics_of_rounded_features_are_not_rounded() -> None:
    """Mean and variance of features in bfloat16 are computed in float32."""
    features = jnp.asarray(3.0 + np.random.default_rng(0).normal(size=(4096, 6)), jnp.bfloat16)
    module, exact = BatchRenorm(momentum=0.0), np.asarray(features, np.float32)
    params: Any = module.init(KEY, features)
    outputs, changed = module.apply(params, features, mutable=[STATISTICS])
    statistics: Any = changed[STATISTICS]
    np.testing.assert_allclose(statistics["mean"], exact.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics["variance"], exact.var(axis=0), rtol=1e-4)
    normalized = (exact - exact.mean(axis=0)) / np.sqrt(exact.var(axis=0) + 1e-3)
    np.testing.assert_allclose(outputs, normalized, rtol=1e-4, atol=1e-4)


def test_virtual_batches_normalize_in_float32() -> None:
    network, _ = NETWORKS["policy"]
    params: Any = network.init(KEY, X)
    narrow, wide = (virtually_normalized(each, params, X) for each in (network, computing_in(network, "float32")))
    assert dtypes(narrow) == {jnp.dtype("float32")}
    close(narrow, wide)


def test_dtypes_have_names() -> None:
    for dtype in ("float16", "bf16", 32, None):
        with raises_naming(ValueError, "dtype", "bfloat16, float32", short_repr(dtype)):
            build_torso({"torso": [8], "dtype": dtype})
    with raises_naming(ValueError, "dtype"):
        build_cell({"name": "gru", "size": 8, "dtype": "bfloat16"})  # that of the torso
    assert [torso.dtype for torso in differing_torsos(SMALL, {"dtype": "float32"})] == ["bfloat16", "float32"]
    assert differing_torsos(SMALL, {"dtype": None})[1].dtype == "bfloat16"

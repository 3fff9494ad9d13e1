"""Batch renormalization: plain batch normalization during warm-up, bounded correction afterwards,
running statistics.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.networks.heads import apply_network
from evorl.networks.layers import STATISTICS, BatchRenorm
from evorl.networks.q_networks import EnsembleQNetwork, apply_in_training
from evorl.networks.torsos import build_torso
from evorl.ops.collectives import DATA_AXIS, mean_over_shares
from tests.support.errors import raises_naming

X = (3.0 * np.random.default_rng(0).normal(size=(16, 4)) + np.arange(4.0)).astype(np.float32)
LEARNED = {"params": {"scale": np.float32([1.0, 2.0, -1.0, 0.5]), "bias": np.float32([0.0, 1.0, 2.0, 3.0])}}
trained, acted = jax.jit(apply_in_training, static_argnums=0), jax.jit(apply_network, static_argnums=0)


def _statistics(mean: Any = 0.0, variance: Any = 1.0, num_batches: int = 0) -> dict[str, Any]:
    mean, variance = (np.broadcast_to(np.float32(x), (4,)) for x in (mean, variance))
    return {"mean": mean, "variance": variance, "num_batches": np.int32(num_batches)}


def test_it_begins_as_plain_batch_normalization() -> None:
    """During warm-up, outputs, gradients and running statistics equal flax's batch normalization."""
    module, plain = BatchRenorm(warmup=2), nn.BatchNorm(use_running_average=False, momentum=0.99, epsilon=1e-3)

    def expected(x: jax.Array) -> tuple[jax.Array, Any]:
        variables = LEARNED | {STATISTICS: {"mean": jnp.zeros(4), "var": jnp.ones(4)}}
        return plain.apply(variables, x, mutable=[STATISTICS])

    outputs, statistics = trained(module, LEARNED, _statistics(num_batches=1), X)
    plain_outputs, changed = jax.jit(expected)(X)
    np.testing.assert_allclose(outputs, plain_outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(statistics["mean"], changed[STATISTICS]["mean"], rtol=1e-5)
    np.testing.assert_allclose(statistics["variance"], changed[STATISTICS]["var"], rtol=1e-5)
    cotangent = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)
    functions = (lambda x: apply_in_training(module, LEARNED, _statistics(), x)[0], lambda x: expected(x)[0])
    gradient, plain_gradient = (jax.jit(jax.grad(lambda x, f=f: (cotangent * f(x)).sum()))(X) for f in functions)
    np.testing.assert_allclose(gradient, plain_gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("num_batches", [0, 2, 3])
def test_the_correction_begins_after_the_warmup(num_batches: int) -> None:
    module = BatchRenorm(warmup=3)
    statistics = _statistics(mean=0.5, variance=4.0, num_batches=num_batches)
    outputs, after = trained(module, LEARNED, statistics, X)
    normalized = (outputs - LEARNED["params"]["bias"]) / LEARNED["params"]["scale"]
    is_plain = np.allclose(normalized.mean(axis=0), 0.0, atol=1e-4)
    assert is_plain == (num_batches < 3)
    assert int(after["num_batches"]) == min(num_batches + 1, 3)


def test_within_its_bounds_it_normalizes_by_running_statistics() -> None:
    """Within the bounds, training outputs equal acting, and gradients pass through the batch statistics."""
    module = BatchRenorm(warmup=1, max_scale=100.0, max_shift=100.0)
    statistics = _statistics(mean=0.5, variance=4.0, num_batches=1)
    outputs, _ = trained(module, LEARNED, statistics, X)
    acting = acted(module, {**LEARNED, STATISTICS: statistics}, X)
    by_hand = (X - 0.5) / np.sqrt(4.001) * LEARNED["params"]["scale"] + LEARNED["params"]["bias"]
    np.testing.assert_allclose(acting, by_hand, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs, by_hand, rtol=1e-4, atol=1e-4)
    gradient = jax.jit(jax.grad(lambda x: apply_in_training(module, LEARNED, statistics, x)[0].sum()))(X)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-5)  # a common shift of all rows has no effect


def test_the_correction_is_clipped() -> None:
    """The correction is clipped: ``r`` to 3 or 1/3 and ``d`` to 5 or -5, for features far from the statistics."""
    module = BatchRenorm(warmup=1)
    statistics = _statistics(mean=[-1e3, 1e3, -1e3, 1e3], variance=[1e-2, 1e-2, 1e4, 1e4], num_batches=1)
    outputs, _ = trained(module, LEARNED, statistics, X)
    rows = np.asarray(X)
    normalized = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-3)
    factor, shift = np.array([3.0, 3.0, 1 / 3, 1 / 3]), np.array([5.0, -5.0, 5.0, -5.0])
    expected = (normalized * factor + shift) * LEARNED["params"]["scale"] + LEARNED["params"]["bias"]
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


def test_running_statistics_follow_and_acting_leaves_them() -> None:
    module = BatchRenorm(momentum=0.75)
    variables = jax.jit(module.init)(jax.random.key(0), X)
    np.testing.assert_array_equal(variables[STATISTICS]["mean"], 0.0)  # the first batch is not counted
    statistics = variables[STATISTICS]
    for _ in range(40):
        _, statistics = trained(module, {"params": variables["params"]}, statistics, X)
    np.testing.assert_allclose(statistics["mean"], X.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(statistics["variance"], X.var(axis=0), rtol=1e-3)
    _, once = trained(module, {"params": variables["params"]}, variables[STATISTICS], X)
    np.testing.assert_allclose(once["mean"], 0.25 * X.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(once["variance"], 0.75 + 0.25 * X.var(axis=0), rtol=1e-5)
    one_row, rows = (acted(module, {**variables, STATISTICS: statistics}, x) for x in (X[:1], X))
    np.testing.assert_allclose(one_row, np.asarray(rows)[:1], rtol=1e-6)


def test_without_warmup_it_stays_batch_normalization() -> None:
    """``batch_norm`` equals flax's after far more batches than the default warm-up, and counts none."""
    module, statistics = (
        BatchRenorm(warmup=None),
        {k: v for k, v in _statistics(0.5, 4.0).items() if k != "num_batches"},
    )
    outputs, after = trained(module, LEARNED, statistics, X)
    by_hand = (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0) + 1e-3)
    expected = by_hand * LEARNED["params"]["scale"] + LEARNED["params"]["bias"]
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
    assert set(after) == {"mean", "variance"}
    np.testing.assert_allclose(after["mean"], 0.99 * 0.5 + 0.01 * X.mean(axis=0), rtol=1e-5)
    layers = build_torso({"torso": ["batch_norm", {"batch_renorm": {"warmup": None}}]}, keeps_statistics=True).layers
    assert layers[0] == layers[1]


def test_a_dense_layer_is_normalized_before_its_activation() -> None:
    layer = {"dense": {"size": 8, "batch_norm": True}}
    torso = build_torso({"torso": [layer], "activation": "relu"}, keeps_statistics=True)
    variables = jax.jit(torso.init)(jax.random.key(0), X)
    assert set(variables["params"]["Dense_0"]) == {"kernel"}  # no bias
    outputs, _ = trained(torso, {"params": variables["params"]}, variables[STATISTICS], X)
    sums = X @ np.asarray(variables["params"]["Dense_0"]["kernel"])
    expected = np.maximum((sums - sums.mean(axis=0)) / np.sqrt(sums.var(axis=0) + 1e-3), 0.0)
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-4)
    with raises_naming(ValueError, "batch_norm", "running statistics", "CrossQ"):
        build_torso({"torso": [layer]})
    with raises_naming(ValueError, "batch_norm", "'yes'"):
        build_torso({"torso": [{"dense": {"size": 8, "batch_norm": "yes"}}]})


def test_members_of_an_ensemble_have_statistics_of_their_own() -> None:
    torso = build_torso({"torso": [8, "batch_renorm"], "activation": "relu"}, keeps_statistics=True)
    network, actions = EnsembleQNetwork(torso, 3), np.ones((16, 2), np.float32)
    variables = jax.jit(network.init)(jax.random.key(0), X, actions)
    params = {"params": variables["params"]}
    values, statistics = trained(network, params, variables[STATISTICS], X, actions)
    (mean,) = (x for path, x in jax.tree_util.tree_leaves_with_path(statistics) if "mean" in str(path[-1]))
    assert values.shape == (3, 16)
    assert mean.shape == (3, 8)
    assert not np.allclose(*np.asarray(mean)[:2])
    again = {"torso": [8, {"batch_renorm": {"warmup": 100_000}}], "activation": "relu"}
    assert build_torso(again, keeps_statistics=True) == torso
    slow = {"torso": [8, {"batch_renorm": {"momentum": 0.75}}], "activation": "relu"}
    slow_network = EnsembleQNetwork(build_torso(slow, keeps_statistics=True), 3)
    _, other = trained(slow_network, params, variables[STATISTICS], X, actions)
    (slow_mean,) = (x for path, x in jax.tree_util.tree_leaves_with_path(other) if "mean" in str(path[-1]))
    np.testing.assert_allclose(slow_mean, 25 * np.asarray(mean), rtol=1e-4)
    acting = acted(network, {**params, STATISTICS: statistics}, X, actions)
    assert not np.allclose(acting, values)


def test_devices_share_the_statistics_of_a_minibatch() -> None:
    """Outputs, running statistics and averaged gradients on several devices equal those on one device."""
    module = BatchRenorm(warmup=1)
    statistics = _statistics(mean=0.5, variance=4.0, num_batches=1)

    def gradient(x: jax.Array) -> tuple[Any, Any]:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            hidden = x @ params["kernel"]
            outputs, changed = apply_in_training(module, {"params": params["renorm"]}, statistics, hidden)
            return jnp.tanh(outputs).mean(), changed

        gradients, changed = jax.grad(loss, has_aux=True)({"kernel": 0.3 * jnp.eye(4), "renorm": LEARNED["params"]})
        return mean_over_shares(gradients), changed

    mesh = jax.make_mesh((4,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    shares = jax.shard_map(
        gradient, mesh=mesh, in_specs=PartitionSpec(DATA_AXIS), out_specs=PartitionSpec(), check_vma=False
    )
    for together, alone in zip(jax.tree.leaves(jax.jit(shares)(X)), jax.tree.leaves(jax.jit(gradient)(X)), strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-6)


def test_only_who_keeps_statistics_may_have_them() -> None:
    with raises_naming(ValueError, "batch_renorm", "running statistics", "CrossQ", "layer_norm"):
        build_torso({"torso": [8, "batch_renorm"]})

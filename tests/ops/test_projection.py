"""Projected weights have norm 1 over the inputs of each unit, after every step of an optimizer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.sac import SACWorkflow
from evorl.networks.q_networks import EnsembleQNetwork
from evorl.networks.torsos import build_torso
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.projection import unit_norm_kernels, unit_norm_kernels_and_gains
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import arrays

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_the_norm_is_over_the_inputs_of_each_unit() -> None:
    """Each output of a non-square kernel has norm 1, and not each input; members of an ensemble are separate."""
    params = {
        "Dense_0": {"kernel": _normal(6, 4), "bias": _normal(4)},
        "members": {"head": {"kernel": _normal(3, 5, 2), "bias": _normal(3, 2)}},
        "Conv_0": {"kernel": _normal(3, 3, 2, 5)},
        "conv1": {"kernel": _normal(3, 3, 2, 5)},  # an attribute of a user's module
        "converter": {"kernel": _normal(6, 4)},
        "ConvHead": {"Dense_0": {"kernel": _normal(2, 4, 6, 3)}},
        "LayerNorm_0": {"scale": _normal(4), "bias": _normal(4)},
        "log_std": _normal(4),
    }
    projected = jax.jit(unit_norm_kernels)(params)
    dense, head = projected["Dense_0"]["kernel"], projected["members"]["head"]["kernel"]
    np.testing.assert_allclose(np.linalg.norm(dense, axis=0), np.ones(4), rtol=1e-5)
    assert not np.allclose(np.linalg.norm(dense, axis=1), 1.0, atol=0.05)
    np.testing.assert_allclose(np.linalg.norm(head, axis=1), np.ones((3, 2)), rtol=1e-5)
    for name in ("Conv_0", "conv1"):
        kernel = np.reshape(projected[name]["kernel"], (-1, 5))
        np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), np.ones(5), rtol=1e-5)
    inner = projected["ConvHead"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(np.linalg.norm(inner, axis=-2), np.ones((2, 4, 3)), rtol=1e-5)
    np.testing.assert_allclose(dense / params["Dense_0"]["kernel"] > 0.0, True)  # only the length changes
    before, after = arrays(params), arrays(projected)
    unchanged = [path for path in before if "kernel" not in path]
    assert len(unchanged) == 5
    for path in unchanged:
        np.testing.assert_array_equal(after[path], before[path])


def test_gains_and_shifts_are_scaled_together() -> None:
    """Mean squares of gain and shift of each normalization sum to 1; biases of dense layers and scalers are free."""
    params = {
        "Dense_0": {"kernel": _normal(6, 4), "bias": _normal(4)},
        "members": {"BatchRenorm_0": {"scale": 2.0 + _normal(3, 4), "bias": _normal(3, 4)}},
        "RMSNorm_0": {"scale": 5.0 + _normal(4)},
        "Scaler_0": {"scale": _normal(4)},
    }
    after = jax.jit(unit_norm_kernels_and_gains)(params)
    np.testing.assert_allclose(np.linalg.norm(after["Dense_0"]["kernel"], axis=0), 1.0, rtol=1e-5)
    norm, rms = after["members"]["BatchRenorm_0"], after["RMSNorm_0"]["scale"]
    squares = np.square(norm["scale"]).sum(axis=-1) + np.square(norm["bias"]).sum(axis=-1)
    np.testing.assert_allclose(squares, 4.0, rtol=1e-5)  # the number of features, for each member of an ensemble
    assert not np.allclose(np.square(norm["scale"]).sum(axis=-1), 4.0, rtol=1e-2)  # a planted fault: gains alone
    np.testing.assert_allclose(np.square(rms).sum(), 4.0, rtol=1e-5)
    ratio = norm["scale"] / params["members"]["BatchRenorm_0"]["scale"]
    np.testing.assert_allclose(ratio, norm["bias"] / params["members"]["BatchRenorm_0"]["bias"], rtol=1e-4)
    for layer, name in (("Dense_0", "bias"), ("Scaler_0", "scale")):
        np.testing.assert_array_equal(after[layer][name], params[layer][name])


def test_weights_of_zero_stay_finite() -> None:
    np.testing.assert_array_equal(unit_norm_kernels({"kernel": jnp.zeros((3, 2))})["kernel"], 0.0)


@pytest.mark.parametrize("part", [None, "params"])
def test_every_step_projects_all_kernels_of_an_ensemble(part: str | None) -> None:
    """Steps of the optimizer, also with another learning rate for a part, keep all kernels at norm 1."""
    network = EnsembleQNetwork(build_torso({"torso": [8, "layer_norm"]}), 3)
    obs, actions = _normal(5, 3), _normal(5, 1)
    params = jax.jit(network.init)(jax.random.key(0), obs, actions)
    optimizer = Optimizer(learning_rate=0.1, projection="unit_norm")

    def loss(params: Any) -> tuple[jax.Array, None]:
        return jnp.square(network.apply(params, obs, actions) - 3.0).mean(), None

    @jax.jit
    def step(params: Any) -> Any:
        scaled = optimizer.scaled(part or "", 0.5 if part else None)
        return gradient_step(loss, scaled, PyTreeDict(params), scaled.init(PyTreeDict(params)))[0]

    after = arrays(step(params))
    kernels = {path: x for path, x in after.items() if "kernel" in path}
    assert len(kernels) == 2
    for x in kernels.values():
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-5)
    assert any((x != before).any() for x, before in zip(after.values(), arrays(params).values(), strict=True))


def test_other_projections_are_refused() -> None:
    with raises_naming(ValueError, "projection", "unit_norm"):
        SACWorkflow.build_from_config({"env": "Pendulum-v1", "critic_optimizer": {"projection": "unit"}})

"""Dormant units are found by their activity, and recycled without a change of the outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.config.custom_parts import CustomPart
from evorl.networks.activations import KernelActivation
from evorl.networks.blocks import Dense
from evorl.networks.dormant_units import Recycled, check_recyclable, recycle_dormant_units
from evorl.networks.implicit_quantiles import implicit
from evorl.networks.q_networks import QNetwork
from evorl.networks.torsos import Torso, build_torso
from tests.support.errors import raises_naming
from tests.support.small_workflows import arrays

OBS = jax.random.normal(jax.random.key(1), (32, 3))


def _network(num_fractions: int | None = None, **options: Any) -> tuple[QNetwork, Any]:
    """Return a network with hidden layers of 6 and 5 units; units 1 and 4, and unit 2 of the second one, are dead."""
    network = QNetwork(build_torso({"torso": [6, 5], "activation": "relu"}), num_actions=2, **options)
    network = network if num_fractions is None else implicit(network, num_fractions)
    params = network.init(jax.random.key(0), OBS)
    torso = params["params"]["torso"]
    for layer, units in (("Dense_0", (1, 4)), ("Dense_1", (2,))):
        for unit in units:
            torso[layer]["bias"] = torso[layer]["bias"].at[unit].set(-100.0)
    return network, params


def _recycled(network: QNetwork, params: Any, threshold: float = 0.0) -> Recycled:
    run = jax.jit(lambda params: recycle_dormant_units(network, params, (OBS,), threshold, jax.random.key(3)))
    return run(params)


@pytest.mark.parametrize("num_fractions", [None, 64])
@pytest.mark.parametrize("dueling", [False, True])
def test_incoming_weights_are_new_and_outgoing_ones_zero(dueling: bool, num_fractions: int | None) -> None:
    network, params = _network(num_fractions, dueling=dueling)
    recycled = _recycled(network, params)
    new, old = recycled.params["params"], params["params"]
    np.testing.assert_allclose(recycled.share, 3 / 11)
    first, second = new["torso"]["Dense_0"], new["torso"]["Dense_1"]
    heads = [name for name in new if name not in ("torso", "fractions")]
    assert len(heads) == 1 + dueling
    changed = {path: (arrays(recycled.params)[path] != x) for path, x in arrays(params).items()}
    is_new = arrays(recycled.is_new)
    assert all((is_new[path] | ~changed[path]).all() for path in changed)  # nothing else changes
    assert sorted(set(np.argwhere(is_new["['params']['torso']['Dense_0']['kernel']"])[:, 1])) == [1, 4]
    np.testing.assert_array_equal(first["bias"][np.array([1, 4])], 0.0)
    assert (first["kernel"][:, 1] != old["torso"]["Dense_0"]["kernel"][:, 1]).all()
    bound = np.sqrt(6 / (3 + 6))  # Xavier's rule, for all initial weights
    assert np.abs(first["kernel"][:, np.array([1, 4])]).max() <= bound
    np.testing.assert_array_equal(second["kernel"][np.array([1, 4])], 0.0)  # also to the dormant unit behind
    assert (second["kernel"][np.array([0, 2, 3, 5]), 2] != old["torso"]["Dense_1"]["kernel"][[0, 2, 3, 5], 2]).all()
    for name in heads:
        np.testing.assert_array_equal(new[name]["kernel"][2], 0.0)
        np.testing.assert_array_equal(new[name]["bias"], old[name]["bias"])  # never of the output layer
    np.testing.assert_allclose(network.apply(recycled.params, OBS), network.apply(params, OBS), atol=1e-6)


def test_recycled_units_are_active() -> None:
    network, params = _network()
    after = _recycled(network, _recycled(network, params).params)
    np.testing.assert_allclose(after.share, 0.0)


def test_activity_is_relative_to_the_layer() -> None:
    """A unit with a twentieth of the activity of the others is dormant at 0.1, and not at 0.01, at any scale."""
    network, params = _network()
    torso = params["params"]["torso"]["Dense_0"]
    torso["kernel"], torso["bias"] = jnp.ones((3, 6)).at[:, 3].set(0.05), jnp.zeros(6)
    for scale in (1.0, 1e3):
        torso["kernel"] = torso["kernel"] * scale
        shares = [float(_recycled(network, params, threshold).share) for threshold in (0.01, 0.1)]
        assert round((shares[1] - shares[0]) * 11) >= 1
        mask = np.asarray(_recycled(network, params, 0.1).is_new["params"]["torso"]["Dense_0"]["bias"])
        np.testing.assert_array_equal(mask, np.arange(6) == 3)


@pytest.mark.parametrize("torso", [[], [8, {"bro": 1}], [8, "layer_norm"], "minatar"])
def test_other_layers_are_refused(torso: Any) -> None:
    with raises_naming(ValueError, "agent.network.torso", "redo_interval=null"):
        check_recyclable(QNetwork(build_torso({"torso": torso}), num_actions=2), "agent.network.torso")


def _gated(x: jax.Array) -> jax.Array:
    """Return the product of the two halves of ``[..., F]``, ``[..., F / 2]``."""
    return jnp.prod(jnp.stack(jnp.split(x, 2, axis=-1)), axis=0)


@pytest.mark.parametrize(
    "activation", [KernelActivation("rbf2d"), CustomPart("my_parts:gated", _gated)], ids=["rbf2d", "custom"]
)
@pytest.mark.parametrize("of_torso", [False, True])
def test_activations_that_join_units_are_refused(activation: Any, of_torso: bool) -> None:
    layer = Dense(8) if of_torso else Dense(8, activation)
    torso = Torso((Dense(8, "relu"), layer), activation if of_torso else "relu")
    with raises_naming(ValueError, "agent.network.torso", "rbf2d", "relu", "redo_interval=null"):
        check_recyclable(QNetwork(torso, num_actions=2), "agent.network.torso")


def test_elementwise_activations_are_accepted() -> None:
    layers = (Dense(8, KernelActivation()), Dense(8, CustomPart("my_parts:tanh", jnp.tanh)))
    check_recyclable(QNetwork(Torso(layers, layer_norm=True), num_actions=2), "agent.network.torso")

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.networks.heads import PolicyNetwork, ValueNetwork, network_input
from evorl.networks.q_networks import EnsembleQNetwork, QNetwork
from evorl.networks.torsos import build_torso, dense_torso
from evorl.ops.trees import as_float
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming

KEY = jax.random.key(0)
OBS, ACTIONS = (np.random.default_rng(1).normal(size=(5, size)).astype(np.float32) for size in (4, 2))
DICT_OBS = PyTreeDict(state=jnp.ones(3), privileged=jnp.zeros(5))
TORSO = dense_torso(8, 8, activation="relu")


def test_policy_starts_near_the_same_output_everywhere() -> None:
    policy = PolicyNetwork(TORSO, 6)
    params = jax.jit(policy.init)(KEY, OBS)
    outputs = jax.jit(policy.apply)(params, OBS)
    assert outputs.shape == (5, 6)
    assert np.abs(outputs).max() < 0.2
    assert jax.eval_shape(policy.apply, params, OBS[0]).shape == (6,)


def test_policy_with_state_independent_deviation() -> None:
    policy = PolicyNetwork(TORSO, 6, state_independent_std=True, initial_log_std=-0.5, output_scale=1.0)
    params = jax.jit(policy.init)(KEY, OBS)
    outputs = np.asarray(jax.jit(policy.apply)(params, OBS))
    assert params["params"]["log_std"].shape == (3,)
    np.testing.assert_array_equal(outputs[:, 3:], -0.5)
    assert outputs[:, :3].std(axis=0).min() > 0.0
    with raises_naming(ValueError, "even", "num_outputs=5"):
        PolicyNetwork(TORSO, 5, state_independent_std=True).init(KEY, OBS)


def test_value_has_no_trailing_axis() -> None:
    value = ValueNetwork(TORSO, observation_ndim=2)
    params = jax.jit(value.init)(KEY, np.zeros((1, 3, 2), np.float32))
    assert jax.jit(value.apply)(params, np.zeros((7, 5, 3, 2), np.float32)).shape == (7, 5)


def test_pixels_enter_scaled_through_any_torso() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 6, 1)).astype(np.uint8)
    cnn = build_torso({"torso": [{"conv": {"filters": 2, "stride": 2}}, "flatten", 4]})
    for torso in (TORSO, cnn):
        value = ValueNetwork(torso, observation_ndim=3)
        params = jax.jit(value.init)(KEY, pixels)
        apply, scaled = jax.jit(value.apply), (pixels / 255.0).astype(np.float32)
        np.testing.assert_allclose(apply(params, pixels), apply(params, scaled), rtol=1e-5)


@pytest.mark.parametrize("num_critics", [1, 2, 3])
def test_ensemble_members_are_independent_q_networks(num_critics: int) -> None:
    ensemble, single = EnsembleQNetwork(TORSO, num_critics), QNetwork(TORSO)
    params = jax.jit(ensemble.init)(KEY, OBS, ACTIONS)
    values, apply = jax.jit(ensemble.apply)(params, OBS, ACTIONS), jax.jit(single.apply)
    assert values.shape == (num_critics, 5)
    params, values = jax.tree.map(np.asarray, (params, values))
    kernels = params["params"]["members"]["torso"]["Dense_0"]["kernel"]
    for i in range(num_critics):
        member = jax.tree.map(lambda x, i=i: x[i], params["params"]["members"])
        np.testing.assert_allclose(apply({"params": member}, OBS, ACTIONS), values[i], rtol=1e-4, atol=1e-5)
        assert not any(np.allclose(kernels[i], kernels[j]) for j in range(i))


def test_ensemble_of_discrete_action_values() -> None:
    ensemble = EnsembleQNetwork(TORSO, 2, num_actions=3)
    params = jax.jit(ensemble.init)(KEY, OBS)
    assert jax.jit(ensemble.apply)(params, OBS).shape == (2, 5, 3)
    assert jax.jit(ensemble.apply)(params, OBS.reshape(5, 1, 4)).shape == (2, 5, 1, 3)


def test_ensemble_of_distributions() -> None:
    """Atoms are the last axis, and each ensemble member equals a Q network with its parameters."""
    continuous, discrete = EnsembleQNetwork(TORSO, 3, num_atoms=7), EnsembleQNetwork(TORSO, 3, 2, num_atoms=7)
    params = jax.jit(continuous.init)(KEY, OBS, ACTIONS)
    atoms = np.asarray(jax.jit(continuous.apply)(params, OBS, ACTIONS))
    assert atoms.shape == (3, 5, 7)
    last = {"params": jax.tree.map(lambda x: np.asarray(x)[2], params["params"]["members"])}
    alone = jax.jit(QNetwork(TORSO, num_atoms=7).apply)(last, OBS, ACTIONS)
    np.testing.assert_allclose(alone, atoms[2], rtol=1e-4, atol=1e-5)
    assert jax.jit(discrete.init_with_output)(KEY, OBS)[0].shape == (3, 5, 2, 7)


def test_wrong_use_is_refused_in_words() -> None:
    with raises_naming(ValueError, "Q network", "num_actions"):
        QNetwork(TORSO).init(KEY, OBS)
    with raises_naming(ValueError, "Q network", "num_actions"):
        QNetwork(TORSO, num_actions=3).init(KEY, OBS, ACTIONS)
    with raises_naming(ValueError, "agent.network.torso", "convolutions"):
        QNetwork(build_torso({"torso": "minatar"}), observation_ndim=3).init(KEY, jnp.zeros((5, 8, 8, 1)), ACTIONS)
    with raises_naming(ValueError, "at least one critic", "num_critics=0"):
        EnsembleQNetwork(TORSO, 0).init(KEY, OBS, ACTIONS)


@pytest.mark.parametrize("network", [PolicyNetwork(TORSO, 4), ValueNetwork(TORSO), EnsembleQNetwork(TORSO, 2)])
def test_equal_networks_share_one_program(network) -> None:
    traces = []

    def init(module, key: jax.Array) -> dict:
        traces.append(module)
        return module.init(key, OBS, ACTIONS) if isinstance(module, EnsembleQNetwork) else module.init(key, OBS)

    compiled = jax.jit(init, static_argnums=0)
    compiled(network, KEY)
    twin = network.clone(torso=dense_torso(8, 8, activation="relu"))
    assert twin == network
    compiled(twin, KEY)
    assert len(traces) == 1


def test_pixels_are_scaled_and_other_integers_cast() -> None:
    np.testing.assert_allclose(as_float(jnp.array([0, 255], jnp.uint8)), [0.0, 1.0])
    for array in (jnp.array([7]), jnp.array([7.0]), jnp.array([7], jnp.int16), np.array([7.0])):
        result = as_float(array)
        assert result.dtype == jnp.float32
        assert result == 7.0
    assert as_float(jnp.array(True)) == 1.0


@pytest.mark.parametrize(
    ("shape", "observation_ndim", "input_ndim", "expected"),
    [
        ((4, 3), 1, 1, (4, 3)),
        ((3,), 1, 1, (3,)),
        ((2, 4, 5, 6), 2, 1, (2, 4, 30)),
        ((4,), 0, 1, (4, 1)),
        ((2, 8, 8, 3), 3, 3, (2, 8, 8, 3)),
        ((2, 8, 8, 3), 3, 1, (2, 192)),
    ],
)
def test_each_observation_gets_the_rank_of_the_torso(shape, observation_ndim, input_ndim, expected) -> None:
    assert network_input(jnp.zeros(shape), observation_ndim, input_ndim).shape == expected


def test_what_no_network_takes_is_refused() -> None:
    with raises_naming(ValueError, "dict with privileged, state"):
        network_input(DICT_OBS, 1, 1)
    with raises_naming(ValueError, "3 axes, got 1"):
        network_input(jnp.zeros((4, 3)), 1, 3)
    with raises_naming(ValueError, "observation with 2 axes"):
        network_input(jnp.zeros(4), 2, 1)

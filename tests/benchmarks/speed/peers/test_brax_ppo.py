"""The JAX function that brax's trainer lacks is provided."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.comparison import COMPARISONS
from benchmarks.speed.peers.brax_ppo import AS_SHIPPED, supply_replication


def test_copies_lie_along_a_new_axis_over_the_devices(monkeypatch):
    monkeypatch.setattr(jax, "device_put_replicated", None, raising=False)  # put back afterwards
    monkeypatch.delattr(jax, "device_put_replicated")
    supply_replication()
    devices = jax.local_devices()
    replicated = jax.device_put_replicated({"x": jnp.arange(3.0), "n": jnp.array(1)}, devices)
    assert jax.tree.map(jnp.shape, replicated) == {"x": (len(devices), 3), "n": (len(devices),)}
    assert {shard.device for shard in replicated["x"].addressable_shards} == set(devices)
    for shard in replicated["x"].addressable_shards:
        np.testing.assert_array_equal(shard.data, [[0.0, 1.0, 2.0]])


def test_a_jax_that_has_it_keeps_its_function(monkeypatch):
    function = inspect.getmembers  # any function
    monkeypatch.setattr(jax, "device_put_replicated", function, raising=False)
    supply_replication()
    assert jax.device_put_replicated is function


def test_both_sides_have_the_same_settings():
    ours = COMPARISONS["ppo_hopper_brax"].sides["evorl"].settings["config"]
    theirs = COMPARISONS["ppo_hopper_brax"].sides["brax"].settings["config"]
    for config in (theirs, AS_SHIPPED):
        assert config["num_envs"] == ours["num_envs"]
        assert config["unroll_length"] == ours["rollout_length"]
        # brax counts in unrolls: one per environment, each used once per pass.
        assert config["batch_size"] * config["num_minibatches"] == ours["num_envs"]
        assert config["num_minibatches"] == ours["num_minibatches"]
        assert config["num_updates_per_batch"] == ours["num_epochs"]
        assert config["hidden_sizes"] == ours["agent"]["network"]["torso"]
    assert {name: theirs[name] for name in ours["optimizer"]} == ours["optimizer"]

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.ops.collectives import DATA_AXIS
from evorl.replay_buffers import ReplayState, UniformReplayBuffer

BUFFER = UniformReplayBuffer(capacity=22, num_envs=4)  # rounded up to 6 rows
SPEC = {"id": jax.ShapeDtypeStruct((), jnp.int32), "obs": jax.ShapeDtypeStruct((2,), jnp.float32)}


def _filled(num_rows: int) -> ReplayState:
    ids = jnp.arange(num_rows * 4, dtype=jnp.int32).reshape(num_rows, 4)
    return BUFFER.add(BUFFER.init(SPEC), {"id": ids, "obs": jnp.stack([ids, -ids], axis=-1).astype(jnp.float32)})


def test_capacity_is_rounded_up_to_whole_rows() -> None:
    assert BUFFER.num_rows == 6
    assert BUFFER.num_bytes(SPEC) == 6 * 4 * (4 + 8)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(BUFFER.init(SPEC).data)) == BUFFER.num_bytes(SPEC)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 3, "num_envs": 4}, "at least num_envs=4 and below"),
        ({"capacity": 2**31, "num_envs": 4}, "got 2147483648"),
        ({"capacity": 8, "num_envs": 0}, "at least one environment"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UniformReplayBuffer(**arguments)


def test_can_sample_counts_transitions() -> None:
    state = _filled(2)
    assert int(BUFFER.num_transitions(state)) == 8
    assert bool(BUFFER.can_sample(state, 8))
    assert not bool(BUFFER.can_sample(state, 9))
    assert int(BUFFER.num_transitions(BUFFER.add(_filled(5), jax.tree.map(lambda x: x[:3], _filled(5).data)))) == 24


def test_fields_of_a_sample_belong_together() -> None:
    sample = jax.jit(lambda s, k: BUFFER.sample(s, k, 50))(_filled(3), jax.random.key(0))
    assert sample["obs"].shape == (50, 2)
    np.testing.assert_array_equal(sample["obs"], np.stack([sample["id"], -sample["id"]], axis=-1))
    assert sample["id"].max() < 12


@pytest.mark.parametrize("num_rows", [3, 6])
def test_sampling_is_uniform_over_what_is_stored(num_rows: int) -> None:
    draws, cells = 20_000, num_rows * 4
    sample = BUFFER.sample(_filled(num_rows), jax.random.key(1), draws)
    counts = np.bincount(sample["id"], minlength=cells)
    assert len(counts) == cells
    chi_square = ((counts - draws / cells) ** 2 / (draws / cells)).sum()
    degrees = cells - 1
    # Mean and standard deviation of the statistic are known: four deviations are beyond doubt with a fixed key.
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)


def test_an_empty_buffer_gives_zeros_and_legacy_keys_work() -> None:
    sample = BUFFER.sample(BUFFER.init(SPEC), jax.random.PRNGKey(0), 5)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(sample))


@pytest.mark.parametrize("devices", [2, 4])
def test_samples_do_not_depend_on_the_number_of_devices(devices: int) -> None:
    mesh = jax.make_mesh(
        (devices,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices]
    )
    spec = ReplayState(data=PartitionSpec(None, DATA_AXIS), cursor=PartitionSpec(), size=PartitionSpec())
    sharded = jax.jit(
        jax.shard_map(
            lambda state, key: BUFFER.sample(state, key, 16),
            mesh=mesh,
            in_specs=(spec, PartitionSpec()),
            out_specs=PartitionSpec(),
        )
    )
    state, key = _filled(6), jax.random.key(5)
    jax.tree.map(np.testing.assert_array_equal, sharded(state, key), BUFFER.sample(state, key, 16))


def test_the_node_is_structure_only() -> None:
    assert jax.tree.leaves(BUFFER) == []
    assert jax.tree.structure(BUFFER) == jax.tree.structure(UniformReplayBuffer(capacity=22, num_envs=4))

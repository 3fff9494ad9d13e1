"""Collectives without a mesh are identities; on four devices they join what the shards hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.ops import collectives
from evorl.ops.collectives import DATA_AXIS, ENV_AXIS

SHARDS = 4
ROWS = jnp.arange(8.0)
WHOLE, SPLIT = PartitionSpec(), PartitionSpec
AXES = pytest.mark.parametrize("axis", [ENV_AXIS, DATA_AXIS])


def _on_mesh(axis: str, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    mesh = jax.make_mesh((SHARDS,), (axis,), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def test_without_a_mesh_everything_is_the_identity() -> None:
    tree = {"x": ROWS}
    assert collectives.num_shards() == 1
    np.testing.assert_array_equal(collectives.local_indices(3), [0, 1, 2])
    for fn in (
        collectives.gather_rows,
        collectives.sum_shards,
        collectives.mean_over_shares,
        collectives.minibatch_share,
        lambda t: collectives.on_leader(lambda u: u, t),
    ):
        assert fn(tree)["x"] is ROWS


@AXES
def test_indices_are_global_and_rows_come_back_in_order(axis: str) -> None:
    def body(rows: jax.Array, keys: jax.Array) -> Any:
        return collectives.local_indices(8), collectives.gather_rows((rows, keys)), collectives.num_shards()

    keys = jax.random.split(jax.random.key(0), 8)
    indices, (rows, all_keys), shards = _on_mesh(axis, body, (SPLIT(axis), SPLIT(axis)), (SPLIT(axis), WHOLE, WHOLE))(
        ROWS, keys
    )
    np.testing.assert_array_equal(indices, np.arange(8))
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(jax.random.key_data(all_keys), jax.random.key_data(keys))
    assert shards == SHARDS


def test_rows_that_cannot_be_shared_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="6 rows cannot be shared evenly by 4 devices"):
        _on_mesh(ENV_AXIS, lambda: collectives.local_indices(6), (), SPLIT(ENV_AXIS))()


@AXES
def test_sums_join_all_shards(axis: str) -> None:
    total = _on_mesh(axis, lambda x: collectives.sum_shards({"sum": x.sum()}), (SPLIT(axis),), WHOLE)(ROWS)
    assert total["sum"] == ROWS.sum()


def test_minibatches_are_shared_and_gradients_averaged_on_the_data_axis_only() -> None:
    def gradient(weight: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        share = collectives.minibatch_share(batch)
        loss = jax.grad(lambda w: jnp.mean((w["w"] * share - 1.0) ** 2))({"w": weight})
        return collectives.mean_over_shares(loss)["w"], jnp.asarray(share.shape[0])

    weight = jnp.array(0.3)
    alone, _ = gradient(weight, ROWS)
    for axis, share in ((DATA_AXIS, 2), (ENV_AXIS, 8)):
        joined, rows = _on_mesh(axis, gradient, (WHOLE, WHOLE), WHOLE)(weight, ROWS)
        np.testing.assert_allclose(joined, alone, rtol=1e-6)
        assert rows == share


@AXES
def test_the_leaders_update_reaches_every_shard(axis: str) -> None:
    """Of every dtype that a training state holds, keys included."""

    def update(x: jax.Array, key: jax.Array) -> dict:
        return {"f": x.mean(), "i": jnp.arange(3), "flag": x > 3, "key": jax.random.split(key, 2), "u": jnp.uint8(200)}

    def body(x: jax.Array, key: jax.Array) -> dict:
        result = collectives.on_leader(update, x, key)
        result["key"] = jax.random.key_data(result["key"])
        return jax.tree.map(lambda leaf: leaf[None], result)

    key = jax.random.key(3)
    stacked = _on_mesh(axis, body, (WHOLE, WHOLE), SPLIT(axis))(ROWS, key)
    expected = update(ROWS, key)
    expected["key"] = jax.random.key_data(expected["key"])
    for name, value in expected.items():
        assert stacked[name].dtype == value.dtype
        for shard in range(SHARDS):
            np.testing.assert_array_equal(stacked[name][shard], value)

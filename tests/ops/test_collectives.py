"""Collectives without a mesh are identities; on four devices they combine the shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.ops import collectives
from evorl.ops.collectives import DATA_AXIS, MEMBER_AXIS
from tests.support.errors import raises_naming

SHARDS = 4
ROWS = jnp.arange(8.0)
WHOLE, SPLIT = PartitionSpec(), PartitionSpec(DATA_AXIS)


def _on_mesh(fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    mesh = jax.make_mesh((SHARDS,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
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
    ):
        assert fn(tree)["x"] is ROWS


def test_indices_are_global_and_rows_come_back_in_order() -> None:
    def body(rows: jax.Array, keys: jax.Array) -> Any:
        return collectives.local_indices(8), collectives.gather_rows((rows, keys)), collectives.num_shards()

    keys = jax.random.split(jax.random.key(0), 8)
    indices, (rows, all_keys), shards = _on_mesh(body, (SPLIT, SPLIT), (SPLIT, WHOLE, WHOLE))(ROWS, keys)
    np.testing.assert_array_equal(indices, np.arange(8))
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(jax.random.key_data(all_keys), jax.random.key_data(keys))
    assert shards == SHARDS


def test_members_have_an_axis_of_their_own() -> None:
    """Only the member axis is sharded; a member's environments stay on one device."""

    def body(rows: jax.Array) -> Any:
        of_members = collectives.local_indices(8, MEMBER_AXIS), collectives.gather_rows(rows, mesh_axis=MEMBER_AXIS)
        return *of_members, collectives.num_shards(MEMBER_AXIS), collectives.local_indices(3), collectives.num_shards()

    mesh = jax.make_mesh((SHARDS,), (MEMBER_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    split = PartitionSpec(MEMBER_AXIS)
    on_mesh = jax.shard_map(
        body, mesh=mesh, in_specs=split, out_specs=(split, WHOLE, WHOLE, WHOLE, WHOLE), check_vma=False
    )
    indices, rows, shards, of_environments, environment_shards = jax.jit(on_mesh)(ROWS)
    np.testing.assert_array_equal(indices, np.arange(8))
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(of_environments, [0, 1, 2])
    assert (shards, environment_shards) == (SHARDS, 1)


def test_shares_of_a_minibatch_are_its_rows_in_order() -> None:
    batch = {"x": jnp.arange(24.0).reshape(8, 3), "keys": jax.random.split(jax.random.key(0), 8)}
    shares = _on_mesh(collectives.minibatch_share, (WHOLE,), SPLIT)(batch)
    np.testing.assert_array_equal(shares["x"], batch["x"])
    np.testing.assert_array_equal(jax.random.key_data(shares["keys"]), jax.random.key_data(batch["keys"]))


@pytest.mark.parametrize(("num_rows", "multiple_of"), [(8, 1), (6, 1), (3, 1), (10, 2), (6, 4)])
def test_shares_cover_all_rows_in_order(num_rows: int, multiple_of: int) -> None:
    def body() -> jax.Array:
        first, count = collectives.share_of(num_rows, multiple_of)
        assert count % multiple_of == 0
        return collectives.gather_rows(first + jnp.arange(count))

    rows = _on_mesh(body, (), WHOLE)()
    np.testing.assert_array_equal(rows[:num_rows], np.arange(num_rows))
    assert len(rows) < num_rows + SHARDS * multiple_of
    assert collectives.share_of(num_rows, multiple_of) == (0, -(-num_rows // multiple_of) * multiple_of)


def test_rows_that_cannot_be_shared_evenly_are_refused() -> None:
    with raises_naming(ValueError, "6 rows", "4 devices"):
        _on_mesh(lambda: collectives.local_indices(6), (), SPLIT)()


def test_sums_join_all_shards() -> None:
    total = _on_mesh(lambda x: collectives.sum_shards({"sum": x.sum()}), (SPLIT,), WHOLE)(ROWS)
    assert total["sum"] == ROWS.sum()


@pytest.mark.parametrize(("num_rows", "share"), [(8, 2), (6, 6)])
def test_minibatches_are_shared_if_that_is_even_and_gradients_averaged(num_rows: int, share: int) -> None:
    def gradient(weight: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = collectives.minibatch_share(batch)
        loss = jax.grad(lambda w: jnp.mean((w["w"] * rows - 1.0) ** 2))({"w": weight})
        return collectives.mean_over_shares(loss)["w"], jnp.asarray(rows.shape[0])

    weight, batch = jnp.array(0.3), ROWS[:num_rows]
    alone, _ = gradient(weight, batch)
    joined, rows = _on_mesh(gradient, (WHOLE, WHOLE), WHOLE)(weight, batch)
    np.testing.assert_allclose(joined, alone, rtol=1e-6)
    assert rows == share


def test_agents_know_what_those_of_their_copy_have() -> None:
    def method(x: jax.Array, key: jax.Array) -> Any:
        keys, shared = collectives.of_all_agents(key, 3), collectives.of_all_agents(x, 3)
        return shared.sum(), collectives.agent_number(), jax.random.key_data(keys[0])

    keys = jax.random.split(jax.random.key(0), 6)
    total, number, first = jax.jit(collectives.over_agents(method, 3))(jnp.arange(6.0), keys)
    np.testing.assert_array_equal(total, [3, 3, 3, 12, 12, 12])
    np.testing.assert_array_equal(number, [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(first, jax.random.key_data(keys)[jnp.array([0, 0, 0, 3, 3, 3])])


def test_what_agents_share_is_computed_once_for_a_copy() -> None:
    def method(x: jax.Array) -> jax.Array:
        return jnp.tanh(collectives.of_all_agents(x, 3).sum()) + x

    jaxpr = jax.make_jaxpr(collectives.over_agents(method, 3))(jnp.arange(6.0))
    tanh = [equation for equation in jaxpr.eqns if equation.primitive.name == "tanh"]
    assert [equation.outvars[0].aval.shape for equation in tanh] == [(2,)]

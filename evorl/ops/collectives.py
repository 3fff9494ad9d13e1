"""Collective operations between the shards of a device mesh; without a mesh, there is a single shard.

A step is written for the rows of one shard. When the execution layer runs it inside ``jax.shard_map``, the axis name
``DATA_AXIS`` is bound, and these functions communicate between shards: environments are sharded, every minibatch is
replicated and its rows are divided among the devices, and gradients are averaged. The result equals that of one device,
up to the order of floating-point sums.

A mesh may instead shard the members of a population, each with all its environments, along ``MEMBER_AXIS``. On each
device, ``jax.vmap`` maps over members with the axis name ``LOCAL_MEMBER_AXIS`` and over seeds with ``LOCAL_SEED_AXIS``.

In a multi-agent environment, each agent is a row. Code is written for a single agent, and ``jax.vmap`` maps over the
agents of one copy of the environment with the axis name ``AGENT_AXIS``.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

DATA_AXIS = "data"
MEMBER_AXIS = "members"
LOCAL_MEMBER_AXIS = "local_members"
LOCAL_SEED_AXIS = "local_seeds"
AGENT_AXIS = "agents"
Tree = TypeVar("Tree")
_has_whole_batch = contextvars.ContextVar("has_whole_batch", default=False)


@contextlib.contextmanager
def whole_batch() -> Iterator[None]:
    """Context for tracing losses of a whole batch on every device: ``DATA_AXIS`` then counts as a single shard."""
    token = _has_whole_batch.set(True)
    try:
        yield
    finally:
        _has_whole_batch.reset(token)


def _on_mesh(mesh_axis: str = DATA_AXIS) -> bool:
    try:
        jax.lax.axis_size(mesh_axis)
    except NameError:
        return False
    return mesh_axis != DATA_AXIS or not _has_whole_batch.get()


def num_shards(mesh_axis: str = DATA_AXIS) -> int:
    """Return the number of shards into which ``mesh_axis`` divides the rows of this step; 1 without this axis."""
    return jax.lax.axis_size(mesh_axis) if _on_mesh(mesh_axis) else 1


def num_side_by_side() -> int:
    """Return the number of copies of this step on each device: its number of seeds times its number of members."""
    return num_shards(LOCAL_SEED_AXIS) * num_shards(LOCAL_MEMBER_AXIS)


def local_indices(num_rows: int, mesh_axis: str = DATA_AXIS) -> jax.Array:
    """Return this shard's global row indices, int32 ``[num_rows / num_shards]``; raise ``ValueError`` if uneven."""
    shards = num_shards(mesh_axis)
    if num_rows % shards:
        raise ValueError(
            f"{num_rows} rows cannot be split evenly over {shards} devices: choose a multiple of {shards}."
        )
    local = jnp.arange(num_rows // shards, dtype=jnp.int32)
    return local + jax.lax.axis_index(mesh_axis) * (num_rows // shards) if _on_mesh(mesh_axis) else local


def share_of(num_rows: int, multiple_of: int = 1) -> tuple[jax.Array | int, int]:
    """Return the first row and the number of rows of this shard's share of ``num_rows`` rows.

    All shares have the same length, a multiple of ``multiple_of``. The last shares may therefore extend past the last
    row: after ``gather_rows``, only the first ``num_rows`` rows are valid.
    """
    count = -(-num_rows // (num_shards() * multiple_of)) * multiple_of
    return (jax.lax.axis_index(DATA_AXIS) * count if _on_mesh() else 0), count


def gather_rows(tree: Tree, axis: int = 0, mesh_axis: str = DATA_AXIS) -> Tree:
    """Return every shard's rows, concatenated along ``axis`` in global order, on every device."""
    return _gathered(tree, mesh_axis, axis=axis, tiled=True) if _on_mesh(mesh_axis) else tree


def gather_from_members(tree: Tree, axis: int = 0) -> Tree:
    """Concatenate the rows of all members of a population along ``axis``; without a population, return ``tree``."""
    if not _on_mesh(LOCAL_MEMBER_AXIS):
        return tree
    return gather_rows(gather_rows(tree, axis, LOCAL_MEMBER_AXIS), axis, MEMBER_AXIS)


def sum_shards(tree: Tree) -> Tree:
    """Return, on every shard, the sum of each array of ``tree`` over all shards."""
    return jax.lax.psum(tree, DATA_AXIS) if _on_mesh() else tree


def max_over_shards(x: jax.Array) -> jax.Array:
    """Return, on every shard, the elementwise maximum of ``x`` over all shards."""
    return jax.lax.pmax(x, DATA_AXIS) if _on_mesh() else x


def mean_over_shares(tree: Tree) -> Tree:
    """Average the means, such as gradients and losses, that each device computed over its share of a batch.

    All leaves are reduced as one flat vector.
    """
    if not _on_mesh():
        return tree
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, DATA_AXIS))


def minibatch_share(batch: Tree) -> Tree:
    """Return this shard's rows of a minibatch ``[N, ...]`` that is replicated on all devices.

    If N is not divisible by the number of devices, each device uses the whole minibatch.
    """
    num_rows = jax.tree.leaves(batch)[0].shape[0]
    if not _on_mesh() or num_rows % num_shards():
        return batch
    size = num_rows // num_shards()
    start = jax.lax.axis_index(DATA_AXIS) * size
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), batch)


def whole_minibatch(share: Tree, num_rows: int) -> Tree:
    """Gather the results of all ``num_rows`` rows; each device passes the results of its ``minibatch_share``."""
    return share if num_rows % num_shards() else gather_rows(share)


def over_agents(method: Callable[..., Any], num_agents: int) -> Callable[..., Any]:
    """Vectorize ``method`` over rows ``[C * num_agents, ...]``: the agents of C environment copies, copy by copy.

    In ``method``, ``of_all_agents`` returns data of all agents of the copy. For one agent, return ``jax.vmap(method)``.

    Raises:
        ValueError: the returned function is called with a number of rows that is not a multiple of ``num_agents``.
    """
    if num_agents == 1:
        return jax.vmap(method)
    over_copies = jax.vmap(jax.vmap(method, axis_name=AGENT_AXIS))

    def over_rows(*args: Any) -> Any:
        num_rows = jax.tree.leaves(args)[0].shape[0]
        if num_rows % num_agents:
            raise ValueError(
                f"{num_rows} rows cannot be stepped together, because each copy has {num_agents} agents (rows): "
                f"use a multiple of {num_agents} on each device and in each chunk."
            )
        copies = jax.tree.map(lambda x: x.reshape(num_rows // num_agents, num_agents, *x.shape[1:]), args)
        return jax.tree.map(lambda x: x.reshape(num_rows, *x.shape[2:]), over_copies(*copies))

    return over_rows


def of_all_agents(tree: Tree, num_agents: int) -> Tree:
    """Gather the data of all agents of an environment copy, ``[num_agents, ...]``; every agent gets the same result.

    Raises:
        ValueError: there are several agents, but the call is outside ``over_agents``.
    """
    if num_agents == 1:
        return jax.tree.map(lambda x: x[None], tree)
    if not _on_mesh(AGENT_AXIS):
        raise ValueError(f"one of {num_agents} agents cannot be stepped separately: use a vectorized environment.")
    return _gathered(tree, AGENT_AXIS)


def agent_number() -> jax.Array | int:
    """Return the index of this agent in its environment copy; 0 with a single agent."""
    return jax.lax.axis_index(AGENT_AXIS) if _on_mesh(AGENT_AXIS) else 0


def _gathered(tree: Tree, mesh_axis: str, **options: Any) -> Tree:
    def gather(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.lax.all_gather(x, mesh_axis, **options)
        data = jax.lax.all_gather(jax.random.key_data(x), mesh_axis, **options)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))

    return jax.tree.map(gather, tree)


def joined_under_vmap(rows_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``rows_fn``, a function of rows ``[N, ...]``, called once on ``[S * N, ...]`` under ``vmap`` of size S."""
    batch_fn = jax.custom_batching.custom_vmap(rows_fn)

    @batch_fn.def_vmap
    def join(size: int, is_batched: Any, *args: Any) -> tuple[Any, Any]:
        rows = jax.tree.map(lambda x, batched: x if batched else jnp.stack([x] * size), args, tuple(is_batched))
        # Lengths are explicit: -1 cannot be inferred for arrays without elements, which some environments have.
        flat = jax.tree.map(lambda x: x.reshape(size * x.shape[1], *x.shape[2:]), rows)
        result = jax.tree.map(lambda x: x.reshape(size, x.shape[0] // size, *x.shape[1:]), batch_fn(*flat))
        return result, jax.tree.map(lambda _: True, result)

    return batch_fn


def joining_vmap(row_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``jax.vmap(row_fn)``, called once, on all rows, under further ``vmap``, except for derivatives."""
    joined = jax.custom_jvp(joined_under_vmap(jax.vmap(row_fn)))  # custom_vmap has no reverse mode
    joined.defjvp(lambda primals, tangents: jax.jvp(jax.vmap(row_fn), primals, tangents))
    return joined


@jax.custom_batching.custom_vmap
def any_under_vmap(x: jax.Array) -> jax.Array:
    """Return a bool scalar, True if any of the bools ``[...]`` is true; under ``vmap``, if any of the batch is true.

    A loop with this condition has the same number of iterations for the whole batch, so its body may call the host.
    """
    return x.any()


@any_under_vmap.def_vmap
def _any_of_all(_size: int, _is_batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    return any_under_vmap(x.any(axis=0)), False

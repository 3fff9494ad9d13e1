"""What the shards of a device mesh say to one another; without a mesh every function here is the identity.

A step is written once, for the rows it is given. When the execution layer runs it inside ``jax.shard_map``, one of
two axis names is bound, and these functions then join the shards:

``ENV_AXIS``
    environments are sharded, the update runs whole on the first device (the leader) and its result is broadcast. On a
    CPU the leader's matrix products use every core anyway, while many small reductions would cost more than they gain.
``DATA_AXIS``
    environments are sharded, and so is every minibatch: gradients are averaged over the devices.

Both give the result of one device, up to the order of floating-point sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

ENV_AXIS = "envs"
DATA_AXIS = "data"
Tree = TypeVar("Tree")


def _is_bound(axis_name: str) -> bool:
    try:
        jax.lax.axis_size(axis_name)
    except NameError:
        return False
    return True


def _bound_axis() -> str | None:
    return next((name for name in (ENV_AXIS, DATA_AXIS) if _is_bound(name)), None)


def num_shards() -> int:
    """How many devices share the rows of this step: 1 without a mesh."""
    axis = _bound_axis()
    return jax.lax.axis_size(axis) if axis else 1


def local_indices(num_rows: int) -> jax.Array:
    """The global indices of the rows this shard holds, shape ``[num_rows / num_shards]``, int32.

    Raises:
        ValueError: ``num_rows`` is not divisible by the number of shards.
    """
    axis, shards = _bound_axis(), num_shards()
    if num_rows % shards:
        raise ValueError(f"{num_rows} rows cannot be shared evenly by {shards} devices: choose a multiple of {shards}.")
    local = jnp.arange(num_rows // shards, dtype=jnp.int32)
    return local if axis is None else local + jax.lax.axis_index(axis) * (num_rows // shards)


def gather_rows(tree: Tree, axis: int = 0) -> Tree:
    """Every shard's rows put together along ``axis``, in global order, on every device."""
    name = _bound_axis()
    if name is None:
        return tree

    def gather(raw: jax.Array) -> jax.Array:
        return jax.lax.all_gather(raw, name, axis=axis, tiled=True)

    return jax.tree.map(lambda x: _on_raw_data(x, gather), tree)


def sum_shards(tree: Tree) -> Tree:
    """The sum over shards of equally shaped arrays."""
    name = _bound_axis()
    return tree if name is None else jax.tree.map(lambda x: jax.lax.psum(x, name), tree)


def mean_over_shares(tree: Tree) -> Tree:
    """The mean, over the devices that share a minibatch, of what each made of its share: gradients, losses.

    One reduction of one flat vector. The identity unless minibatches are sharded.
    """
    if not _is_bound(DATA_AXIS):
        return tree
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, DATA_AXIS))


def minibatch_share(batch: Tree, axis: int = 0) -> Tree:
    """This shard's part of a minibatch that every device holds whole; the whole of it unless minibatches are sharded.

    Raises:
        ValueError: the minibatch is not divisible by the number of shards.
    """
    if not _is_bound(DATA_AXIS):
        return batch
    rows = local_indices(jax.tree.leaves(batch)[0].shape[axis])
    return jax.tree.map(lambda x: _on_rows(x, rows, axis), batch)


def on_leader(update: Callable[..., Tree], *args: Any) -> Tree:
    """``update(*args)`` where the arguments are equal on every shard.

    Under ``ENV_AXIS`` only the first device computes it, the others wait for its result; else every device does.
    """
    if not _is_bound(ENV_AXIS):
        return update(*args)
    shapes = jax.eval_shape(update, *args)

    def nothing(*_: Any) -> Any:
        return jax.tree.map(lambda x: _raw_zeros(x), shapes)

    def raw_update(*update_args: Any) -> Any:
        return jax.tree.map(_raw, update(*update_args))

    result = jax.lax.cond(jax.lax.axis_index(ENV_AXIS) == 0, raw_update, nothing, *args)
    return jax.tree.map(_restored, shapes, _broadcast(result))


def _broadcast(tree: Tree) -> Tree:
    """The leader's values on every shard (the others hold zeros): one reduction per dtype."""
    leaves, treedef = jax.tree.flatten(tree)
    by_dtype: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        by_dtype.setdefault(leaf.dtype, []).append(i)
    for members in by_dtype.values():
        flat = jax.lax.psum(jnp.concatenate([leaves[i].ravel() for i in members]), ENV_AXIS)
        offset = 0
        for i in members:
            leaves[i] = flat[offset : offset + leaves[i].size].reshape(leaves[i].shape)
            offset += leaves[i].size
    return jax.tree.unflatten(treedef, leaves)


def _on_rows(x: jax.Array, rows: jax.Array, axis: int) -> jax.Array:
    return x[rows] if axis == 0 else jnp.take(x, rows, axis=axis)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _on_raw_data(x: jax.Array, fn: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return jax.random.wrap_key_data(fn(jax.random.key_data(x)), impl=jax.random.key_impl(x)) if _is_key(x) else fn(x)


def _raw(x: Any) -> jax.Array:
    """Numbers that can be summed: the words of a key, a bool as an int."""
    x = jax.random.key_data(x) if hasattr(x, "dtype") and _is_key(x) else jnp.asarray(x)
    return x.astype(jnp.int32) if x.dtype == jnp.bool_ else x


def _raw_zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    raw = jax.eval_shape(_raw, shape)
    return jnp.zeros(raw.shape, raw.dtype)


def _restored(shape: jax.ShapeDtypeStruct, raw: jax.Array) -> jax.Array:
    if _is_key(shape):
        return jax.random.wrap_key_data(raw, impl=str(shape.dtype._impl.name))
    return raw.astype(shape.dtype)

"""Functions that take what ``vmap`` puts side by side together, where each alone would cost more or could not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def joined_under_vmap(rows_fn: Callable[..., Any]) -> Callable[..., Any]:
    """``rows_fn`` of rows, for which batches of batches (seeds of environments) are one batch: computed together."""
    batch_fn = jax.custom_batching.custom_vmap(rows_fn)

    @batch_fn.def_vmap
    def join(size: int, is_batched: Any, *args: Any) -> tuple[Any, Any]:
        rows = jax.tree.map(lambda x, batched: x if batched else jnp.stack([x] * size), args, tuple(is_batched))
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        result = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), batch_fn(*flat))
        return result, jax.tree.map(lambda _: True, result)

    return batch_fn


@jax.custom_batching.custom_vmap
def any_under_vmap(x: jax.Array) -> jax.Array:
    """Whether any of bools ``[...]`` holds; under ``vmap`` any of all that stand side by side, one answer for all.

    A loop that goes on while this holds has the same number of turns for all: then its body may call the host.
    """
    return x.any()


@any_under_vmap.def_vmap
def _any_of_all(size: int, is_batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    del size, is_batched
    return any_under_vmap(x.any(axis=0)), False

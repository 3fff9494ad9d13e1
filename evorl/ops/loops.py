"""Loops and branches in the form that is fastest on the current platform.

In a loop of dynamic length, an accelerator copies the condition to the host and waits in every iteration. There, loops
have static lengths and few kernels. On a CPU, the condition costs nothing, but an unnecessary iteration takes time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from evorl.ops import collectives
from evorl.ops.platform import on_cpu
from evorl.ops.trees import Packed, pack, tree_where
from evorl.types import PyTreeData, pytree_field

Tree = TypeVar("Tree")
SMALL = 2**11  # largest packed array, in elements over all seeds and members; slices of larger arrays would be copied


def when_due(is_due: jax.Array, update: Callable[[Any], Any], state: Any) -> Any:
    """Return ``update(state)`` if the bool scalar ``is_due`` is true, else ``state``; both have the same structure.

    A skipped update takes no time. Under ``vmap``, the update is skipped if no element of the batch is due.
    """
    if on_cpu():  # a loop of at most one iteration, because ``cond`` under ``vmap`` would run both branches

        def body(i: jax.Array, state: Any) -> Any:
            # Values that ``update`` closes over do not change in the loop: without the barrier, the compiler would move
            # everything that is computed from them alone out of the loop, so that it would run in every call.
            traced, result = jax.make_jaxpr(update, return_shape=True)(state)
            constants, _ = jax.lax.optimization_barrier((traced.consts, i))
            leaves = jaxpr_as_fun(traced.replace(consts=constants))(*jax.tree.leaves(state))
            return jax.tree.unflatten(jax.tree.structure(result), leaves)

        return jax.lax.fori_loop(0, is_due.astype(jnp.int32), body, state)
    # An accelerator waits for the host once per branch, but in every iteration of a loop.
    return jax.lax.cond(
        collectives.any_under_vmap(is_due),
        lambda state: tree_where(is_due, update(state), state),
        lambda state: state,
        state,
    )


def repeated(
    update: Callable[[Any, Any], Any], carry: Any, num_updates: jax.Array | int, between: tuple[int, int] | None
) -> Any:
    """Run ``carry = update(i, carry)`` for ``num_updates`` iterations, and return the last carry.

    Args:
        update: body of the loop.
        carry: initial state of the loop, a pytree of arrays.
        num_updates: number of iterations, an int or a traced int32; may be 0.
        between: ``(n, n)`` or ``(n, n + 1)``: ``num_updates`` is one of these numbers, or 0; ``None`` if unknown.
    """
    if isinstance(num_updates, int):
        between = num_updates, num_updates
    if on_cpu() or between is None:
        return jax.lax.fori_loop(0, num_updates, update, carry)
    # Accelerators wait for the host in a loop of unknown length. Therefore updates are computed, and discarded, even if
    # ``num_updates`` is 0, as before learning starts.
    at_least, at_most = between
    if at_least:
        after = jax.lax.fori_loop(0, at_least, lambda i, carry: in_loop(update(i, unpacked(carry))), in_loop(carry))
        carry = unpacked(tree_where(jnp.asarray(num_updates >= at_least), after, in_loop(carry)))
    if at_least == at_most:
        return carry
    return when_due(jnp.asarray(num_updates > at_least), functools.partial(update, at_least), carry)


def precomputed(inputs: Callable[[jax.Array], Tree], num_turns: int) -> Callable[[jax.Array], Tree]:
    """Return a function of the iteration, from 0 to ``num_turns - 1``, with the same results as ``inputs``.

    On an accelerator, the inputs of all iterations are computed before the loop, which then indexes a packed array.
    """
    if on_cpu():
        return inputs
    packed = pack(jax.vmap(inputs)(jnp.arange(num_turns)), 2)
    return lambda i: jax.tree.map(lambda x: x[i], packed).unpack()


class SmallPacked(PyTreeData, Generic[Tree]):
    """A tree whose small leaves are packed into few vectors, see ``in_loop``.

    Attributes:
        small: the small leaves.
        large: the other leaves, ``None`` in place of packed ones.
        treedef: structure of the tree.
    """

    small: Packed[list]
    large: list
    treedef: Any = pytree_field(static=True)


def in_loop(tree: Any) -> Any:
    """Return a tree in the form that loops should carry on this platform; ``unpacked`` restores the tree.

    On a CPU, the tree is unchanged. On an accelerator, each leaf that an iteration changes costs a kernel launch, which
    takes longer than computing a small array. Small leaves are therefore packed and written together.
    """
    if on_cpu():
        return tree
    leaves, treedef = jax.tree.flatten(tree)
    is_small = [x.size * collectives.num_side_by_side() <= SMALL for x in leaves]
    small = pack([x for x, small in zip(leaves, is_small, strict=True) if small], 0)
    large = [None if small else x for x, small in zip(leaves, is_small, strict=True)]
    return SmallPacked(small=small, large=large, treedef=treedef)


def unpacked(carried: Any) -> Any:
    """Return the tree that ``in_loop`` packed; its leaves may have additional leading axes from a ``scan``."""
    if not isinstance(carried, SmallPacked):
        return carried
    small = iter(carried.small.unpack())
    return carried.treedef.unflatten([next(small) if x is None else x for x in carried.large])

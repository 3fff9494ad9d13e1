"""Loops and branches that suit the platform: an accelerator knows the number of their turns, and launches few kernels.

Where the number of turns follows from numbers, an accelerator copies its condition to the host and waits, once per
turn. On a CPU that costs nothing, and a turn that is not needed takes time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from evorl.ops import collectives
from evorl.ops.platform import on_cpu
from evorl.ops.trees import Packed, pack, tree_where
from evorl.types import PyTreeData, pytree_field

Tree = TypeVar("Tree")
SMALL = 2**16  # elements of an array that a kernel copies in less time than its launch takes


def when_due(is_due: jax.Array, update: Callable[[Any], Any], state: Any) -> Any:
    """Return ``update(state)`` if the bool scalar ``is_due`` is true, else ``state``; both have the same structure.

    A skipped update takes no time. Under ``vmap`` it is skipped where it is due nowhere.
    """
    if on_cpu():  # a loop of at most one turn instead of a ``cond``, which under ``vmap`` would run both branches
        return jax.lax.fori_loop(0, is_due.astype(jnp.int32), lambda _, state: update(state), state)
    # An accelerator asks the host once about a branch, and before and after every turn about a loop.
    return jax.lax.cond(
        collectives.any_under_vmap(is_due),
        lambda state: tree_where(is_due, update(state), state),
        lambda state: state,
        state,
    )


def repeated(
    update: Callable[[Any, Any], Any], carry: Any, num_updates: jax.Array | int, between: tuple[int, int] | None
) -> Any:
    """Run ``carry = update(i, carry)`` in a loop, which may have zero turns.

    Args:
        update: one turn.
        carry: its state, a pytree of arrays.
        num_updates: number of turns, int32.
        between: smallest and largest number of turns other than 0, which differ by at most 1; ``None`` for any number.
    """
    if isinstance(num_updates, int):
        between = num_updates, num_updates
    if on_cpu() or between is None:
        return jax.lax.fori_loop(0, num_updates, update, carry)
    # Accelerators wait for the host in a loop whose number of turns they do not know: updates before the start of the
    # learning are computed as well, and dropped.
    at_least, at_most = between
    if at_least:
        after = jax.lax.fori_loop(0, at_least, lambda i, carry: in_loop(update(i, unpacked(carry))), in_loop(carry))
        carry = unpacked(tree_where(jnp.asarray(num_updates >= at_least), after, in_loop(carry)))
    if at_least == at_most:
        return carry
    return when_due(jnp.asarray(num_updates > at_least), functools.partial(update, at_least), carry)


def precomputed(inputs: Callable[[jax.Array], Tree], num_turns: int) -> Callable[[jax.Array], Tree]:
    """Return a function of the number of a turn that equals ``inputs``, whose leaves ``[N, ...]`` share an axis.

    An accelerator computes the inputs of all turns before the loop, and takes one array of them in each.
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
    """Return the form in which a loop on this platform carries a tree from turn to turn; ``unpacked`` restores it.

    On a CPU it is the tree. On an accelerator each leaf that a turn changes is a kernel, which takes longer to launch
    than small arrays to compute: they are packed, and written together.
    """
    if on_cpu():
        return tree
    leaves, treedef = jax.tree.flatten(tree)
    is_small = [x.size <= SMALL for x in leaves]
    small = pack([x for x, small in zip(leaves, is_small, strict=True) if small], 0)
    large = [None if small else x for x, small in zip(leaves, is_small, strict=True)]
    return SmallPacked(small=small, large=large, treedef=treedef)


def unpacked(carried: Any) -> Any:
    """Return the tree that ``in_loop`` has packed; leaves may have got leading axes in a ``scan``."""
    if not isinstance(carried, SmallPacked):
        return carried
    small = iter(carried.small.unpack())
    return carried.treedef.unflatten([next(small) if x is None else x for x in carried.large])

"""A tree of sums over many weights, to draw among them in proportion (Schaul et al. 2016, appendix B.2.1).

Every inner node is the sum of ``FAN_OUT`` children, computed anew from them whenever one changes: no error gathers.
Reading and changing k weights costs k * FAN_OUT operations on each of the few levels, all k at once.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from evorl.types import PyTreeData

FAN_OUT = 64


class SumTree(PyTreeData):
    """Weights and their sums.

    Attributes:
        levels: float32 vectors from the weights, padded by zeros, up to at most ``FAN_OUT`` sums.
    """

    levels: tuple[jax.Array, ...]

    @property
    def total(self) -> jax.Array:
        """The sum of all weights, a scalar."""
        return self.levels[-1].sum()


def init_sum_tree(num_weights: int) -> SumTree:
    """A tree of zeros.

    Raises:
        ValueError: there is no weight.
    """
    if num_weights < 1:
        raise ValueError(f"a sum tree needs at least one weight, got {num_weights}.")
    sizes = [math.ceil(num_weights / FAN_OUT) * FAN_OUT]
    while sizes[-1] > FAN_OUT:
        sizes.append(math.ceil(sizes[-1] // FAN_OUT / FAN_OUT) * FAN_OUT)
    return SumTree(levels=tuple(jnp.zeros(size) for size in sizes))


def get_weights(tree: SumTree, indices: jax.Array) -> jax.Array:
    """The weights at ``indices``, of their shape."""
    return tree.levels[0][indices]


def set_weights(tree: SumTree, indices: jax.Array, weights: jax.Array) -> SumTree:
    """The tree with other weights at ``indices``.

    Args:
        indices: ``[N]``, int32; where one stands twice, which of its weights is taken is left open. Indices beyond the
            tree are dropped.
        weights: ``[N]``, not negative.
    """
    weights = jnp.broadcast_to(weights, indices.shape)
    levels = [tree.levels[0].at[indices].set(weights, mode="drop")]
    for level in tree.levels[1:]:
        indices = indices // FAN_OUT
        children = levels[-1].reshape(-1, FAN_OUT)
        sums = children.at[indices].get(mode="fill", fill_value=0.0).sum(axis=-1)
        levels.append(level.at[indices].set(sums, mode="drop"))
    return SumTree(levels=tuple(levels))


def find(tree: SumTree, shares: jax.Array) -> jax.Array:
    """Where the cumulative sum of the weights first exceeds ``shares * total``: indices, int32 of the shares' shape.

    With shares uniform in [0, 1) an index is found with the probability of its weight over the total; one of weight
    zero never is, unless all are.

    Args:
        shares: in [0, 1).
    """
    left = shares * tree.total
    index = jnp.zeros(shares.shape, jnp.int32)
    for level in reversed(tree.levels):
        nodes = level.reshape(-1, FAN_OUT)[index]  # [..., FAN_OUT]
        sums = jnp.cumsum(nodes, axis=-1)
        # Rounding may leave more than the sum of the nodes: then the last one that has weight is meant.
        last = FAN_OUT - 1 - jnp.argmax(jnp.flip(nodes > 0.0, axis=-1), axis=-1)
        child = jnp.minimum((sums <= left[..., None]).sum(axis=-1), last)
        before = jnp.where(child > 0, jnp.take_along_axis(sums, jnp.maximum(child - 1, 0)[..., None], -1)[..., 0], 0.0)
        left = jnp.maximum(left - before, 0.0)
        index = index * FAN_OUT + child.astype(jnp.int32)
    return index

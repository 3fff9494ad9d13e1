"""Sum tree for sampling indices in proportion to their weights (Schaul et al. 2016, appendix B.2.1).

Every inner node is the sum of ``FAN_OUT`` children. The sum is recomputed when a child changes, so rounding errors do
not accumulate. Sampling or changing k weights costs k * FAN_OUT operations on each of the few levels.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from evorl.types import Key, PyTreeData

FAN_OUT = 64
_NUM_SHARES = 2**23  # number of values of a uniform float32


class SumTree(PyTreeData):
    """Weights and their partial sums.

    Attributes:
        levels: float32 vectors, from the zero-padded weights up to the top level of at most ``FAN_OUT`` sums.
    """

    levels: tuple[jax.Array, ...]

    @property
    def total(self) -> jax.Array:
        """Sum of all weights, a scalar."""
        return self.levels[-1].sum()


def init_sum_tree(num_weights: int) -> SumTree:
    """Return a tree of zero weights; raise ``ValueError`` if ``num_weights`` is less than 1."""
    if num_weights < 1:
        raise ValueError(f"a sum tree needs at least one weight, got {num_weights}.")
    sizes = [math.ceil(num_weights / FAN_OUT) * FAN_OUT]
    while sizes[-1] > FAN_OUT:
        sizes.append(math.ceil(sizes[-1] // FAN_OUT / FAN_OUT) * FAN_OUT)
    return SumTree(levels=tuple(jnp.zeros(size) for size in sizes))


def get_weights(tree: SumTree, indices: jax.Array) -> jax.Array:
    """Return the weights at ``indices``, with the same shape."""
    return tree.levels[0][indices]


def set_weights(tree: SumTree, indices: jax.Array, weights: jax.Array) -> SumTree:
    """Return the tree with the weights at ``indices`` replaced.

    Args:
        indices: int32 ``[N]``; if an index is repeated, an arbitrary one of its new weights is stored. Indices of at
            least ``num_weights``, rounded up to a multiple of ``FAN_OUT``, are ignored.
        weights: new weights, ``[N]`` or a number, non-negative.
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
    """Return the indices at which the cumulative sum of the weights first exceeds ``shares * total``, int32.

    With shares uniform in [0, 1), the probability of an index is its weight over the total. Indices of zero weight are
    never returned, unless all weights are zero.

    Args:
        shares: fractions of the total, in [0, 1), of any shape; the result has the same shape.
    """
    left = shares * tree.total
    index = jnp.zeros(shares.shape, jnp.int32)
    for level in reversed(tree.levels):
        nodes = level.reshape(-1, FAN_OUT)[index]  # [..., FAN_OUT]
        sums = jnp.cumsum(nodes, axis=-1)
        # Rounding may leave a remainder above the sum of the nodes: then select the last node with nonzero weight.
        last = FAN_OUT - 1 - jnp.argmax(jnp.flip(nodes > 0.0, axis=-1), axis=-1)
        child = jnp.minimum((sums <= left[..., None]).sum(axis=-1), last)
        before = jnp.where(child > 0, jnp.take_along_axis(sums, jnp.maximum(child - 1, 0)[..., None], -1)[..., 0], 0.0)
        left = jnp.maximum(left - before, 0.0)
        index = index * FAN_OUT + child.astype(jnp.int32)
    return index


def sample_indices(tree: SumTree, key: Key, num: int) -> jax.Array:
    """Sample indices in proportion to their weights, int32 ``[num]``, zeros if no weight is positive."""
    if tree.levels[0].size <= _NUM_SHARES:
        index = find(tree, jax.random.uniform(key, (num,)))
    else:  # one uniform number has fewer values than there are weights: another one selects within a node
        node_shares, shares = jax.random.uniform(key, (2, num))
        nodes = find(SumTree(levels=tree.levels[1:]), node_shares)
        weights = tree.levels[0].reshape(-1, FAN_OUT)[nodes]
        index = nodes * FAN_OUT + jax.vmap(find)(SumTree(levels=(weights,)), shares)
    return jnp.where(tree.total > 0.0, index, 0)

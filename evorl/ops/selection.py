"""Selection in a population that trains: whose state every member goes on from."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from evorl.ops import collectives
from evorl.ops.collectives import MEMBER_AXIS
from evorl.types import Key

Tree = TypeVar("Tree")


def best_member(scores: jax.Array) -> jax.Array:
    """The number of the member with the highest of the scores ``[P]``, int32; NaN stands for a score not known yet."""
    return jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))


def truncation_parents(key: Key, scores: jax.Array, share: jax.Array | float) -> jax.Array:
    """For every member whose state it goes on from, int32 ``[P]``: its own, or that of a better one.

    The lowest ``share`` of the members, and all that diverged, take one each out of as large a share of the best, by a
    draw of its own, unless that is not better.

    Args:
        key: of the draws.
        scores: ``[P]``: minus infinity for members that diverged, NaN for those whose score is not known yet, which are
            left alone.
        share: of the members, up to a half; one member at least.
    """
    num_members = len(scores)
    order = jnp.argsort(jnp.where(jnp.isnan(scores), -jnp.inf, scores), descending=True)
    num_best = jnp.maximum(1, jnp.floor(share * num_members + 1e-3)).astype(jnp.int32)
    parents = order[jax.random.randint(key, (num_members,), 0, num_best)]
    lowest = (jnp.argsort(order) >= num_members - num_best) | jnp.isneginf(scores)
    return jnp.where(lowest & (scores < scores[parents]), parents, jnp.arange(num_members))


def pair_parents(key: Key, scores: jax.Array) -> jax.Array:
    """For every member whose state it goes on from, int32 ``[P]``: that of the better one of a random pair.

    Of an odd number of members one has no opponent; nor has one whose score is not known yet (NaN).
    """
    num_members = len(scores)
    first, second = jax.random.permutation(key, num_members)[: num_members // 2 * 2].reshape(2, -1)
    members = jnp.arange(num_members)
    opponents = members.at[first].set(second).at[second].set(first)
    return jnp.where(scores < scores[opponents], opponents, members)


def clones(members: Tree, parents: jax.Array) -> Tree:
    """Every member with what its parent has, but its own keys, so that clones explore differently.

    Args:
        members: the states of this device's members, leaves ``[P / num_shards, ...]``.
        parents: of all members, ``[P]``.
    """
    everyone = collectives.gather_rows(members, mesh_axis=MEMBER_AXIS)
    parents = parents[collectives.local_indices(len(parents), MEMBER_AXIS)]

    def take(of_one: jax.Array, of_all: jax.Array) -> jax.Array:
        return of_one if jnp.issubdtype(of_one.dtype, jax.dtypes.prng_key) else of_all[parents]

    return jax.tree.map(take, members, everyone)

"""Selection in population-based training: better members of a population replace the states of worse members."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from evorl.ops import collectives
from evorl.ops.collectives import MEMBER_AXIS
from evorl.types import Key, PyTreeData

Tree = TypeVar("Tree")


class Inheritance(PyTreeData):
    """Parents of the members of a population; a member that is not replaced is its own parent.

    Attributes:
        states: index of the member from which each member copies its state, int32 ``[P]``.
        hyper_parameters: index of the member from which each member copies its hyperparameters, int32 ``[P]``.
        explores: True for members that then vary the copied hyperparameters, bool ``[P]``.
    """

    states: jax.Array
    hyper_parameters: jax.Array
    explores: jax.Array

    @classmethod
    def from_parents(cls, parents: jax.Array) -> Inheritance:
        """Return the inheritance in which ``parents`` give state and hyperparameters, and replaced members explore."""
        return cls(states=parents, hyper_parameters=parents, explores=parents != jnp.arange(len(parents)))

    @property
    def replaced(self) -> jax.Array:
        """True for members that continue from the state of another member, bool ``[P]``."""
        return self.states != jnp.arange(len(self.states))


def inheritance_of_clones(key: Key, scores: jax.Array, share: jax.Array | float | None, paired: bool) -> Inheritance:
    """Return the inheritance by ``pair_parents`` if ``paired``, else by ``truncation_parents``.

    If ``share`` is ``None``, no member is replaced. ``pair_parents`` does not depend on the value of ``share``.
    """
    if share is None:
        return Inheritance.from_parents(jnp.arange(len(scores)))
    return Inheritance.from_parents(pair_parents(key, scores) if paired else truncation_parents(key, scores, share))


def best_member(scores: jax.Array) -> jax.Array:
    """Return the index, int32, of the highest of ``scores``, ``[P]``; NaN, an unknown score, counts as the lowest."""
    return jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))


def truncation_parents(key: Key, scores: jax.Array, share: jax.Array | float) -> jax.Array:
    """Return the parent of every member, int32 ``[P]``: itself or a member with a higher score.

    The worst ``share`` of the members, and all diverged members, each sample a parent from the best ``share``, and
    keep their own state if that parent is not better.

    Args:
        key: random key.
        scores: ``[P]``; ``-inf`` for diverged members, NaN for unknown scores, whose members keep their state.
        share: fraction of the members, at most 0.5; at least one member counts as best, and one as worst.
    """
    num_members = len(scores)
    order = jnp.argsort(jnp.where(jnp.isnan(scores), -jnp.inf, scores), descending=True)
    num_best = jnp.maximum(1, jnp.floor(share * num_members + 1e-3)).astype(jnp.int32)
    parents = order[jax.random.randint(key, (num_members,), 0, num_best)]
    lowest = (jnp.argsort(order) >= num_members - num_best) | jnp.isneginf(scores)
    return jnp.where(lowest & (scores < scores[parents]), parents, jnp.arange(num_members))


def pair_parents(key: Key, scores: jax.Array) -> jax.Array:
    """Return the parent of every member, int32 ``[P]``: the member of its random pair with the higher score.

    A member keeps its own state if a score of the pair is unknown (NaN), or if P is odd and it has no opponent.
    """
    num_members = len(scores)
    first, second = jax.random.permutation(key, num_members)[: num_members // 2 * 2].reshape(2, -1)
    members = jnp.arange(num_members)
    opponents = members.at[first].set(second).at[second].set(first)
    return jnp.where(scores < scores[opponents], opponents, members)


def clones(members: Tree, parents: jax.Array) -> Tree:
    """Return states copied from the parents, except random keys, so that members with the same parent differ.

    Args:
        members: states of this device's members, leaves ``[P / num_shards, ...]``.
        parents: index of the parent of every member, ``[P]``.
    """
    all_members = collectives.gather_rows(members, mesh_axis=MEMBER_AXIS)
    parents = parents[collectives.local_indices(len(parents), MEMBER_AXIS)]

    def select(local: jax.Array, everywhere: jax.Array) -> jax.Array:
        return local if jnp.issubdtype(local.dtype, jax.dtypes.prng_key) else everywhere[parents]

    return jax.tree.map(select, members, all_members)

"""From parents to children: the kinds of crossover and mutation, as a config describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import jax
import jax.numpy as jnp

from evorl.ec.operators.crossover import one_point_crossover, simulated_binary_crossover, uniform_crossover
from evorl.ec.operators.mutation import erl_mutation, gaussian_mutation, polynomial_mutation
from evorl.ops.random import row_keys
from evorl.ops.trees import num_rows, tree_where
from evorl.types import Key, PyTreeNode

Tree = TypeVar("Tree")


class Crossover(PyTreeNode):
    """How two parents are mixed.

    Attributes:
        kind: ``uniform`` exchanges single entries, ``units`` all weights into a unit of a layer together, ``one_point``
            the end of each leaf, ``simulated_binary`` draws children around the parents' mean.
        probability: with which a pair is crossed; others are copied.
        share: of the entries (or units) of a pair that are exchanged or mixed; ``one_point`` draws it.
        eta: of ``simulated_binary``: the greater, the nearer children are to their parents.
    """

    kind: Literal["uniform", "units", "one_point", "simulated_binary"] = "uniform"
    probability: float = 0.9
    share: float = 0.5
    eta: float = 15.0

    ranges: ClassVar[Mapping[str, str]] = {"probability": "[0, 1]", "share": "[0, 1]", "eta": "[0, inf)"}

    def children(self, key: Key, first: Tree, second: Tree) -> tuple[Tree, Tree]:
        """Two children of each pair, both ``[N, ...]``, for parents ``[N, ...]``; one key."""
        chosen_key, cross_key = jax.random.split(key)
        if self.kind == "simulated_binary":
            crossed = simulated_binary_crossover(cross_key, first, second, self.eta, self.share)
        elif self.kind == "one_point":
            crossed = one_point_crossover(cross_key, first, second)
        else:
            crossed = uniform_crossover(cross_key, first, second, self.share, whole_units=self.kind == "units")
        return tree_where(_chosen_rows(chosen_key, first, self.probability), crossed, (first, second))


class Mutation(PyTreeNode):
    """How an individual is changed.

    Attributes:
        kind: ``gaussian`` noise of one size, ``relative`` to each entry's size, ``erl`` (relative, with super mutations
            and resets), or ``polynomial``.
        probability: with which an individual is changed at all.
        share: of its entries that are changed.
        scale: of a change: the standard deviation; of ``polynomial`` the bound.
        super_scale: of ``erl``'s super mutations, relative.
        reset_scale: standard deviation of what ``erl`` resets.
        super_probability: share of the changed entries that undergo a super mutation.
        reset_probability: share of the changed entries that are reset.
        eta: of ``polynomial``: the greater, the smaller are the changes.
    """

    kind: Literal["gaussian", "relative", "erl", "polynomial"] = "gaussian"
    probability: float = 1.0
    share: float = 1.0
    scale: float = 0.1
    super_scale: float = 10.0
    reset_scale: float = 1.0
    super_probability: float = 0.05
    reset_probability: float = 0.05
    eta: float = 20.0

    ranges: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("probability", "share", "super_probability", "reset_probability"), "[0, 1]"),
        **dict.fromkeys(("scale", "super_scale", "reset_scale", "eta"), "[0, inf)"),
    }

    def mutants(self, key: Key, population: Tree) -> Tree:
        """A population ``[P, ...]`` with some individuals changed; one key."""
        chosen_key, mutate_key = jax.random.split(key)
        if self.kind == "erl":
            sizes = (self.scale, self.super_scale, self.reset_scale)
            shares = (self.super_probability, self.reset_probability)
            mutants = erl_mutation(mutate_key, population, self.share, *sizes, *shares)
        elif self.kind == "polynomial":
            mutants = polynomial_mutation(mutate_key, population, self.share, self.scale, self.eta)
        else:
            mutants = gaussian_mutation(mutate_key, population, self.share, self.scale, self.kind == "relative")
        return tree_where(_chosen_rows(chosen_key, population, self.probability), mutants, population)


def _chosen_rows(key: Key, population: Any, probability: jax.Array | float) -> jax.Array:
    keys = row_keys(key, num_rows(population))
    return jax.vmap(jax.random.uniform)(keys) < jnp.asarray(probability)

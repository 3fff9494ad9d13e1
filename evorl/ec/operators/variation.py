"""Configurable crossover and mutation operators."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import jax
import jax.numpy as jnp

from evorl.ec.operators.crossover import one_point_crossover, simulated_binary_crossover, uniform_crossover
from evorl.ec.operators.mutation import erl_mutation, gaussian_mutation, polynomial_mutation
from evorl.fields import Within
from evorl.ops.random import row_keys
from evorl.ops.trees import num_rows, tree_where
from evorl.types import Key, PyTreeNode

Tree = TypeVar("Tree")


class Crossover(PyTreeNode):
    """Crossover of two parents.

    Attributes:
        kind: ``uniform`` exchanges single entries, ``units`` all input weights of a unit together, ``one_point`` all
            entries of a leaf after a random cut; ``simulated_binary`` samples children around the parents' mean.
        probability: probability of crossing a pair; other pairs are copied.
        share: expected fraction of entries (or units) that are exchanged or mixed; ``one_point`` ignores it.
        eta: distribution index of ``simulated_binary``; larger values give children closer to their parents.
    """

    kind: Literal["uniform", "units", "one_point", "simulated_binary"] = "uniform"
    probability: Annotated[float, Within("[0, 1]")] = 0.9
    share: Annotated[float, Within("[0, 1]")] = 0.5
    eta: Annotated[float, Within("[0, inf)")] = 15.0

    def children(self, key: Key, first: Tree, second: Tree) -> tuple[Tree, Tree]:
        """Return two children of each pair of parents, both ``[N, ...]``; ``key`` is a single key."""
        chosen_key, cross_key = jax.random.split(key)
        if self.kind == "simulated_binary":
            crossed = simulated_binary_crossover(cross_key, first, second, self.eta, self.share)
        elif self.kind == "one_point":
            crossed = one_point_crossover(cross_key, first, second)
        else:
            crossed = uniform_crossover(cross_key, first, second, self.share, whole_units=self.kind == "units")
        return tree_where(_chosen_rows(chosen_key, first, self.probability), crossed, (first, second))


class Mutation(PyTreeNode):
    """Mutation of an individual.

    Attributes:
        kind: ``gaussian`` noise, noise ``relative`` to each entry's magnitude, ``erl`` (relative, with super mutations
            and resets), or ``polynomial``.
        probability: probability that an individual is mutated.
        share: expected fraction of the entries of a mutated individual that are changed.
        scale: standard deviation of a change (relative for ``relative`` and ``erl``); maximum change of ``polynomial``.
        super_scale: relative standard deviation of ``erl``'s super mutations, which are large changes.
        reset_scale: standard deviation of the normal samples around 0 to which ``erl`` resets entries.
        super_probability: fraction of the changed entries to which ``erl`` applies a super mutation.
        reset_probability: fraction of the changed entries that ``erl`` resets; at most ``1 - super_probability``.
        eta: distribution index of ``polynomial``; larger values give smaller changes.
    """

    kind: Literal["gaussian", "relative", "erl", "polynomial"] = "gaussian"
    probability: Annotated[float, Within("[0, 1]")] = 1.0
    share: Annotated[float, Within("[0, 1]")] = 1.0
    scale: Annotated[float, Within("[0, inf)")] = 0.1
    super_scale: Annotated[float, Within("[0, inf)")] = 10.0
    reset_scale: Annotated[float, Within("[0, inf)")] = 1.0
    super_probability: Annotated[float, Within("[0, 1]")] = 0.05
    reset_probability: Annotated[float, Within("[0, 1]")] = 0.05
    eta: Annotated[float, Within("[0, inf)")] = 20.0

    def mutants(self, key: Key, population: Tree) -> Tree:
        """Return the population ``[P, ...]`` with some individuals mutated; ``key`` is a single key."""
        chosen_key, mutate_key = jax.random.split(key)
        if self.kind == "erl":
            names = ("super_scale", "reset_scale", "super_probability", "reset_probability")
            others = {name: getattr(self, name) for name in names}
            mutants = erl_mutation(mutate_key, population, self.share, self.scale, **others)
        elif self.kind == "polynomial":
            mutants = polynomial_mutation(mutate_key, population, self.share, self.scale, eta=self.eta)
        else:
            mutants = gaussian_mutation(mutate_key, population, self.share, self.scale, self.kind == "relative")
        return tree_where(_chosen_rows(chosen_key, population, self.probability), mutants, population)


def _chosen_rows(key: Key, population: Any, probability: jax.Array | float) -> jax.Array:
    keys = row_keys(key, num_rows(population))
    return jax.vmap(jax.random.uniform)(keys) < jnp.asarray(probability)

"""Base class of optimizers that store a population and breed children by crossover and mutation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.noise import noise_rows
from evorl.ec.operators.variation import Crossover, Mutation
from evorl.ec.safeguards import finite_or
from evorl.fields import Within
from evorl.ops.projection import Projection, projected
from evorl.ops.random import as_typed_key
from evorl.types import Key, Params, PyTreeDict, pytree_field


class BreedingOptimizer(EvoOptimizer):
    """Optimizer whose next generation consists of children of selected parents. The state stores the population.

    Attributes:
        pop_size: number of individuals P.
        initial_std: standard deviation of the noise around the initial solution in the first population, whose first
            individual is the solution itself.
        crossover: crossover of two parents.
        mutation: mutation of children.
        projection: projection of the weights of every individual, after mutation: ``unit_norm`` scales the weights of
            each unit to norm 1; ``unit_norm_and_gains`` scales gains and shifts of normalization layers as well, see
            ``evorl.ops.projection``; ``None`` disables it.

    Raises:
        ValueError: the sum of the two probabilities of an ``erl`` mutation is above 1.
    """

    pop_size: int
    initial_std: Annotated[float, Within("[0, inf)")] = 0.1
    crossover: Crossover = Crossover()
    mutation: Mutation = Mutation()
    projection: Projection | None = pytree_field(static=True, default=None)

    ranks_failures: ClassVar[bool] = True
    takes_solutions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        shares = self.mutation.super_probability, self.mutation.reset_probability
        if self.mutation.kind == "erl" and all(isinstance(x, int | float) for x in shares) and sum(shares) > 1.0 + 1e-6:
            raise ValueError(
                f"mutation.super_probability={shares[0]:g} and mutation.reset_probability={shares[1]:g} are fractions "
                "of the changed entries, whose sum must be at most 1: decrease one of them."
            )

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        key, noise_key = jax.random.split(as_typed_key(key))
        noise = noise_rows(noise_key, solution, 0, self.pop_size)
        stds = jnp.full(self.pop_size, self.initial_std).at[0].set(0.0)

        def perturb(std: jax.Array, noise: Params) -> Params:
            return jax.tree.map(lambda x, z: x + (std * z).astype(x.dtype), solution, noise)

        population = projected(jax.vmap(perturb)(stds, noise), self.projection)
        return PyTreeDict(key=key, population=population, generation=jnp.int32(0))

    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        """Return individuals of the population; indices beyond the end return the last individual."""
        rows = first + jnp.arange(self.pop_size if count is None else count)
        return jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), state.population)

    def inject(self, state: PyTreeDict, solutions: Params, rows: jax.Array) -> PyTreeDict:
        population = jax.tree.map(lambda x, new: x.at[rows].set(new, mode="drop"), state.population, solutions)
        return state.replace(population=population)

    def breed(self, key: Key, population: Params, select: Callable[[Key, int], jax.Array], num: int) -> Params:
        """Select pairs of parents, and return ``num`` children, ``[num, ...]``, by crossover, mutation and projection.

        Args:
            key: a single random key.
            population: individuals from which parents are selected, leaves ``[P, ...]``.
            select: ``select(key, count)`` returns the indices of ``count`` parents, int32 ``[count]``.
            num: number of children.
        """
        select_key, cross_key, mutate_key = jax.random.split(key, 3)
        parents = select(select_key, num + num % 2).reshape(2, -1)
        first, second = (jax.tree.map(lambda x, rows=rows: x[rows], population) for rows in parents)
        pairs = self.crossover.children(cross_key, first, second)
        pairs = finite_or(pairs[0], first), finite_or(pairs[1], second)
        children = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[:num], *pairs)
        mutants = finite_or(self.mutation.mutants(mutate_key, children), children)
        return projected(mutants, self.projection)

"""What optimizers share that breed: a stored population, crossover and mutation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.noise import noise_rows
from evorl.ec.operators.variation import Crossover, Mutation
from evorl.ec.safeguards import finite_or
from evorl.ops.random import as_typed_key
from evorl.types import Key, Params, PyTreeDict


class BreedingOptimizer(EvoOptimizer):
    """Children of selected parents make the next generation. The population is part of the state.

    Attributes:
        pop_size: number of individuals P.
        initial_std: standard deviation of the noise around the given solution that makes the first population, whose
            first individual is the solution itself.
        crossover: how two parents are mixed.
        mutation: how children are changed.
    """

    pop_size: int
    initial_std: float = 0.1
    crossover: Crossover = Crossover()
    mutation: Mutation = Mutation()

    ranks_failures: ClassVar[bool] = True
    ranges: ClassVar[Mapping[str, str]] = {"initial_std": "[0, inf)"}

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The first population around ``solution``, to be asked for."""
        key, noise_key = jax.random.split(as_typed_key(key))
        noise = noise_rows(noise_key, solution, 0, self.pop_size)
        stds = jnp.full(self.pop_size, self.initial_std).at[0].set(0.0)

        def perturb(std: jax.Array, noise: Params) -> Params:
            return jax.tree.map(lambda x, z: x + (std * z).astype(x.dtype), solution, noise)

        population = jax.vmap(perturb)(stds, noise)
        return PyTreeDict(key=key, population=population, generation=jnp.int32(0))

    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        """Individuals of the population; past the last one, the last one again."""
        if count is None:
            count = self.pop_size
        rows = first + jnp.arange(count)
        return jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), state.population)

    @property
    def num_replaceable(self) -> int:
        """All."""
        return self.pop_size

    def inject(self, state: PyTreeDict, solutions: Params, rows: jax.Array) -> PyTreeDict:
        """See ``EvoOptimizer.inject``; who makes room leaves the population."""
        population = jax.tree.map(lambda x, new: x.at[rows].set(new, mode="drop"), state.population, solutions)
        return state.replace(population=population)

    def breed(self, key: Key, population: Params, select: Callable[[Key, int], jax.Array], num: int) -> Params:
        """``num`` children of pairs of parents, leaves ``[num, ...]``.

        Args:
            key: one, for all draws.
            population: of which parents are taken, leaves ``[P, ...]``.
            select: ``select(key, count)`` gives the numbers of ``count`` parents, int32 ``[count]``.
            num: how many children.
        """
        select_key, cross_key, mutate_key = jax.random.split(key, 3)
        parents = select(select_key, num + num % 2).reshape(2, -1)
        first, second = (jax.tree.map(lambda x, rows=rows: x[rows], population) for rows in parents)
        pairs = self.crossover.children(cross_key, first, second)
        pairs = finite_or(pairs[0], first), finite_or(pairs[1], second)
        children = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[:num], *pairs)
        return finite_or(self.mutation.mutants(mutate_key, children), children)

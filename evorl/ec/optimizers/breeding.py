"""What optimizers share that breed: a stored population, parents by tournament, crossover and mutation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.noise import noise_rows
from evorl.ec.operators.selection import tournament_selection
from evorl.ec.operators.variation import Crossover, Mutation
from evorl.ops.random import as_typed_key
from evorl.types import Key, Params, PyTreeDict


class BreedingOptimizer(EvoOptimizer):
    """Children of parents that won tournaments make the next generation. The population is part of the state.

    Attributes:
        pop_size: number of individuals P.
        init_std: standard deviation of the noise around the given solution that makes the first population; its first
            individual is the solution itself.
        tournament_size: how many compete to be a parent.
        crossover: how two parents are mixed.
        mutation: how children are changed.
    """

    pop_size: int
    init_std: float = 0.1
    tournament_size: int = 2
    crossover: Crossover = Crossover()
    mutation: Mutation = Mutation()

    ranges: ClassVar[Mapping[str, str]] = {"init_std": "[0, inf)"}

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The first population around ``solution``, to be asked for."""
        key, noise_key = jax.random.split(as_typed_key(key))
        noise = noise_rows(noise_key, solution, 0, self.pop_size)
        stds = jnp.full(self.pop_size, self.init_std).at[0].set(0.0)

        def disturbed(std: jax.Array, noise: Params) -> Params:
            return jax.tree.map(lambda x, z: x + (std * z).astype(x.dtype), solution, noise)

        population = jax.vmap(disturbed)(stds, noise)
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

    def _children(self, key: Key, population: Any, scores: jax.Array, num: int) -> Any:
        """``num`` children of the winners of tournaments by ``scores`` ``[P]``."""
        select_key, cross_key, mutate_key = jax.random.split(key, 3)
        parents = tournament_selection(select_key, scores, num + num % 2, self.tournament_size).reshape(2, -1)
        first, second = (jax.tree.map(lambda x, rows=rows: x[rows], population) for rows in parents)
        pairs = self.crossover.children(cross_key, first, second)
        children = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[:num], *pairs)
        return self.mutation.mutants(mutate_key, children)

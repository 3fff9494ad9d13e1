"""RVEA, a reference vector guided evolutionary algorithm for many objectives (Cheng, Jin, Olhofer & Sendhoff 2016,
https://doi.org/10.1109/TEVC.2016.2519378).
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp

from evorl.ec.operators.parent_selection import proportional_selection
from evorl.ec.operators.reference_vectors import (
    adapt_vectors,
    best_by_vector,
    lattice_size,
    simplex_lattice,
    unit_vectors,
)
from evorl.ec.optimizers.multi_objective_optimizer import MultiObjectiveOptimizer
from evorl.fields import Within
from evorl.ops.trees import row_of
from evorl.types import Key, Params, PyTreeDict


class RVEA(MultiObjectiveOptimizer):
    """RVEA: the best of parents and children along each of N reference vectors are the next parents.

    Reference vectors are evenly spread. The penalty on the angle to them is small at first, to favor convergence to the
    front, and grows towards the end, to favor diversity along the front. In the state, ``parents`` have one row per
    vector; a row's objectives are -inf if no individual is assigned to its vector. The state also has ``vectors``
    ``[N, M]`` and ``progress``, the completed fraction of the search.

    Attributes:
        divisions: number of divisions H of each axis, which gives ``(H + M - 1)! / (H! (M - 1)!)`` vectors; ``None``
            for the largest number with at most ``pop_size`` vectors.
        alpha: exponent of the growing penalty on the angle, ``progress ** alpha`` (eq. 9).
        adaptation_frequency: fraction of the search between adaptations of the vectors to the objectives' ranges.
        num_generations: number of generations of the search; ``None`` if the workflow determines the progress.

    Raises:
        ValueError: there are fewer than two objectives, or a setting is out of range.
    """

    divisions: int | None = None
    alpha: Annotated[float, Within("[0, inf)")] = 2.0
    adaptation_frequency: Annotated[float, Within("(0, 1]")] = 0.1
    num_generations: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_objectives < 2:
            raise ValueError(f"num_objectives={self.num_objectives}: reference vectors need at least 2 objectives.")
        if self.divisions is not None and self.divisions < 1:
            raise ValueError(f"divisions={self.divisions} must be at least 1, or null to derive it from pop_size.")
        if self.divisions is None and self.pop_size < self.num_objectives:
            raise ValueError(
                f"pop_size={self.pop_size} is less than the minimum number of reference vectors for "
                f"{self.num_objectives} objectives, {self.num_objectives}: use more individuals, or set divisions."
            )
        if self.num_generations is not None and self.num_generations < 1:
            raise ValueError(f"num_generations={self.num_generations} must be at least 1, or null for no fixed number.")

    @property
    def num_divisions(self) -> int:
        """Number of divisions H: ``divisions`` or, for ``None``, the largest with at most ``pop_size`` vectors."""
        if self.divisions is not None:
            return self.divisions
        divisions = 1
        while lattice_size(self.num_objectives, divisions + 1) <= self.pop_size:
            divisions += 1
        return divisions

    @property
    def num_parents(self) -> int:
        """Number of reference vectors N, equal to the maximum number of parents."""
        return lattice_size(self.num_objectives, self.num_divisions)

    @property
    def _first_vectors(self) -> jax.Array:
        return unit_vectors(jnp.asarray(simplex_lattice(self.num_objectives, self.num_divisions)))

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """Return the initial state, with a population around ``solution`` and no parents yet."""
        return super().init(solution, key) | {
            "vectors": self._first_vectors,
            "num_adaptations": jnp.int32(0),
            "progress": jnp.float32(0.0),
        }

    def at_progress(self, state: PyTreeDict, progress: jax.Array) -> PyTreeDict:
        """Return the state with this ``progress``; unchanged if ``num_generations`` determines the progress."""
        return state if self.num_generations is not None else state.replace(progress=progress)

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Select the next parents and breed their children, given the objectives ``[P, M]`` (algorithm 1).

        Individuals with a non-finite objective do not survive.
        """
        key, breed_key = jax.random.split(state.key)
        individuals, objectives = self.join(state, fitness)
        survivors, is_filled = best_by_vector(objectives, state.vectors, state.progress**self.alpha)
        objectives = jnp.where(is_filled[:, None], objectives.at[survivors].get(mode="clip"), -jnp.inf)
        survivors = jnp.where(is_filled, survivors, jnp.arange(self.num_parents))  # else an arbitrary row
        parents = jax.tree.map(lambda x: x[survivors], individuals)

        def select(key: Key, count: int) -> jax.Array:
            # Uniform over the rows with a parent; if no individual is finite, over all rows.
            return proportional_selection(key, is_filled | ~is_filled.any(), count)

        return self._adapt(state, objectives).replace(
            key=key,
            population=self.breed(breed_key, parents, select, self.pop_size),
            parents=parents,
            objectives=objectives,
            generation=state.generation + 1,
        )

    def _adapt(self, state: PyTreeDict, objectives: jax.Array) -> PyTreeDict:
        """Adapt the vectors at the start and after each ``adaptation_frequency`` of the search; update the progress."""
        num_due = jnp.floor(state.progress / self.adaptation_frequency + 1e-4).astype(jnp.int32) + 1
        adapted = adapt_vectors(state.vectors, self._first_vectors, objectives)
        progress = state.progress
        if self.num_generations is not None:
            progress = jnp.minimum((state.generation + 1) / self.num_generations, 1.0).astype(jnp.float32)
        return state.replace(
            vectors=jnp.where(num_due > state.num_adaptations, adapted, state.vectors),
            num_adaptations=jnp.maximum(num_due, state.num_adaptations),
            progress=progress,
        )

    def solution(self, state: PyTreeDict) -> Params:
        """Return the parent of the first vector that has one; before the first generation, the initial solution."""
        row = jnp.argmax(state.objectives[:, 0] > -jnp.inf)
        return row_of(state.parents, row)

"""RVEA: a population along directions in the space of many objectives (Cheng, Jin, Olhofer & Sendhoff 2016,
https://doi.org/10.1109/TEVC.2016.2519378).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

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
from evorl.types import Key, Params, PyTreeDict


class RVEA(MultiObjectiveOptimizer):
    """Of parents and children the best along each of N reference vectors are the next parents.

    Vectors are spread evenly, and far from them counts as bad: little at first, where individuals have to come nearer
    to the front, more towards the end, where they have to spread along it. Parents in the state have a row for each
    vector, with objectives of minus infinity where a vector has nobody. Beside them it holds the ``vectors`` ``[N, M]``
    and ``progress``, the share of the search that is over.

    Attributes:
        divisions: H, into how many steps an axis is divided between the vectors, of which there are
            ``(H + M - 1)! / (H! (M - 1)!)``; ``None`` for as many as make at most ``pop_size`` vectors.
        alpha: how the penalty grows: it is ``progress ** alpha`` of the whole one (eq. 9).
        adaptation_frequency: f_r, the share of the search after which the vectors are scaled to the objectives again.
        num_generations: t_max, generations of the whole search; ``None`` where ``at_progress`` tells how much is over.

    Raises:
        ValueError: there are fewer than two objectives or divisions make no vectors, in words.
    """

    divisions: int | None = None
    alpha: float = 2.0
    adaptation_frequency: float = 0.1
    num_generations: int | None = None

    ranges: ClassVar[Mapping[str, str]] = {
        **MultiObjectiveOptimizer.ranges,
        "alpha": "[0, inf)",
        "adaptation_frequency": "(0, 1]",
    }

    def __post_init__(self) -> None:
        if self.num_objectives < 2:
            raise ValueError(f"num_objectives={self.num_objectives}: reference vectors need at least 2 objectives.")
        if self.divisions is not None and self.divisions < 1:
            raise ValueError(f"divisions={self.divisions}: divide by at least 1, or null for the population's size.")
        if self.divisions is None and self.pop_size < self.num_objectives:
            raise ValueError(
                f"pop_size={self.pop_size} is less than a reference vector for each of {self.num_objectives} "
                "objectives: take more individuals, or set divisions."
            )
        if self.num_generations is not None and self.num_generations < 1:
            raise ValueError(f"num_generations={self.num_generations} must be at least 1, or null.")

    @property
    def num_divisions(self) -> int:
        """H: ``divisions``, or the most that make at most ``pop_size`` vectors."""
        if self.divisions is not None:
            return self.divisions
        divisions = 1
        while lattice_size(self.num_objectives, divisions + 1) <= self.pop_size:
            divisions += 1
        return divisions

    @property
    def num_parents(self) -> int:
        """Reference vectors N, the most parents there are."""
        return lattice_size(self.num_objectives, self.num_divisions)

    @property
    def _first_vectors(self) -> jax.Array:
        return unit_vectors(jnp.asarray(simplex_lattice(self.num_objectives, self.num_divisions)))

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The first population around ``solution``, to be asked for; no parents yet."""
        return super().init(solution, key) | {
            "vectors": self._first_vectors,
            "num_adaptations": jnp.int32(0),
            "progress": jnp.float32(0.0),
        }

    def at_progress(self, state: PyTreeDict, progress: jax.Array) -> PyTreeDict:
        """With this ``progress``, unless ``num_generations`` tells it."""
        return state if self.num_generations is not None else state.replace(progress=progress)

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """The next parents and their children, given the objectives ``[P, M]`` of this generation (algorithm 1).

        An individual with an objective that is not finite does not survive.
        """
        key, breed_key = jax.random.split(state.key)
        everyone, objectives = self.join(state, fitness)
        survivors, is_filled = best_by_vector(objectives, state.vectors, state.progress**self.alpha)
        objectives = jnp.where(is_filled[:, None], objectives.at[survivors].get(mode="clip"), -jnp.inf)
        survivors = jnp.where(is_filled, survivors, jnp.arange(self.num_parents))  # nobody new: who was there stays
        parents = jax.tree.map(lambda x: x[survivors], everyone)

        def select(key: Key, count: int) -> jax.Array:
            # Everybody as likely as any other; where nobody is finite, all rows are the solution given at first.
            return proportional_selection(key, is_filled | ~is_filled.any(), count)

        return self._adapt(state, objectives).replace(
            key=key,
            population=self.breed(breed_key, parents, select, self.pop_size),
            parents=parents,
            objectives=objectives,
            generation=state.generation + 1,
        )

    def _adapt(self, state: PyTreeDict, objectives: jax.Array) -> PyTreeDict:
        """With the vectors adapted when it is time, at the beginning and after each f_r of the search; and progress."""
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
        """The parent along the first vector that has one: an end of the front found; the given solution before."""
        row = jnp.argmax(state.objectives[:, 0] > -jnp.inf)
        return jax.tree.map(lambda x: x[row], state.parents)

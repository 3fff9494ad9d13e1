"""State and history of a population: hyperparameters, scores and parents per generation, and the best lineage."""

from __future__ import annotations

from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.search_space import SearchSpace
from evorl.metrics import WideCounter
from evorl.ops.selection import best_member
from evorl.runs.recorder import Chart, Panel
from evorl.types import Entry, Key, PyTreeData, State


class PopulationHistory(PyTreeData):
    """Ring buffer of the last G generations of P members: generation g is in row g modulo G.

    Attributes:
        hyper_parameters: hyperparameters of the members in each generation, ``[G, P, D]``.
        scores: scores of the members in each generation, ``[G, P]``.
        parents: index of the member from whose state each member continued after the generation, int32 ``[G, P]``.
    """

    hyper_parameters: jax.Array
    scores: jax.Array
    parents: jax.Array

    @classmethod
    def create(cls, num_generations: int, num_members: int, num_hyper_parameters: int) -> Self:
        """Create an empty history with capacity for ``num_generations``."""
        return cls(
            hyper_parameters=jnp.zeros((num_generations, num_members, num_hyper_parameters)),
            scores=jnp.zeros((num_generations, num_members)),
            parents=jnp.zeros((num_generations, num_members), jnp.int32),
        )

    def record(
        self, generation: jax.Array, hyper_parameters: jax.Array, scores: jax.Array, parents: jax.Array
    ) -> PopulationHistory:
        """Return the history with ``generation`` recorded, in place of the oldest one if the history is full."""
        row = generation % self.scores.shape[0]
        return PopulationHistory(
            hyper_parameters=self.hyper_parameters.at[row].set(hyper_parameters),
            scores=self.scores.at[row].set(scores),
            parents=self.parents.at[row].set(parents),
        )

    def __getitem__(self, seed: Any) -> PopulationHistory:
        """Return the history of one seed, if the leading axis is the seed axis."""
        return jax.tree.map(lambda x: x[seed], self)

    def generations(self, num_generations: int) -> np.ndarray:
        """Return the numbers ``[N]`` of the generations stored after ``num_generations`` in total, oldest first."""
        return np.arange(max(0, num_generations - self.scores.shape[0]), num_generations)

    def best_lineage(self, num_generations: int) -> np.ndarray:
        """Return the ancestor of the last generation's best member in each stored generation, NumPy int32 ``[N]``."""
        parents = np.asarray(self.parents)
        rows = self.generations(num_generations) % len(parents)
        line = np.zeros(len(rows), np.int32)
        member = int(best_member(self.scores[rows[-1]])) if len(rows) else 0
        for i in reversed(range(len(rows))):
            line[i] = member
            member = int(parents[rows[i - 1], member])
        return line

    def chart(self, num_generations: int, timesteps_per_generation: int, space: SearchSpace) -> Chart:
        """Return a chart with one row per member and generation; ``winner`` is 1 along the best member's lineage.

        The x-axis is environment steps, or generations if ``timesteps_per_generation`` is 0 because it varies.
        """
        generations = self.generations(num_generations)
        rows, num_members = generations % self.scores.shape[0], self.scores.shape[1]
        over_steps = timesteps_per_generation > 0
        timesteps = (generations + 1) * timesteps_per_generation
        members = np.broadcast_to(np.arange(num_members), (len(generations), num_members))
        values = np.asarray(self.hyper_parameters)[rows]
        columns = {
            "generation": np.repeat(generations, num_members),
            **({"timesteps": np.repeat(timesteps, num_members)} if over_steps else {}),
            "member": members.ravel(),
            "parent": np.asarray(self.parents)[rows].ravel(),
            "score": np.asarray(self.scores)[rows].ravel(),
            "winner": (members == self.best_lineage(num_generations)[:, None]).astype(np.int32).ravel(),
            **{path: values[:, :, i].ravel() for i, path in enumerate(space.paths)},
        }
        x = "timesteps" if over_steps else "generation"
        panels = [Panel(x, "score", marked="winner")]
        for path, logarithmic in zip(space.paths, np.asarray(space.logarithmic), strict=True):
            panels.append(Panel(x, path, marked="winner", log=bool(logarithmic)))
        return Chart(columns, tuple(panels))


class PopulationState(State):
    """State of population-based training.

    Attributes:
        members: states of the members, leaves ``[P, ...]``, without ``iterations`` and shared entries.
        shared: entries that all members share: ``replay_state``, or none.
        hyper_parameters: hyperparameters of the members, ``[P, D]``.
        velocities: velocities of the hyperparameters in competitive swarm optimization, ``[P, D]``.
        scores: last score of each member, ``[P]``; NaN before the first score.
        history: last generations of the population.
        key: random key of selection and variation.
        eval_key: random key of evaluations.
        iterations: number of finished generations.
        timesteps: environment steps, summed over members.
    """

    members: Annotated[State, Entry(axis=0)]
    shared: State
    hyper_parameters: jax.Array
    velocities: jax.Array
    scores: jax.Array
    history: PopulationHistory
    key: Key
    eval_key: Key
    iterations: WideCounter
    timesteps: WideCounter

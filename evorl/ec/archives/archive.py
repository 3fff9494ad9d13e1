"""Base class of archives: each cell of descriptor space stores its elite, the best solution found in the cell.

A descriptor is a vector of D numbers that describes a solution's behavior, not its quality. An archive divides the box
from ``low`` to ``high`` of descriptor space into C cells. Subclasses define the cells, or replace them by a population.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

import jax
import jax.numpy as jnp

from evorl.fields import Within
from evorl.ops.random import draw
from evorl.types import Key, Params, PyTreeData, PyTreeNode


class ArchiveState(PyTreeData):
    """The elites of C cells.

    Attributes:
        solutions: the elites, leaves ``[C, ...]``; empty cells have the solution passed to ``init``.
        fitness: fitness of the elites, float32 ``[C]``, minus infinity for empty cells.
        descriptors: descriptors of the elites, float32 ``[C, D]``, zeros for empty cells.
        thresholds: acceptance thresholds, float32 ``[C]``; ``None`` if the threshold of a cell is its elite's fitness.
    """

    solutions: Params
    fitness: jax.Array
    descriptors: jax.Array
    thresholds: jax.Array | None = None

    @property
    def is_filled(self) -> jax.Array:
        """True for cells with an elite, bool ``[C]``."""
        return self.fitness > -jnp.inf


NEW, IMPROVED, REJECTED = 2, 1, 0  # statuses of candidates


class Verdicts(PyTreeData):
    """Acceptance of N candidates by an archive, each judged separately before any of them is added.

    Attributes:
        status: int32 ``[N]``: ``NEW`` if accepted in an empty cell, ``IMPROVED`` in a filled cell, else ``REJECTED``.
        improvement: fitness minus the threshold of the cell, by default the elite's fitness, float32 ``[N]``; the
            fitness itself in empty cells without a threshold; -inf if the fitness or the descriptor is not finite.
    """

    status: jax.Array
    improvement: jax.Array


class Archive(PyTreeNode):
    """Archive that stores an elite for each cell of descriptor space. The state is separate; every method is pure.

    Attributes:
        low: lower bound of each of the D dimensions of a descriptor.
        high: upper bound of each dimension; descriptors outside the bounds belong to the nearest cell at the border.
        threshold_min: initial acceptance threshold of every cell (CMA-MAE): a candidate is accepted if its fitness is
            above the threshold of its cell. ``None`` accepts candidates better than the elite. In both cases, the elite
            of a cell is its best candidate so far.
        threshold_rate: learning rate alpha of the thresholds: 0 keeps them constant, 1 sets them to the mean fitness of
            the candidates accepted last. Has no effect without ``threshold_min``.

    Settings:
        name: kind of the archive: grid, centroid (cells around evenly spread points), or dominated_novelty (no cells).

    Raises:
        ValueError: ``low`` or ``high`` is not a non-empty list, their lengths differ, or ``low`` is not below ``high``.
    """

    low: tuple[float, ...] = (0.0,)
    high: tuple[float, ...] = (1.0,)
    threshold_min: float | None = None
    threshold_rate: Annotated[float, Within("[0, 1]")] = 0.01

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            values = getattr(self, name)
            if isinstance(values, str) or not hasattr(values, "__len__") or not len(values):
                raise ValueError(f"{name} must be a list of numbers, one per descriptor dimension, got {values!r}.")
        if len(self.low) != len(self.high):
            raise ValueError(f"low has {len(self.low)} numbers and high {len(self.high)}: both need one per dimension.")
        for low, high in zip(self.low, self.high, strict=True):
            if isinstance(low, int | float) and isinstance(high, int | float) and low >= high:
                raise ValueError(f"low={low:g} must be below high={high:g}: correct the bounds of this dimension.")

    @property
    def num_dimensions(self) -> int:
        """Number of dimensions of a descriptor, D."""
        return len(self.low)

    @property
    @abstractmethod
    def num_cells(self) -> int:
        """Number of cells C."""

    @abstractmethod
    def cells_of(self, shares: jax.Array) -> jax.Array:
        """Return the cell indices, int32 ``[N]``, of descriptors ``[N, D]`` scaled from [low, high] to [0, 1]."""

    @property
    def num_slots(self) -> int:
        """Maximum number of stored solutions C: one per cell."""
        return self.num_cells

    def cells(self, descriptors: jax.Array) -> jax.Array:
        """Return the cell indices, int32 ``[N]``, of descriptors ``[N, D]``."""
        # Scaled by a power of two, so that differences and their reciprocals are normal float32 numbers.
        low, high, descriptors = (jnp.asarray(x, jnp.float32) / 16 for x in (self.low, self.high, descriptors))
        return self.cells_of(jnp.clip((descriptors - low) / (high - low), 0.0, 1.0))

    def init(self, solution: Params) -> ArchiveState:
        """Return the state of an empty archive for solutions with the structure and shapes of ``solution``."""
        num = self.num_slots
        return ArchiveState(
            solutions=jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *jnp.shape(x))), solution),
            fitness=jnp.full(num, -jnp.inf, jnp.float32),
            descriptors=jnp.zeros((num, self.num_dimensions), jnp.float32),
            thresholds=None if self.threshold_min is None else jnp.full(num, self.threshold_min, jnp.float32),
        )

    def add(self, state: ArchiveState, solutions: Params, fitness: jax.Array, descriptors: jax.Array) -> ArchiveState:
        """Return the state in which better candidates have replaced elites, and thresholds have been adapted.

        In each cell, the best candidate (the first if tied) replaces the elite if the elite's fitness is lower.
        Candidates with a non-finite fitness or descriptor are ignored.

        Args:
            state: state of the archive.
            solutions: candidates, leaves ``[N, ...]``.
            fitness: fitness of the candidates, ``[N]``.
            descriptors: descriptors of the candidates, ``[N, D]``.

        Raises:
            ValueError: the descriptors have the wrong shape.
        """
        num, candidates = self.num_cells, jnp.arange(fitness.shape[0])
        is_valid, cells = self.valid_cells(fitness, descriptors)
        # The cell index C marks ignored candidates: segment operations skip them, and writes drop them.
        best = jax.ops.segment_max(jnp.where(is_valid, fitness, -jnp.inf), cells, num)  # [C]
        is_better = is_valid & (fitness == best[cells]) & (fitness > state.fitness[cells])
        first = jax.ops.segment_min(candidates, jnp.where(is_better, cells, num), num)  # [C]
        targets = jnp.where(is_better & (candidates == first[cells]), cells, num)
        old, new = (state.solutions, state.fitness, state.descriptors), (solutions, fitness, descriptors)
        elites = jax.tree.map(lambda x, rows: x.at[targets].set(rows, mode="drop"), old, new)
        return ArchiveState(*elites, thresholds=self._raised_thresholds(state, fitness, is_valid, cells))

    def _raised_thresholds(
        self, state: ArchiveState, fitness: jax.Array, is_valid: jax.Array, cells: jax.Array
    ) -> jax.Array | None:
        """Return thresholds moved towards the mean fitness of accepted candidates; ``None`` without thresholds."""
        if state.thresholds is None:
            return None
        accepted = is_valid & (fitness > state.thresholds[cells])
        count = jax.ops.segment_sum(accepted.astype(jnp.float32), cells, self.num_cells)
        total = jax.ops.segment_sum(jnp.where(accepted, fitness, 0.0), cells, self.num_cells)
        weight = jnp.where(count > 0, jnp.power(1.0 - self.threshold_rate, count), 1.0)
        return weight * state.thresholds + (1.0 - weight) * total / jnp.maximum(count, 1.0)

    def judge(self, state: ArchiveState, fitness: jax.Array, descriptors: jax.Array) -> Verdicts:
        """Return the verdicts on candidates with fitness ``[N]`` and descriptors ``[N, D]``, without adding them."""
        is_valid, cells = self.valid_cells(fitness, descriptors)
        is_empty = ~state.is_filled[cells]
        bar = (state.fitness if state.thresholds is None else state.thresholds)[cells]
        status = jnp.where(is_valid & (fitness > bar), jnp.where(is_empty, NEW, IMPROVED), REJECTED)
        improvement = fitness - jnp.where(jnp.isfinite(bar), bar, 0.0)
        return Verdicts(status.astype(jnp.int32), jnp.where(is_valid, improvement, -jnp.inf))

    def valid_cells(self, fitness: jax.Array, descriptors: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return a mask ``[N]``, True for finite fitness and descriptors, and cell indices ``[N]``, C where False.

        Raises:
            ValueError: the descriptors have the wrong shape.
        """
        if descriptors.shape != (*fitness.shape, self.num_dimensions):
            raise ValueError(
                f"the archive has {self.num_dimensions} dimensions, so the descriptors of {fitness.shape[0]} solutions "
                f"must have shape {[fitness.shape[0], self.num_dimensions]}, got {list(descriptors.shape)}."
            )
        is_valid = jnp.isfinite(fitness) & jnp.isfinite(descriptors).all(axis=1)
        return is_valid, jnp.where(is_valid, self.cells(jnp.where(is_valid[:, None], descriptors, 0.0)), self.num_cells)

    def sample(self, state: ArchiveState, key: Key, num: int) -> Params:
        """Sample ``num`` elites uniformly with replacement, leaves ``[num, ...]``.

        The samples of an empty archive are the solution passed to ``init``. ``key`` is one key, or one per sample.
        """
        counts = jnp.cumsum(state.is_filled)  # [C]
        number = draw(lambda key, shape: jax.random.randint(key, shape, 0, jnp.maximum(counts[-1], 1)), key, (num,))
        cells = jnp.minimum(jnp.searchsorted(counts, number, side="right"), counts.shape[0] - 1)
        return jax.tree.map(lambda x: x[cells], state.solutions)

    def cell_fitness(self, fitness: jax.Array, descriptors: jax.Array) -> jax.Array:
        """Return the best fitness in each cell, ``[num_cells]``, -inf if empty; inputs are as in ``ArchiveState``."""
        return fitness

    def qd_score(self, state: ArchiveState, offset: jax.Array | float = 0.0) -> jax.Array:
        """Return the sum of ``fitness - offset`` over filled cells; choose the minimum possible fitness as offset."""
        fitness = self.cell_fitness(state.fitness, state.descriptors)
        return jnp.where(fitness > -jnp.inf, fitness - offset, 0.0).sum()

    def coverage(self, state: ArchiveState) -> jax.Array:
        """Return the fraction of cells that have an elite, a scalar."""
        return (self.cell_fitness(state.fitness, state.descriptors) > -jnp.inf).mean(dtype=jnp.float32)

    def best(self, state: ArchiveState) -> tuple[Params, jax.Array]:
        """Return the elite with the largest fitness, and this fitness, a scalar; -inf if the archive is empty."""
        cell = jnp.argmax(state.fitness)
        return jax.tree.map(lambda x: x[cell], state.solutions), state.fitness[cell]

"""The one archive engine: cells of a space of descriptors, in each the best solution that ever fell into it.

A descriptor says in D numbers what a solution does, not how well. An archive divides the box from ``low`` to ``high``
of that space into C cells, and says which one a descriptor falls into: that is all that kinds of archives differ in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.names import load, no_such
from evorl.ops.random import draw
from evorl.types import Key, Params, PyTreeData, PyTreeNode

# Archives by the names that configs give them.
ARCHIVES = {
    "grid": "evorl.ec.archives.grid:GridArchive",
    "centroid": "evorl.ec.archives.centroid:CentroidArchive",
}


class ArchiveState(PyTreeData):
    """The elites of C cells.

    Attributes:
        solutions: leaves ``[C, ...]``; of empty cells the solution that the archive began with.
        fitness: float32 ``[C]``, minus infinity where a cell is empty.
        descriptors: float32 ``[C, D]``, zeros where a cell is empty.
    """

    solutions: Params
    fitness: jax.Array
    descriptors: jax.Array

    @property
    def is_filled(self) -> jax.Array:
        """Which cells have an elite, bool ``[C]``."""
        return self.fitness > -jnp.inf


class Archive(PyTreeNode):
    """Elites by what they do. The state is outside, and every method is pure.

    Attributes:
        low: the least descriptor of each of the D dimensions.
        high: the greatest; a descriptor outside belongs to the cell at the border.

    Settings:
        name: grid, or centroid: cells around evenly spread points.

    Raises:
        ValueError: ``low`` and ``high`` differ in length, or are in disorder.
    """

    low: tuple[float, ...] = (0.0,)
    high: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            values = getattr(self, name)
            if isinstance(values, str) or not hasattr(values, "__len__") or not len(values):
                raise ValueError(f"an archive's {name} is a list with a number for each descriptor, got {values!r}.")
        if len(self.low) != len(self.high):
            raise ValueError(
                f"an archive's low and high have a number for each descriptor: got {len(self.low)} and "
                f"{len(self.high)}."
            )
        for low, high in zip(self.low, self.high, strict=True):
            if isinstance(low, int | float) and isinstance(high, int | float) and low >= high:
                raise ValueError(f"an archive's low={low:g} is not below its high={high:g}.")

    @classmethod
    def variant(cls, config: Mapping[str, Any], where: str) -> tuple[type[Archive], dict[str, Any]]:
        """The class that a config names as ``name``, and the settings of its fields.

        Raises:
            ValueError: it names none, or one that there is not; with the nearest name.
        """
        settings = dict(config)
        name = settings.pop("name", None)
        if name not in ARCHIVES:
            raise ValueError(no_such(f"archive for {where}", name, ARCHIVES))
        return load(ARCHIVES[name]), settings

    @property
    def variant_name(self) -> str:
        """What a config calls it as ``name``."""
        return next(name for name, path in ARCHIVES.items() if load(path) is type(self))

    @property
    def num_dimensions(self) -> int:
        """Numbers in a descriptor, D."""
        return len(self.low)

    @property
    @abstractmethod
    def num_cells(self) -> int:
        """Number of cells C."""

    @abstractmethod
    def cells_of(self, shares: jax.Array) -> jax.Array:
        """The cells, int32 ``[N]``, of descriptors ``[N, D]`` that are given as shares of the way from low to high."""

    def cells(self, descriptors: jax.Array) -> jax.Array:
        """The cells, int32 ``[N]``, that descriptors ``[N, D]`` fall into."""
        low, high = (jnp.asarray(values, jnp.float32) for values in (self.low, self.high))
        return self.cells_of(jnp.clip((descriptors - low) / (high - low), 0.0, 1.0))

    def init(self, solution: Params) -> ArchiveState:
        """An empty archive for solutions like this one."""
        num = self.num_cells
        return ArchiveState(
            solutions=jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *jnp.shape(x))), solution),
            fitness=jnp.full(num, -jnp.inf, jnp.float32),
            descriptors=jnp.zeros((num, self.num_dimensions), jnp.float32),
        )

    def add(self, state: ArchiveState, solutions: Params, fitness: jax.Array, descriptors: jax.Array) -> ArchiveState:
        """The archive with those candidates that are better than the elite of their cell.

        Of several candidates for a cell the best comes in, of equally good ones the first; an elite stays where none
        is better. A candidate whose fitness or descriptor is not finite is none.

        Args:
            state: the archive.
            solutions: candidates, leaves ``[N, ...]``.
            fitness: ``[N]``.
            descriptors: ``[N, D]``.

        Raises:
            ValueError: descriptors are of another size than the archive's.
        """
        if descriptors.shape != (*fitness.shape, self.num_dimensions):
            raise ValueError(
                f"the archive has {self.num_dimensions} dimensions, so that {fitness.shape[0]} solutions have "
                f"descriptors {[fitness.shape[0], self.num_dimensions]}; got {list(descriptors.shape)}."
            )
        num, candidates = self.num_cells, jnp.arange(fitness.shape[0])
        is_valid = jnp.isfinite(fitness) & jnp.isfinite(descriptors).all(axis=1)
        cells = jnp.where(is_valid, self.cells(jnp.where(is_valid[:, None], descriptors, 0.0)), num)
        # A cell beyond the last takes part in nothing: sums leave it out, writes drop it.
        best = jax.ops.segment_max(jnp.where(is_valid, fitness, -jnp.inf), cells, num)  # [C]
        is_better = is_valid & (fitness == best[cells]) & (fitness > state.fitness[cells])
        first = jax.ops.segment_min(candidates, jnp.where(is_better, cells, num), num)  # [C]
        places = jnp.where(is_better & (candidates == first[cells]), cells, num)
        old, new = (state.solutions, state.fitness, state.descriptors), (solutions, fitness, descriptors)
        return ArchiveState(*jax.tree.map(lambda x, rows: x.at[places].set(rows, mode="drop"), old, new))

    def sample(self, state: ArchiveState, key: Key, num: int) -> Params:
        """``num`` elites with replacement, each as likely as any other, leaves ``[num, ...]``.

        From an empty archive it is the solution that it began with. ``key`` is one, or one for each.
        """
        until = jnp.cumsum(state.is_filled)  # [C]
        number = draw(lambda key, shape: jax.random.randint(key, shape, 0, jnp.maximum(until[-1], 1)), key, (num,))
        cells = jnp.minimum(jnp.searchsorted(until, number, side="right"), self.num_cells - 1)
        return jax.tree.map(lambda x: x[cells], state.solutions)

    def qd_score(self, state: ArchiveState, offset: jax.Array | float = 0.0) -> jax.Array:
        """The sum over all elites of fitness above ``offset``, which should be the least there can be."""
        return jnp.where(state.is_filled, state.fitness - offset, 0.0).sum()

    def coverage(self, state: ArchiveState) -> jax.Array:
        """The share of the cells that have an elite."""
        return state.is_filled.mean(dtype=jnp.float32)

    def best(self, state: ArchiveState) -> tuple[Params, jax.Array]:
        """The best elite of all, and its fitness."""
        cell = jnp.argmax(state.fitness)
        return jax.tree.map(lambda x: x[cell], state.solutions), state.fitness[cell]

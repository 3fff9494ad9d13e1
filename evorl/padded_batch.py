"""Episodes, or slices of them, of different lengths in one batch: padded in time, with the length of each.

Every operation keeps NumPy arrays NumPy arrays, so that batches can be put together beside simulators; on JAX's arrays
all may be traced but those that say otherwise, whose result has a shape that depends on lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.core
import numpy as np

from evorl.ops.trees import array_library, concatenate_trees
from evorl.types import PyTreeData, PyTreeDict

Tree = TypeVar("Tree")


class PaddedBatch(PyTreeData, Generic[Tree]):
    """Rows of steps; what follows a row's length is padding, and may hold anything.

    Attributes:
        data: any tree, often a ``SampleBatch``; leaves ``[B, T, ...]``.
        lengths: steps of each row, int32 ``[B]``.
        info: what is known once for each row, as who acted, where, and from which recurrent state; leaves ``[B, ...]``.
    """

    data: Tree
    lengths: Any
    info: Any = None

    @property
    def num_rows(self) -> int:
        """B."""
        return self.lengths.shape[0]

    @property
    def num_steps(self) -> int:
        """T, padding included; 0 without data."""
        leaves = jax.tree.leaves(self.data)
        return leaves[0].shape[1] if leaves else 0

    @property
    def mask(self) -> Any:
        """The steps that are no padding, bool ``[B, T]``."""
        return array_library(self.lengths).arange(self.num_steps) < self.lengths[:, None]

    def __getitem__(self, rows: Any) -> PaddedBatch[Tree]:
        """Some rows: a slice, or an array of row numbers or bools.

        Raises:
            TypeError: a single number, which would leave no axis of rows.
        """
        if isinstance(rows, int | np.integer):
            raise TypeError(f"batch[{rows}] is no batch: batch.episodes()[{rows}] is that row without its padding.")
        return jax.tree.map(lambda x: x[rows], self)

    __iter__ = None  # without it, iteration would index past the end for ever

    def between(self, start: int, stop: int) -> PaddedBatch[Tree]:
        """Steps ``start`` to ``stop - 1`` of every row; rows that end before have length 0.

        Raises:
            ValueError: there are no such steps.
        """
        if not 0 <= start <= stop:
            raise ValueError(f"steps go from 0 on and forwards, got between({start}, {stop}).")
        return self.replace(
            data=jax.tree.map(lambda x: x[:, start:stop], self.data),
            lengths=(self.lengths - start).clip(0, stop - start),
        )

    def at(self, steps: Any) -> Tree:
        """One step of every row, leaves ``[B, ...]``: the same for all, or ``steps`` ``[B]``; see ``mask``."""
        return jax.tree.map(lambda x: x[np.arange(self.num_rows), steps], self.data)

    def running_at(self, step: int) -> tuple[Tree, np.ndarray]:
        """This step of the rows that have it, leaves ``[R, ...]``, and their numbers, int32 ``[R]``. Not in a trace."""
        rows = np.flatnonzero(self._lengths_on_host("running_at") > step).astype(np.int32)
        return jax.tree.map(lambda x: x[rows, np.full_like(rows, step)], self.data), rows

    def shorten(self) -> PaddedBatch[Tree]:
        """Without the steps that are padding in all rows. Not in a trace."""
        return self.between(0, int(self._lengths_on_host("shorten").max(initial=0)))

    def expand(self, num_rows: int) -> PaddedBatch[Tree]:
        """With rows of zeros and length 0 at the end, ``num_rows`` in all.

        Raises:
            ValueError: there are more rows already.
        """
        if num_rows < self.num_rows:
            raise ValueError(
                f"a batch of {self.num_rows} rows cannot be expanded to {num_rows}: take batch[:{num_rows}]."
            )
        return jax.tree.map(lambda x: _with_zeros(x, num_rows - self.num_rows, axis=0), self)

    def episodes(self) -> list[Tree]:
        """Every row without its padding, leaves ``[length, ...]``. Not in a trace."""
        lengths = self._lengths_on_host("episodes")
        return [jax.tree.map(lambda x, i=i, n=n: x[i, :n], self.data) for i, n in enumerate(lengths)]

    def _lengths_on_host(self, asked: str) -> np.ndarray:
        if isinstance(self.lengths, jax.core.Tracer):
            raise ValueError(
                f"PaddedBatch.{asked} gives arrays whose shapes depend on lengths: call it outside of jitted "
                "functions, and use mask inside of them."
            )
        return np.asarray(self.lengths)


def padded_batch(data: Tree, lengths: Any = None, info: Any = None) -> PaddedBatch[Tree]:
    """A batch of arrays that are padded already.

    Args:
        data: leaves ``[B, T, ...]``.
        lengths: integers ``[B]``; T for all by default.
        info: leaves ``[B, ...]``.

    Raises:
        ValueError: axes do not agree, or a row is longer than the data.
    """
    shapes = {leaf.shape[:2] for leaf in jax.tree.leaves(data)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ValueError(f"the leaves of a padded batch share the axes [B, T], got {sorted(shapes)}.")
    num_rows, num_steps = shapes.pop()
    library = array_library(data)
    given = library.full(num_rows, num_steps) if lengths is None else library.asarray(lengths)
    if given.shape != (num_rows,):
        raise ValueError(f"{num_rows} rows have {num_rows} lengths, got lengths of shape {given.shape}.")
    if not isinstance(given, jax.core.Tracer) and not np.all((given >= 0) & (given <= num_steps)):
        raise ValueError(f"rows of {num_steps} steps have lengths from 0 to {num_steps}, got {given.tolist()}.")
    if any(leaf.shape[0] != num_rows for leaf in jax.tree.leaves(info)):
        raise ValueError(f"info is known once for each of {num_rows} rows, got {jax.tree.map(np.shape, info)}.")
    return PaddedBatch(data=data, lengths=given.astype(np.int32), info=info)


def pad_episodes(episodes: Sequence[Tree], info: Any = None) -> PaddedBatch[Tree]:
    """A batch of episodes, padded by zeros to the longest.

    Args:
        episodes: trees of one structure, the leaves of each ``[its length, ...]``.
        info: leaves ``[len(episodes), ...]``.

    Raises:
        ValueError: there is no episode, or the leaves of one differ in length.
    """
    if not episodes:
        raise ValueError("a batch of no episodes has no shape: give one episode at least.")
    lengths = [{leaf.shape[0] for leaf in jax.tree.leaves(episode)} for episode in episodes]
    for number, of_one in enumerate(lengths):
        if len(of_one) != 1:
            raise ValueError(
                f"all leaves of an episode have its length; those of episode {number} have {sorted(of_one)}."
            )
    counts = np.array([length.pop() for length in lengths], np.int32)
    longest, library = int(counts.max()), array_library(episodes)

    def pad(*leaves: Any) -> Any:
        return library.stack([_with_zeros(leaf, longest - leaf.shape[0], axis=0) for leaf in leaves])

    return PaddedBatch(data=jax.tree.map(pad, *episodes), lengths=library.asarray(counts), info=info)


def concatenate(batches: Sequence[PaddedBatch[Tree]]) -> PaddedBatch[Tree]:
    """The rows of all batches in order; shorter batches are padded in time by zeros."""
    num_steps = max(batch.num_steps for batch in batches)
    longer = [
        batch.replace(
            data=jax.tree.map(lambda x, missing=num_steps - batch.num_steps: _with_zeros(x, missing, 1), batch.data)
        )
        for batch in batches
    ]
    return concatenate_trees(longer)


def split_episodes(trajectory: Tree, dones: Any) -> PaddedBatch[Tree]:
    """The episodes of a window, whole or cut by its ends, as a row each; environment by environment. Not in a trace.

    Args:
        trajectory: leaves ``[T, B, ...]``, as of a rollout.
        dones: where an episode ended, ``[T, B]``.

    Returns:
        The rows, and in ``info`` of each the number of its ``env``, the step it ``starts`` with, int32, and whether it
        ``ended`` inside of the window, bool.
    """
    ended = np.asarray(dones, bool)
    rows: list[tuple[int, int, int]] = []  # environment, first step, the one after the last
    for env in range(ended.shape[1]):
        stops = [*(np.flatnonzero(ended[:, env]) + 1).tolist(), ended.shape[0]]
        rows += [(env, start, stop) for start, stop in zip([0, *stops], stops, strict=False) if start < stop]
    envs, starts, stops = np.array(rows, np.int32).reshape(-1, 3).T
    episodes = [jax.tree.map(lambda x, e=e, a=a, b=b: x[a:b, e], trajectory) for e, a, b in rows]
    return pad_episodes(episodes, info=PyTreeDict(env=envs, starts=starts, ended=ended[stops - 1, envs]))


def _with_zeros(x: Any, count: int, axis: int) -> Any:
    widths = [(0, count if i == axis else 0) for i in range(x.ndim)]
    return array_library(x).pad(x, widths)

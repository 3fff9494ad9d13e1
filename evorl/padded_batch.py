"""Batches of episodes, or of slices of episodes, of different lengths, padded in time.

Every operation on NumPy arrays returns NumPy arrays, so that batches can be assembled in processes that run simulators.
All operations on JAX arrays can be traced, except those marked "Not traceable": their output shapes depend on lengths.
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
    """B rows of T steps. The steps of a row after its length are padding with arbitrary values.

    Attributes:
        data: any pytree, often a ``SampleBatch``; leaves ``[B, T, ...]``.
        lengths: number of valid steps of each row, int32 ``[B]``.
        info: data of whole rows, such as environment and initial recurrent state, leaves ``[B, ...]``; or ``None``.
    """

    data: Tree
    lengths: Any
    info: Any = None

    @property
    def num_rows(self) -> int:
        """Number of rows B."""
        return self.lengths.shape[0]

    @property
    def num_steps(self) -> int:
        """Number of steps T, padding included; 0 without data."""
        leaves = jax.tree.leaves(self.data)
        return leaves[0].shape[1] if leaves else 0

    @property
    def mask(self) -> Any:
        """True for valid steps, False for padding, bool ``[B, T]``."""
        return array_library(self.lengths).arange(self.num_steps) < self.lengths[:, None]

    def __getitem__(self, rows: Any) -> PaddedBatch[Tree]:
        """Return the selected rows: a slice, or an array of indices or bools.

        Raises:
            TypeError: ``rows`` is a single integer or bool, also as an array, which would remove or add an axis.
        """
        if isinstance(rows, int) or getattr(rows, "ndim", 1) == 0:
            raise TypeError(
                f"batch[{rows}] would be a single row: use batch.episodes()[{rows}] for this row without its padding."
            )
        return jax.tree.map(lambda x: x[rows], self)

    __iter__ = None  # without it, iteration would index past the end forever

    def between(self, start: int, stop: int) -> PaddedBatch[Tree]:
        """Return steps ``start`` to ``stop - 1`` of every row; rows that end before ``start`` have length 0.

        Raises:
            ValueError: ``start`` is negative, or greater than ``stop``.
        """
        if not 0 <= start <= stop:
            raise ValueError(f"between expects 0 <= start <= stop, got between({start}, {stop}).")
        return self.replace(
            data=jax.tree.map(lambda x: x[:, start:stop], self.data),
            lengths=(self.lengths - start).clip(0, stop - start),
        )

    def at(self, steps: Any) -> Tree:
        """Return one step of every row, leaves ``[B, ...]``, possibly padding; ``steps`` is an int or int ``[B]``."""
        return jax.tree.map(lambda x: x[np.arange(self.num_rows), steps], self.data)

    def running_at(self, step: int) -> tuple[Tree, np.ndarray]:
        """Return one step of the R rows with ``lengths > step``, ``[R, ...]``, and their indices. Not traceable."""
        rows = np.flatnonzero(self._lengths_on_host("running_at") > step).astype(np.int32)
        return jax.tree.map(lambda x: x[rows, np.full_like(rows, step)], self.data), rows

    def shorten(self) -> PaddedBatch[Tree]:
        """Remove the steps that are padding in all rows. Not traceable."""
        return self.between(0, int(self._lengths_on_host("shorten").max(initial=0)))

    def expand(self, num_rows: int) -> PaddedBatch[Tree]:
        """Append rows of zeros with length 0, up to ``num_rows`` rows in total.

        Raises:
            ValueError: the batch has more rows already.
        """
        if num_rows < self.num_rows:
            raise ValueError(
                f"a batch of {self.num_rows} rows cannot be expanded to {num_rows} rows: use batch[:{num_rows}]."
            )
        return jax.tree.map(lambda x: _with_zeros(x, num_rows - self.num_rows, axis=0), self)

    def episodes(self) -> list[Tree]:
        """Return every row without its padding, leaves ``[length, ...]``. Not traceable."""
        lengths = self._lengths_on_host("episodes")
        return [jax.tree.map(lambda x, i=i, n=n: x[i, :n], self.data) for i, n in enumerate(lengths)]

    def _lengths_on_host(self, method: str) -> np.ndarray:
        if isinstance(self.lengths, jax.core.Tracer):
            raise ValueError(
                f"PaddedBatch.{method} returns arrays whose shapes depend on lengths: call it outside jitted "
                "functions, and use mask inside them."
            )
        return np.asarray(self.lengths)


def padded_batch(data: Tree, lengths: Any = None, info: Any = None) -> PaddedBatch[Tree]:
    """Create a batch from arrays that are already padded.

    Args:
        data: steps, leaves ``[B, T, ...]``.
        lengths: number of valid steps of each row, integers ``[B]``; defaults to T for every row.
        info: data of whole rows, leaves ``[B, ...]``.

    Raises:
        ValueError: the leading axes of the arguments differ, or a length (unless traced) is not from 0 to T.
    """
    shapes = {leaf.shape[:2] for leaf in jax.tree.leaves(data)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ValueError(f"the leaves of a padded batch must share the axes [B, T], got {sorted(shapes)}.")
    num_rows, num_steps = shapes.pop()
    library = array_library(data)
    row_lengths = library.full(num_rows, num_steps) if lengths is None else library.asarray(lengths)
    if row_lengths.shape != (num_rows,):
        raise ValueError(f"{num_rows} rows need {num_rows} lengths, got lengths of shape {row_lengths.shape}.")
    if not isinstance(row_lengths, jax.core.Tracer) and not np.all((row_lengths >= 0) & (row_lengths <= num_steps)):
        low, high = row_lengths.min(), row_lengths.max()
        raise ValueError(f"lengths must be from 0 to {num_steps}, the number of steps, got {low} to {high}.")
    if any(leaf.shape[0] != num_rows for leaf in jax.tree.leaves(info)):
        raise ValueError(f"info needs one entry for each of {num_rows} rows, got {jax.tree.map(np.shape, info)}.")
    return PaddedBatch(data=data, lengths=row_lengths.astype(np.int32), info=info)


def pad_episodes(episodes: Sequence[Tree], info: Any = None) -> PaddedBatch[Tree]:
    """Create a batch of episodes, padded with zeros to the length of the longest.

    Args:
        episodes: pytrees of the same structure; the leaves of each are ``[length, ...]``.
        info: data of whole episodes, leaves ``[len(episodes), ...]``.

    Raises:
        ValueError: ``episodes`` is empty, or the leaves of an episode differ in length.
    """
    if not episodes:
        raise ValueError("cannot infer the shape of a batch without episodes: pass at least one episode.")
    lengths = [{leaf.shape[0] for leaf in jax.tree.leaves(episode)} for episode in episodes]
    for number, leaf_lengths in enumerate(lengths):
        if len(leaf_lengths) != 1:
            raise ValueError(
                f"all leaves of an episode must have the same length; episode {number} has {sorted(leaf_lengths)}."
            )
    counts = np.array([length.pop() for length in lengths], np.int32)
    longest, library = int(counts.max()), array_library(episodes)

    def pad(*leaves: Any) -> Any:
        return library.stack([_with_zeros(leaf, longest - leaf.shape[0], axis=0) for leaf in leaves])

    return PaddedBatch(data=jax.tree.map(pad, *episodes), lengths=library.asarray(counts), info=info)


def concatenate(batches: Sequence[PaddedBatch[Tree]]) -> PaddedBatch[Tree]:
    """Concatenate the rows of all batches in order; shorter batches are padded in time with zeros."""
    num_steps = max(batch.num_steps for batch in batches)
    longer = [
        batch.replace(
            data=jax.tree.map(lambda x, missing=num_steps - batch.num_steps: _with_zeros(x, missing, 1), batch.data)
        )
        for batch in batches
    ]
    return concatenate_trees(longer)


def split_episodes(trajectory: Tree, dones: Any) -> PaddedBatch[Tree]:
    """Split a window of T steps into episodes, one per row, ordered by environment. Not traceable.

    Args:
        trajectory: leaves ``[T, B, ...]``, as returned by a rollout; T and B are at least 1.
        dones: True where an episode ended, ``[T, B]``.

    Returns:
        Complete and partial episodes. Their ``info`` has the environment index ``env`` and the first step ``starts``,
        both int32, and ``ended``, True if the episode ended within the window.
    """
    ended = np.asarray(dones, bool)
    rows: list[tuple[int, int, int]] = []  # environment, first step, last step + 1
    for env in range(ended.shape[1]):
        stops = [*(np.flatnonzero(ended[:, env]) + 1).tolist(), ended.shape[0]]
        rows += [(env, start, stop) for start, stop in zip([0, *stops], stops, strict=False) if start < stop]
    envs, starts, stops = np.array(rows, np.int32).reshape(-1, 3).T
    episodes = [jax.tree.map(lambda x, e=e, a=a, b=b: x[a:b, e], trajectory) for e, a, b in rows]
    return pad_episodes(episodes, info=PyTreeDict(env=envs, starts=starts, ended=ended[stops - 1, envs]))


def _with_zeros(x: Any, count: int, axis: int) -> Any:
    return array_library(x).pad(x, [(0, count if i == axis else 0) for i in range(x.ndim)])

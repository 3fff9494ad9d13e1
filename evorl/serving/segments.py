"""Streams of steps as rows of equal length, of which batches are made: who is slow delays nobody's row."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Place(NamedTuple):
    """Where a step lies: a row of what one call gave, arrays ``[N, features]``."""

    arrays: Sequence[np.ndarray]
    row: int


class Row:
    """Steps one after another, of one simulator or of several in turn.

    Attributes:
        steps: so far.
        cuts: of each whether the episode was broken off after it.
        oldest: the version of the policy that acted in the first of them.
        is_over: whether the last of them ended its episode.
    """

    def __init__(self, oldest: int) -> None:
        self.steps: list[Place] = []
        self.cuts: list[bool] = []
        self.oldest = oldest
        self.is_over = False


class Segments:
    """Cuts what simulators do into rows of ``length`` steps, and hands ``num_rows`` of them out at a time.

    A simulator that leaves gives its row to the next one that comes, with a cut between them, so that no step counts
    as following another's. An answer that nobody came back for is no step.

    Args:
        length: steps T of a row.
        num_rows: rows B of a batch.
        max_lag: a row that began more than so many policies ago is dropped; ``None`` keeps all. With 0 a step counts
            only if the policy that chose its action acts still.
        joins_only_at_starts: whether a row that another has left is gone on with by the start of an episode only: an
            agent's memory is that of no episode behind a cut.

    Attributes:
        dropped: rows so far that were too old.
        version: of the policy that acts now.
    """

    def __init__(self, length: int, num_rows: int, max_lag: int | None, joins_only_at_starts: bool = False) -> None:
        self.length, self.num_rows, self.max_lag = length, num_rows, max_lag
        self._joins_only_at_starts = joins_only_at_starts
        self.dropped = 0
        self.version = 0
        self._open: dict[int, Row] = {}
        self._playing: set[int] = set()  # sessions in mid-episode
        self._acted: dict[int, int] = {}  # the version of the policy that a session was last answered by
        self._left: collections.deque[Row] = collections.deque()
        self._full: collections.deque[Row] = collections.deque()

    def add(self, session: int, step: Place, ends: bool) -> None:
        """A step of a session; ``ends`` where the episode did, whatever ended it."""
        if self.max_lag == 0 and self._acted.get(session, self.version) < self.version:
            (self._playing.discard if ends else self._playing.add)(session)
            return
        row = self._open.get(session)
        if row is None:
            joins = self._left and not (self._joins_only_at_starts and session in self._playing)
            row = self._open[session] = self._left.popleft() if joins else Row(self.version)
        (self._playing.discard if ends else self._playing.add)(session)
        row.steps.append(step)
        row.cuts.append(False)
        row.is_over = ends
        if len(row.steps) == self.length:
            self._full.append(self._open.pop(session))

    def answered(self, session: int) -> None:
        """A session was given an action, by the policy that acts now."""
        self._acted[session] = self.version

    def cut(self, session: int) -> None:
        """A session's next step will not follow its last one."""
        self._acted.pop(session, None)
        self._playing.discard(session)
        row = self._open.pop(session, None)
        if row is None:
            return
        row.cuts[-1] = not row.is_over
        self._left.append(row)

    @property
    def num_full(self) -> int:
        """Rows that wait to be learned from."""
        return len(self._full)

    @property
    def is_ready(self) -> bool:
        """Whether there is a batch; rows that are too old are dropped."""
        if self.max_lag is not None:
            young = [row for row in self._full if self.version - row.oldest <= self.max_lag]
            self.dropped += len(self._full) - len(young)
            if len(young) < len(self._full):
                self._full = collections.deque(young)
        return len(self._full) >= self.num_rows

    def take(self) -> tuple[list[np.ndarray], np.ndarray, float]:
        """A batch: arrays ``[T, B, features]``, where episodes were broken off ``[T, B]``, and the mean lag.

        Raises:
            ValueError: there is none yet.
        """
        if not self.is_ready:
            raise ValueError(f"a batch has {self.num_rows} rows, and there are {len(self._full)}.")
        rows = [self._full.popleft() for _ in range(self.num_rows)]
        kinds = range(len(rows[0].steps[0].arrays))
        arrays = [
            np.stack([[step.arrays[kind][step.row] for step in row.steps] for row in rows], axis=1) for kind in kinds
        ]
        cuts = np.array([row.cuts for row in rows], np.bool_).T
        return arrays, cuts, float(np.mean([self.version - row.oldest for row in rows]))

    def new_policy(self) -> None:
        """Another policy acts from now on. Rows that would be too old when they are full are dropped."""
        self.version += 1
        if self.max_lag is None:
            return
        for session, row in list(self._open.items()):
            if self.version - row.oldest > self.max_lag:
                del self._open[session]
                self.dropped += 1
        young = [row for row in self._left if self.version - row.oldest <= self.max_lag]
        self.dropped += len(self._left) - len(young)
        self._left = collections.deque(young)

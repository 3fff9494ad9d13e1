"""Cuts clients' step streams into fixed-length segments and batches them; slow clients delay no other segment."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class StepRef(NamedTuple):
    """Reference to a step: row ``row`` of the arrays ``[N, features]`` that one inference call returned."""

    arrays: Sequence[np.ndarray]
    row: int


class Row:
    """Segment of consecutive steps of one simulator, or of several simulators one after another.

    Attributes:
        steps: steps so far.
        cuts: for each step, true if the episode was cut off after it.
        oldest: version of the oldest policy that chose an action of the segment.
        is_over: true if the last step ended its episode.
    """

    def __init__(self, oldest: int) -> None:
        self.steps: list[StepRef] = []
        self.cuts: list[bool] = []
        self.oldest = oldest
        self.is_over = False


class Segments:
    """Cuts the steps of simulators into segments of ``length`` steps, and returns batches of ``num_rows`` segments.

    If a simulator disconnects or resets, the next simulator that needs a segment continues it. A cut marks that the
    steps are not consecutive. An action without a reported outcome does not count as a step.

    Args:
        length: number of steps T of a segment.
        num_rows: number of segments B of a batch.
        max_lag: a segment is dropped if the policy of one of its actions is older than this number of versions;
            ``None`` keeps all. With 0, only steps of the current policy are used.
        joins_only_at_starts: true if only a new episode may continue the segment of another simulator. Recurrent agents
            need this, because their state after a cut does not belong to the running episode.

    Attributes:
        dropped: number of segments dropped so far because of their age; with max_lag above 0, plus skipped steps.
        version: version of the current policy.
    """

    def __init__(self, length: int, num_rows: int, max_lag: int | None, joins_only_at_starts: bool = False) -> None:
        self.length, self.num_rows, self.max_lag = length, num_rows, max_lag
        self._joins_only_at_starts = joins_only_at_starts
        self.dropped = 0
        self.version = 0
        self._open: dict[int, Row] = {}
        self._playing: set[int] = set()  # sessions within an episode
        self._acted: dict[int, int] = {}  # session -> policy version of its last action
        self._left: collections.deque[Row] = collections.deque()
        self._full: collections.deque[Row] = collections.deque()

    def add(self, session: int, step: StepRef, ends: bool) -> None:
        """Add a step, which ends the session's episode if ``ends``; a step older than ``max_lag`` is skipped."""
        acted = self._acted.get(session, self.version)
        if self.max_lag is not None and self.version - acted > self.max_lag:
            (self._playing.discard if ends else self._playing.add)(session)
            self.dropped += self.max_lag > 0  # not counted with max_lag=0: each update drops the steps in progress
            return
        row = self._open.get(session)
        if row is None:
            joins = self._left and not (self._joins_only_at_starts and session in self._playing)
            row = self._open[session] = self._left.popleft() if joins else Row(acted)
        (self._playing.discard if ends else self._playing.add)(session)
        row.oldest = min(row.oldest, acted)
        row.steps.append(step)
        row.cuts.append(False)
        row.is_over = ends
        if len(row.steps) == self.length:
            self._full.append(self._open.pop(session))

    def answered(self, session: int) -> None:
        """Record that a session received an action of the current policy."""
        self._acted[session] = self.version

    def cut(self, session: int) -> None:
        """Release the segment of a session; another session can continue it. Mark a cut unless the episode is over."""
        self._acted.pop(session, None)
        self._playing.discard(session)
        row = self._open.pop(session, None)
        if row is None:
            return
        row.cuts[-1] = not row.is_over
        self._left.append(row)

    @property
    def num_full(self) -> int:
        """Number of complete segments that were not used for learning yet."""
        return len(self._full)

    @property
    def is_ready(self) -> bool:
        """True if there are enough complete segments for a batch."""
        return len(self._full) >= self.num_rows

    def take(self) -> tuple[list[np.ndarray], np.ndarray, float]:
        """Remove a batch and return its arrays ``[T, B, features]``, its cuts ``[T, B]`` and its mean policy lag.

        Raises:
            ValueError: there are not enough segments yet.
        """
        if not self.is_ready:
            raise ValueError(f"a batch needs {self.num_rows} full segments, but only {len(self._full)} are available.")
        rows = [self._full.popleft() for _ in range(self.num_rows)]
        kinds = range(len(rows[0].steps[0].arrays))
        arrays = [
            np.stack([[step.arrays[kind][step.row] for step in row.steps] for row in rows], axis=1) for kind in kinds
        ]
        cuts = np.array([row.cuts for row in rows], np.bool_).T
        return arrays, cuts, float(np.mean([self.version - row.oldest for row in rows]))

    def new_policy(self) -> None:
        """Increment the policy version, and drop segments, complete or not, that are now too old."""
        self.version += 1
        if self.max_lag is None:
            return
        oldest = self.version - self.max_lag
        self.dropped += sum(row.oldest < oldest for row in (*self._open.values(), *self._left, *self._full))
        self._open = {session: row for session, row in self._open.items() if row.oldest >= oldest}
        self._left = collections.deque(row for row in self._left if row.oldest >= oldest)
        self._full = collections.deque(row for row in self._full if row.oldest >= oldest)

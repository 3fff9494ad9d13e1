"""Part of a sweep: settings of one group that are trained in parallel, in a folder from which they can resume."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.execution import programs
from evorl.execution.restoration import restore
from evorl.execution.seeds import rows_of_seeds
from evorl.ops.trees import concatenate_trees
from evorl.recorders.recorder_group import RecorderGroup
from evorl.recorders.row_file import CsvRecorder, RowFile
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import writing_to
from evorl.runs.recorder import Recorder, Row
from evorl.runs.structure import CheckpointError
from evorl.sweeps.sweep_table import RETURN
from evorl.types import State
from evorl.workflows.side_by_side import SideBySideWorkflow

_OF_FIRST_SEED = re.compile(r"eval/(.+)_seed_0")


class _LastEvaluation(Recorder):
    """Stores the environment steps of the last evaluation."""

    timesteps = 0

    def write(self, row: Row) -> None:
        if "eval/episode_return" in row:
            self.timesteps = int(row["timesteps"])


@dataclasses.dataclass(frozen=True)
class Part:
    """Settings that are trained in parallel.

    Attributes:
        folder: folder of the metrics and the checkpoint.
        members: indices of the settings, in the order of the rows; each setting has ``num_seeds`` rows. Padding rows,
            which give all parts of a group the same length, repeat the last setting.
        workflow: workflow of the rows.
        num_seeds: number of seeds of each setting.
        end: the part ends at the first evaluation from this environment step on; ``total_timesteps`` in the last round.
        checkpoint_seconds: see ``SweepRun``.
        message: callback for notices about corrupted checkpoints.
    """

    folder: Path
    members: tuple[int, ...]
    workflow: SideBySideWorkflow
    num_seeds: int
    end: float
    checkpoint_seconds: float
    message: Callable[[str], None]

    @property
    def is_finished(self) -> bool:
        """True if the part's training is complete."""
        return (self.folder / "finished").exists()

    def train(
        self,
        seed: int,
        start: Callable[[], State | None],
        recorders: Iterable[Recorder],
        should_stop: Callable[[], bool],
    ) -> None:
        """Train up to ``end``, from the last checkpoint if there is one; do nothing if the part is finished.

        Args:
            seed: seed of the sweep.
            start: returns the state to start from, ``None`` for a new state; called only without a checkpoint.
            recorders: recorders in addition to ``metrics.csv``.
            should_stop: polled between chunks of iterations; True saves a checkpoint and stops.

        Raises:
            CheckpointError: checkpoints exist, but all are corrupted.
        """
        if self.is_finished:
            return
        metrics, last, seconds = CsvRecorder(self.folder / "metrics.csv"), _LastEvaluation(), self.checkpoint_seconds
        recorder = RecorderGroup([metrics, last, *recorders])
        checkpointer = RunCheckpointer(self.folder / "checkpoints", 1, [self.folder / "metrics.csv"], seconds=seconds)
        ends_early = self.end < self.workflow.total_timesteps
        if any(checkpointer.folder.glob("[0-9]*")):  # also if all are corrupted, which is an error
            try:
                state, progress = restore(self.workflow, checkpointer, seed, "latest")
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error} To train only this part again, remove {checkpointer.folder}."
                ) from error
            self._report(checkpointer)
            recorder.resume_at(progress["iterations"])
            checkpointer.resume_at(progress["iterations"])
            last.timesteps = max(self.evaluations()[self.members[0]], default=0)
            if ends_early and last.timesteps >= self.end:  # stopped just before the part was marked as finished
                self._finish()
                return
        else:
            recorder.resume_at(-1)  # rows of a start that was killed before its first checkpoint
            state, progress = start(), {}
        try:
            self.workflow.learn(
                state,
                key=seed,
                recorder=recorder,
                checkpointer=checkpointer,
                progress=progress,
                should_stop=lambda: (ends_early and last.timesteps >= self.end) or should_stop(),
            )
        finally:
            recorder.close()
        if not should_stop():
            self._finish()

    def _finish(self) -> None:
        with writing_to(self.folder):
            (self.folder / "finished").touch()

    def _report(self, checkpointer: RunCheckpointer) -> None:
        for notice in checkpointer.notices:
            self.message(notice)

    def evaluations(self) -> dict[int, dict[int, dict[str, list[float]]]]:
        """Return the evaluations of the part, ``{setting: {timesteps: {metric: values}}}``, with one value per seed."""
        file = RowFile(self.folder / "metrics.csv")
        evaluations: dict[int, dict[int, dict[str, list[float]]]] = {member: {} for member in self.members}
        try:
            for row in file.records():
                if not row.get(_column(RETURN, 0)):
                    continue
                names = [match[1] for column in row if (match := _OF_FIRST_SEED.fullmatch(column))]
                for index, member in enumerate(self.members):
                    rows = range(index * self.num_seeds, (index + 1) * self.num_seeds)
                    evaluations[member][int(row["timesteps"])] = {
                        name: [float(row[_column(name, i)] or "nan") for i in rows] for name in names
                    }
        except (KeyError, ValueError) as error:
            raise file.damaged(repr(error)) from error
        return evaluations

    def restore(self, member: int) -> tuple[State, dict[str, Any]]:
        """Return a setting's rows, one per seed, on the host, and the progress, from the newest intact checkpoint."""
        template = jax.eval_shape(programs.initial_state, self.workflow, jax.random.key(0))
        checkpointer = RunCheckpointer(self.folder / "checkpoints")
        state, progress = checkpointer.restore(template)
        self._report(checkpointer)
        first = self.members.index(member) * self.num_seeds
        return rows_of_seeds(state, slice(first, first + self.num_seeds)), progress


def joined_states(states: Sequence[State], num_rows: int) -> State:
    """Concatenate the rows of states and pad to ``num_rows`` with the last row; keep ``iterations`` of the first."""
    rows = [State({name: x for name, x in state.items() if name != "iterations"}) for state in states]
    joined = State(concatenate_trees(rows))
    last = len(joined.numbers) - 1
    return rows_of_seeds(joined, np.minimum(np.arange(num_rows), last)) | {"iterations": states[0].iterations}


def _column(name: str, row: int) -> str:
    return f"eval/{name}_seed_{row}"

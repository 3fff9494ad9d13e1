"""Complete, interrupted and resumed training runs, as a separate process would run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.execution.restoration import restore
from evorl.recorders.row_file import CsvRecorder
from evorl.runs.checkpointer import RunCheckpointer
from evorl.types import State
from evorl.workflows.workflow import Workflow

SEED = 3


class Interrupted(BaseException):
    """Simulates a process that is killed; after an ``Exception`` of a recorder, a run would save its state."""


class DyingRecorder(CsvRecorder):
    """Recorder that is killed after writing a row that is newer than the last checkpoint."""

    def __init__(self, path: Path, killed_at: int) -> None:
        super().__init__(path)
        self.killed_at = killed_at

    def write(self, row: Any) -> None:
        super().write(row)
        if row["iterations"] == self.killed_at:
            self.close()
            raise Interrupted


class Shelf:
    """A checkpointer that records its calls."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, float | None]] = []
        self.progress: dict[str, Any] = {}

    def save(self, state: Any, progress: dict[str, Any], score: float | None) -> None:
        assert int(state.iterations) == progress["iterations"]
        self.saved.append((progress["iterations"], score))
        self.progress = progress


def run_in(
    folder: Path, workflow: Workflow, should_stop: Callable[[], bool] | None = None, killed_at: int | None = None
) -> State:
    """Train from the beginning, writing ``metrics.csv`` and ``checkpoints`` in the folder."""
    table = folder / "metrics.csv"
    recorder = CsvRecorder(table) if killed_at is None else DyingRecorder(table, killed_at)
    checkpointer = RunCheckpointer(folder / "checkpoints")
    state = workflow.learn(workflow.init(SEED), recorder=recorder, checkpointer=checkpointer, should_stop=should_stop)
    recorder.close()
    return state


def resume_in(folder: Path, workflow: Workflow) -> tuple[int, State]:
    """Resume as a new process does; return the iteration of the checkpoint, and the last state."""
    checkpointer = RunCheckpointer(folder / "checkpoints")
    state, progress = restore(workflow, checkpointer, SEED, "latest")
    first = int(progress["iterations"])
    recorder = CsvRecorder(folder / "metrics.csv")
    recorder.resume_at(first)
    state = workflow.learn(state, recorder=recorder, checkpointer=checkpointer, progress=progress)
    recorder.close()
    return first, state


def save_in(folder: Path, state: State) -> Path:
    """Save a checkpoint of a state in the folder of a run, and return the folder."""
    RunCheckpointer(folder / "checkpoints").save(state, {"iterations": int(state.iterations)})
    return folder


def side_by_side(states: Sequence[State]) -> State:
    """Stack single-seed states, on the host, into a state of several seeds."""

    def stacked(*leaves: jax.Array) -> Any:
        if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(stacked(*map(jax.random.key_data, leaves)))
        return np.stack(leaves)

    return jax.tree.map(stacked, *states).replace(iterations=states[0].iterations)


def stop_after(num_calls: int) -> Callable[[], bool]:
    """Return a function that requests a stop at call ``num_calls``."""
    calls = iter(range(1, 10_000))
    return lambda: next(calls) >= num_calls

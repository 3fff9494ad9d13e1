"""What every recorder has, and the one fan-out that makes several into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from evorl.workflows.charts import Chart

Row: TypeAlias = Mapping[str, float | int]


class Plan(Protocol):
    """What a recorder reads of a run's plan (``evorl.workflows.learning.RunPlan``)."""

    @property
    def name(self) -> str:
        """The algorithm's workflow."""
        ...

    @property
    def total_timesteps(self) -> int:
        """Environment steps of the whole run, for each seed."""
        ...

    @property
    def first_timesteps(self) -> int:
        """Environment steps taken before it starts; 0 unless resumed."""
        ...


class BaseRecorder:
    """A recorder that does nothing; recorders override what concerns them.

    Rows are flat: ``iterations`` and ``timesteps`` (integers), then ``train/*``, ``eval/*`` and ``time/*`` as far as
    there are any. Their values are on the host already, so no recorder waits for a device.
    """

    def resume_at(self, iterations: int) -> None:
        """Forget what was recorded after this iteration: it will be computed again. Called before ``start``."""

    def start(self, plan: Plan) -> None:
        """The run begins."""

    def write(self, row: Row) -> None:
        """One row of metrics."""

    def progress(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        """A sign of life between rows, with the latest value of every metric."""

    def message(self, text: str) -> None:
        """A line on the course of the run."""

    def chart(self, name: str, chart: Chart) -> None:
        """A table that describes the end of the run, and how to draw it."""

    def close(self) -> None:
        """The run is over; may be called twice."""


class RecorderGroup(BaseRecorder):
    """Several recorders as one, called in the order given."""

    def __init__(self, recorders: Iterable[Any]) -> None:
        self.recorders = tuple(recorders)

    def resume_at(self, iterations: int) -> None:
        for recorder in self.recorders:
            if hasattr(recorder, "resume_at"):  # a user's own recorder need not have it
                recorder.resume_at(iterations)

    def start(self, plan: Plan) -> None:
        for recorder in self.recorders:
            recorder.start(plan)

    def write(self, row: Row) -> None:
        for recorder in self.recorders:
            recorder.write(row)

    def progress(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        for recorder in self.recorders:
            recorder.progress(timesteps, steps_per_second, latest)

    def message(self, text: str) -> None:
        for recorder in self.recorders:
            recorder.message(text)

    def chart(self, name: str, chart: Chart) -> None:
        for recorder in self.recorders:
            if hasattr(recorder, "chart"):  # a user's own recorder need not have it
                recorder.chart(name, chart)

    def close(self) -> None:
        """Close every recorder, also when one of them fails; the first failure is raised at the end."""
        failures: list[Exception] = []
        for recorder in self.recorders:
            try:
                recorder.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

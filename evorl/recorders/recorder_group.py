"""Combines several recorders into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from evorl.runs.recorder import Chart, Recorder, Row, RunPlan

if TYPE_CHECKING:
    from evorl.metrics import EvaluationMetrics  # imports JAX


class RecorderGroup(Recorder):
    """Several recorders as one, called in order. If one raises an error after the start, the others are still called.

    Args:
        recorders: recorders to call.
        title: title of the run in all recorders; ``None`` for the ``name`` in its ``RunPlan``.
        side_by_side: replaces ``RunPlan.side_by_side`` in all recorders; ``None`` keeps the value in the plan.
    """

    def __init__(
        self, recorders: Iterable[Recorder], title: str | None = None, side_by_side: str | None = None
    ) -> None:
        self.recorders = tuple(recorders)
        self._changes = {"name": title, "side_by_side": side_by_side}

    def resume_at(self, iterations: int) -> None:
        for recorder in self.recorders:
            recorder.resume_at(iterations)

    def start(self, plan: RunPlan) -> None:
        plan = dataclasses.replace(plan, **{name: text for name, text in self._changes.items() if text is not None})
        for recorder in self.recorders:
            recorder.start(plan)

    def write(self, row: Row) -> None:
        self._call_all(lambda recorder: recorder.write(dict(row)))  # a user's recorder may change its copy

    def progress(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        self._call_all(lambda recorder: recorder.progress(timesteps, steps_per_second, dict(latest)))

    def message(self, text: str) -> None:
        self._call_all(lambda recorder: recorder.message(text))

    def evaluation(self, iterations: int, timesteps: int, episodes: EvaluationMetrics) -> None:
        self._call_all(lambda recorder: recorder.evaluation(iterations, timesteps, episodes))

    def chart(self, name: str, chart: Chart) -> None:
        self._call_all(lambda recorder: recorder.chart(name, chart))

    def complete(self) -> None:
        self._call_all(lambda recorder: recorder.complete())

    def failure(self, error: Exception) -> None:
        self._call_all(lambda recorder: recorder.failure(error))

    def close(self) -> None:
        self._call_all(lambda recorder: recorder.close())

    def _call_all(self, call: Callable[[Recorder], None]) -> None:
        """Call every recorder, even if one of them fails; the first failure is raised at the end."""
        failures: list[Exception] = []
        for recorder in self.recorders:
            try:
                call(recorder)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

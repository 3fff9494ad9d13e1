"""Collectors, which step the environments of a workflow and train it, iteration by iteration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from evorl.execution import programs
from evorl.execution.env_faults import without_env_faults
from evorl.types import PyTreeDict, State


class Collector(Protocol):
    """Steps the environments of a workflow, in this process or elsewhere.

    There are five: a compiled program (``ProgramCollector``), a loop on the host that steps simulators (``HostLoop``),
    actors in processes or on a Ray cluster (``Actors``), and a server for remote simulators (``TrainingServer``).
    """

    @property
    def is_one_program(self) -> bool:
        """True if an iteration is a single compiled program without work on the host."""
        ...

    def check(self, workflow: Any) -> None:
        """Raise ``ValueError`` if the workflow cannot learn from the data of this collector."""
        ...

    def iterate(
        self, workflow: Any, state: State, num_iterations: int, message: Callable[..., None]
    ) -> tuple[PyTreeDict | None, State]:
        """Run iterations.

        Args:
            workflow: workflow to train.
            state: state of the workflow; donated.
            num_iterations: up to ``programs.MAX_FOLD``.
            message: called with a message and optionally a key; only the first message of a key is shown, see
                ``KeyedMessages``.

        Returns:
            Metrics ``[N, ...]`` of N iterations, and the state after them. N is ``num_iterations``, or less if the
            collector was asked to stop; metrics are ``None`` for N = 0.
        """
        ...

    def evaluate(self, workflow: Any, state: State) -> PyTreeDict:
        """Return the metrics of an evaluation, see ``Workflow.evaluate``."""
        ...

    def close(self) -> None:
        """Stop the processes, threads and servers of the collector."""
        ...


@dataclasses.dataclass(frozen=True)
class ProgramCollector:
    """Collects within the compiled program of the iteration, by a scan over its steps."""

    is_one_program: bool = True

    def check(self, workflow: Any) -> None:
        """Accept every workflow."""

    def iterate(
        self, workflow: Any, state: State, num_iterations: int, message: Callable[..., None]
    ) -> tuple[PyTreeDict | None, State]:
        """Run iterations, see ``Collector.iterate``."""
        results = programs.iterate_program(workflow, state, num_iterations)
        return without_env_faults(workflow, *results, num_iterations, message)

    def evaluate(self, workflow: Any, state: State) -> PyTreeDict:
        """Evaluate by one compiled program."""
        return programs.evaluate_program(workflow, state)

    def close(self) -> None:
        """Do nothing: a program holds no resources."""


PROGRAM = ProgramCollector()

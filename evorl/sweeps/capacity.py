"""How many settings of a sweep are trained side by side: as many as the memory holds."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Callable
from typing import Any

import jax

from evorl.execution import programs
from evorl.execution.memory import available_bytes, least_bytes, program_bytes
from evorl.workflows.side_by_side import SideBySideWorkflow

SHARE = 0.7  # of the machine's memory that a sweep takes, unless it is told
BESIDE_THE_STATE = 2.0  # so many times its state an iteration takes, before anything is compiled


def settings_at_once(
    make_rows: Callable[[int], SideBySideWorkflow], num_settings: int, memory: float | None = None
) -> int:
    """How many settings fit the memory, shared evenly by the fewest trainings.

    The program of so many is compiled for it, and so is that of fewer where it needs more than there is.

    Args:
        make_rows: the workflow of the first so many settings.
        num_settings: that there are.
        memory: bytes that the process may take; ``None`` for a share of what the machine has.
    """
    total = memory or SHARE * (available_bytes() or math.inf)
    if total == math.inf:
        return num_settings
    free = max(total - _own_bytes(), 0.0)
    of_one = BESIDE_THE_STATE * _state_bytes(make_rows(1))
    count = _evenly(num_settings, int(free / of_one))
    needed = program_bytes(_compiled(rows := make_rows(count)), rows.execution.num_devices)
    if needed is not None and needed > free:
        count = _evenly(num_settings, int(count * free / needed))
    return count


def _state_bytes(rows: SideBySideWorkflow) -> int:
    state = programs.state_shapes(rows, jax.random.key(0))
    return least_bytes(state, programs.state_specs(rows.execution, rows.sharded_axes, state), rows.execution)


def _compiled(rows: SideBySideWorkflow) -> Any:
    return programs.lowered_training(rows, jax.random.key(0)).compile()


def _evenly(num_settings: int, at_most: int) -> int:
    num_parts = math.ceil(num_settings / max(1, min(at_most, num_settings)))
    return math.ceil(num_settings / num_parts)


def _own_bytes() -> int:
    """What this process has taken so far, at its peak."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak

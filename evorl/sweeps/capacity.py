"""Computes the number of settings of a sweep that fit in memory for parallel training."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax

from evorl.execution import programs
from evorl.execution.memory import available_bytes, process_peak_bytes, program_bytes, required_bytes
from evorl.ops.platform import on_cpu
from evorl.workflows.side_by_side import SideBySideWorkflow

SHARE = 0.7  # default fraction of the machine's memory for a sweep
BESIDE_THE_STATE = 2.0  # first estimate of the memory of an iteration, as a multiple of the state


def settings_at_once(
    make_rows: Callable[[int], SideBySideWorkflow], num_settings: int, memory: float | None = None
) -> tuple[int, float]:
    """Return the number of settings to train in parallel, and the largest number, including padding, that fits.

    The first number is an even split into the fewest parts that fit. It is estimated from the size of the state, then
    checked by compiling the program of that many settings. If the program needs too much memory, the number is reduced
    in proportion.

    Args:
        make_rows: returns the workflow of the first ``n`` settings.
        num_settings: total number of settings.
        memory: memory limit of the process in bytes; ``None`` for ``SHARE`` of the memory (no limit if unknown).
    """
    total = memory or SHARE * (available_bytes() or math.inf)
    if total == math.inf:
        return num_settings, math.inf
    free = max(total - (process_peak_bytes() if on_cpu() else 0), 0.0)  # an accelerator has its own memory
    of_one = BESIDE_THE_STATE * _state_bytes(make_rows(1))
    count = evenly(num_settings, int(free / of_one))
    compiled = programs.lowered_training(rows := make_rows(count), jax.random.key(0)).compile()
    needed = program_bytes(compiled, rows.execution.num_devices)
    most = free / of_one if needed is None else count * free / needed
    # Several accelerators that share padded rows need less memory each; the devices of a CPU share its memory.
    return min(count, evenly(num_settings, int(most))), most if on_cpu() else math.inf


def _state_bytes(rows: SideBySideWorkflow) -> int:
    state = programs.state_shapes(rows, jax.random.key(0))
    return required_bytes(state, programs.state_specs(rows.execution, state), rows.execution)


def evenly(num_settings: int, at_most: int) -> int:
    """Return the size of the largest part if settings are split evenly into the fewest parts of at most this size."""
    num_parts = math.ceil(num_settings / max(1, min(at_most, num_settings)))
    return math.ceil(num_settings / num_parts)

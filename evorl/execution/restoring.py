"""A saved state on the devices of a workflow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from evorl.execution import programs
from evorl.execution.trainable import Trainable
from evorl.runs.checkpointer import RunCheckpointer
from evorl.types import State


def restore(
    workflow: Trainable, checkpointer: RunCheckpointer, seed: int, which: str, entries: Iterable[str] | None = None
) -> tuple[State, dict[str, Any]]:
    """A saved state on this workflow's devices, and what the checkpoint says of the run.

    Args:
        workflow: as it was when the state was saved, but for numbers and devices.
        checkpointer: of the run.
        seed: any: it shapes nothing.
        which: ``latest``, ``best``, or an iteration.
        entries: of the state, to read these only; ``workflow.evaluation_entries`` leave the replay buffer alone.
    """
    template = jax.eval_shape(programs.initial_state, workflow, jax.random.key(seed))
    if entries is not None:
        template = _entries_of(template, entries)
    template = programs.laid_out(workflow, template)
    state, progress = checkpointer.restore(template, which, partial=entries is not None)
    return programs.place(workflow, state), progress


def _entries_of(state: State, names: Iterable[str]) -> State:
    """Some entries of a state; with a dot, an entry of an entry."""
    chosen = State()
    for name in names:
        entry, _, within = name.partition(".")
        if within:
            chosen[entry] = State({**chosen.get(entry, {}), within: state[entry][within]})
        else:
            chosen[entry] = state[entry]
    return chosen

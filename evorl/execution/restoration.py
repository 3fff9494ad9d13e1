"""Restores saved states on the devices of a workflow."""

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
    """Restore a saved state on this workflow's devices; also return the progress stored in the checkpoint.

    Args:
        workflow: workflow as at the time of saving, except for numbers and devices.
        checkpointer: checkpointer of the run.
        seed: any seed, because only shapes matter.
        which: ``latest``, ``best``, or an iteration.
        entries: entries of the state to read; ``workflow.evaluation_entries`` excludes the replay buffer.
    """
    template = jax.eval_shape(programs.initial_state, workflow, jax.random.key(seed))
    if entries is not None:
        template = _entries_of(template, entries)
    template = programs.laid_out(workflow, template)
    state, progress = checkpointer.restore(template, which, partial=entries is not None)
    return programs.place(workflow, state), progress


def _entries_of(state: State, names: Iterable[str]) -> State:
    """Return the named entries of a state; names with a dot select nested entries."""
    chosen = type(state)()
    for name in names:
        entry, _, within = name.partition(".")
        if within:
            chosen[entry] = type(state[entry])({**chosen.get(entry, {}), within: state[entry][within]})
        else:
            chosen[entry] = state[entry]
    return chosen

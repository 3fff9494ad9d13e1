"""Restores saved states on the devices of a workflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from evorl.execution import programs
from evorl.execution.trainable import Trainable
from evorl.ops.trees import entries_of
from evorl.runs.checkpointer import RunCheckpointer
from evorl.types import State


def restore(
    workflow: Trainable,
    checkpointer: RunCheckpointer,
    seed: int,
    which: str | int,
    entries: Sequence[str] | None = None,
) -> tuple[State, dict[str, Any]]:
    """Return a saved state on this workflow's devices, and the progress stored in the checkpoint.

    Args:
        workflow: workflow with a state of the saved structure; numeric settings and devices may have changed.
        checkpointer: checkpointer of the run; ``RunCheckpointer.restore`` lists the errors.
        seed: any seed, because only the shapes of the initial state are used.
        which: ``latest``, ``best``, or an iteration.
        entries: names of the state's entries to read, such as ``workflow.evaluation_entries``; ``None`` for all.

    Raises:
        ValueError: all entries are read, to continue the training, but iterations had another number of steps.
    """
    template = jax.eval_shape(programs.initial_state, workflow, jax.random.key(seed))
    if entries is not None:
        template = entries_of(template, entries)
    template = programs.laid_out(workflow, template)
    state, progress = checkpointer.restore(template, which, partial=entries is not None)
    steps, iterations = workflow.timesteps_per_iteration, progress["iterations"]
    timesteps = progress.get("timesteps", iterations * steps)
    if entries is None and steps and timesteps != iterations * steps:
        raise ValueError(
            f"an iteration would have {steps:,} steps instead of the {timesteps / iterations:,.6g} of the checkpoint, "
            "so that all steps would be miscounted: remove the change of rollout_length, or of another setting that "
            "changes the length of an iteration, or start a new run."
        )
    return programs.place(workflow, state), progress

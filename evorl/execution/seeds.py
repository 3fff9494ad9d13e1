"""Selects seeds of a state in which several are trained side by side."""

from __future__ import annotations

from typing import Any

import jax

from evorl.execution.trainable import Execution
from evorl.types import State


def rows_of_seeds(state: State, rows: Any) -> State:
    """Index the seed axis of a state.

    Args:
        state: entries ``[S, ...]``; ``iterations`` has no seed axis, since all seeds share it.
        rows: an index of the seed axis: a number, which removes the axis, a slice, or an array.

    Returns:
        The state with ``entry[rows]`` for every entry but ``iterations``.
    """
    return State({name: x if name == "iterations" else jax.tree.map(lambda y: y[rows], x) for name, x in state.items()})


def state_of_seed(execution: Execution, state: State, number: int = 0) -> State:
    """Return the state of one seed; the state itself where the run has no seed axis.

    Raises:
        ValueError: the run has no seed of this number.
    """
    num_seeds = execution.num_seeds
    if not 0 <= number < (num_seeds or 1):
        raise ValueError(f"seed_number={number}: the run has {num_seeds or 1} seeds, the first is 0.")
    return state if num_seeds is None else rows_of_seeds(state, number)

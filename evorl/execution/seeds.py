"""Selection of seeds from a state with a seed axis."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from evorl.execution.trainable import Execution
from evorl.types import State

S = TypeVar("S", bound=State)


def rows_of_seeds(state: S, rows: Any) -> S:
    """Return a state with ``entry[rows]`` for every entry except ``iterations``.

    Args:
        state: state with entries ``[S, ...]``, except ``iterations``, which all seeds share.
        rows: index into the seed axis: an integer, which removes the axis, a slice, or an array.
    """
    entries = {name: x if name == "iterations" else jax.tree.map(lambda y: y[rows], x) for name, x in state.items()}
    return type(state)(entries)


def state_of_seed(execution: Execution, state: State, number: int = 0) -> State:
    """Return the state of seed ``number``, from 0, or ``state`` without a seed axis; otherwise raise ``ValueError``."""
    num_seeds = execution.num_seeds
    if not 0 <= number < (num_seeds or 1):
        raise ValueError(f"seed_number={number} does not exist: the run has seed numbers 0 to {(num_seeds or 1) - 1}.")
    return state if num_seeds is None else rows_of_seeds(state, number)

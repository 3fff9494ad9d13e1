"""Default collector, which collects inside compiled programs, and the function that iterates with any collector."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from evorl.execution import programs
from evorl.execution.env_faults import without_env_faults
from evorl.execution.trainable import Collector
from evorl.ops.trees import copied
from evorl.types import PyTreeDict, State

S = TypeVar("S", bound=State)


def collects_by_acting(workflow: Any) -> bool:
    """Return True if ``acting`` and ``collect`` are defined in the same class: ``collect`` then uses ``acting``."""
    family = next((cls for cls in type(workflow).__mro__ if "acting" in vars(cls)), None)
    return family is not None and type(workflow).collect is vars(family).get("collect")


def end_episodes(state: S, mask: Any) -> S:
    """Return the state in which episodes have ended where ``mask`` ``[B]`` (or True for all) is True.

    Calls ``end_episodes(mask)`` on all nodes that have this method, such as replay buffers; environments do not change.
    """
    return jax.tree.map(lambda x: x.end_episodes(mask) if _has_episodes(x) else x, state, is_leaf=_has_episodes)


def _has_episodes(node: Any) -> bool:
    return hasattr(node, "end_episodes")


def _acting(workflow: Any, state: State) -> tuple[Any, State]:
    """Return copies of the arrays for acting elsewhere, because the next update donates the state; and the state."""
    acting, state = workflow.acting(state)
    return copied(acting), state


peek_acting = jax.jit(_acting)
begin_acting = jax.jit(_acting, donate_argnames="state")


@dataclasses.dataclass(frozen=True)
class ProgramCollector:
    """Collects with the workflow's ``collect``, inside the compiled program of an iteration."""

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
        """Evaluate in one compiled program, and return the metrics."""
        return programs.evaluate_program(workflow, state)

    def stop_when(self, should_stop: Callable[[], bool]) -> None:
        """Ignore the function: a program does not wait for clients."""

    def close(self) -> None:
        """Do nothing: a program holds no resources."""


PROGRAM: Collector = ProgramCollector()


def iterate(
    workflow: Any, state: State, num_iterations: int, message: Callable[..., None] = lambda *_: None
) -> tuple[PyTreeDict | None, State]:
    """Run iterations with the workflow's collector, see ``Collector.iterate``; the state is donated."""
    return workflow.collector.iterate(workflow, state, num_iterations, message)

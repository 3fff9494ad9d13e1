"""Who plays what is looked at: the policy that an evaluation would take, or elites of an archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from evorl.agent import AgentState
from evorl.ec.archives import Archive, ArchiveState
from evorl.evaluators.population_evaluator import with_policy
from evorl.ops.selection import best_member
from evorl.types import State
from evorl.workflows.workflow import Workflow

ELITES_SHOWN = 9


class Player(NamedTuple):
    """Who plays.

    Attributes:
        title: what its episodes are called; empty for one that needs no name.
        agent_state: of the agent.
        num_episodes: how many it plays.
    """

    title: str
    agent_state: AgentState
    num_episodes: int


def has_archive(workflow: Workflow) -> bool:
    """Whether it keeps elites."""
    return isinstance(getattr(workflow, "archive", None), Archive)


def best_policy(state: State) -> AgentState:
    """Who acts in an evaluation of a state of one seed: of a population the member with the best score."""
    if "members" not in state:
        return state.agent_state
    best = best_member(state.scores)
    return jax.tree.map(lambda x: x[best], state.members.agent_state)


def players_of(workflow: Workflow, state: State, num_episodes: int, cells: int | Sequence[int] | None) -> list[Player]:
    """Who plays.

    Args:
        workflow: that trained.
        state: of one seed; of a workflow with an archive with ``archive_state``.
        num_episodes: of the best policy; of elites each plays one.
        cells: of an archive so many elites, or those of these cells; ``None`` for ``ELITES_SHOWN`` where there is an
            archive, 0 for the best policy alone.

    Raises:
        ValueError: there is no archive, or no such elite; in words.
    """
    if not has_archive(workflow):
        if cells:
            raise ValueError(
                f"cells={cells} are of an archive, and {type(workflow).__name__} keeps none: leave it out."
            )
        return [Player("", best_policy(state), num_episodes)]
    if cells == 0:
        return [Player("", best_policy(state), num_episodes)]
    archive: Any = workflow
    elites = jax.device_get(state.archive_state)
    if cells is None or isinstance(cells, int):
        chosen = spread_cells(archive.archive, elites, ELITES_SHOWN if cells is None else cells)
    else:
        chosen = checked_cells(elites, cells)
    return [
        Player(elite_title(elites, cell), with_policy(best_policy(state), elite_of(elites, cell)), 1) for cell in chosen
    ]


def spread_cells(archive: Archive, state: ArchiveState, number: int) -> list[int]:
    """So many cells with elites, or all there are: the best first, then each time the one farthest from those before.

    Far means in descriptors, each as a share of the archive's range.

    Args:
        archive: whose cells they are.
        state: of it, on the host.
        number: at least 1.

    Raises:
        ValueError: no cell has an elite.
    """
    fitness = np.asarray(state.fitness)
    cells = np.flatnonzero(np.isfinite(fitness))
    if not cells.size:
        raise ValueError("The archive has no elite yet: train longer.")
    low, high = np.asarray(archive.low), np.asarray(archive.high)
    places = (np.asarray(state.descriptors)[cells] - low) / (high - low)
    chosen = [int(np.argmax(fitness[cells]))]
    distances = np.linalg.norm(places - places[chosen[0]], axis=1)
    while len(chosen) < min(number, cells.size):
        chosen.append(int(np.argmax(np.where(np.isin(np.arange(cells.size), chosen), -1.0, distances))))
        distances = np.minimum(distances, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return cells[chosen].tolist()


def checked_cells(state: ArchiveState, cells: Sequence[int]) -> list[int]:
    """Cells that were asked for.

    Raises:
        ValueError: there is no such cell, or it is empty, with cells that are not.
    """
    filled = np.flatnonzero(np.isfinite(np.asarray(state.fitness))).tolist()
    for cell in cells:
        if cell not in filled:
            some = ", ".join(map(str, filled[:12])) + (" ..." if len(filled) > 12 else "")
            raise ValueError(f"cells: the archive has no elite in cell {cell!r}. There are {len(filled)}: {some}")
    return list(cells)


def elite_title(state: ArchiveState, cell: int) -> str:
    """What an elite is called: its cell, and what its policy does."""
    numbers = ", ".join(f"{value:.2g}" for value in np.asarray(state.descriptors)[cell])
    return f"cell {cell} ({numbers})"


def elite_of(state: ArchiveState, cell: int) -> Any:
    """The parameters of the policy in a cell."""
    return jax.tree.map(lambda x: x[cell], state.solutions)

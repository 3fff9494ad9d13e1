"""Selects the policies to render: the policy that evaluations use, or elites of an archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from evorl.agent import AgentState
from evorl.ec.archives import Archive, ArchiveState
from evorl.episodes.replay import Player
from evorl.evaluators.population_evaluator import with_policy
from evorl.ops.selection import best_member
from evorl.ops.trees import row_of
from evorl.types import State
from evorl.workflows.workflow import Workflow

ELITES_SHOWN = 9


def has_archive(workflow: Workflow) -> bool:
    """Return True if the workflow has an archive of elites."""
    return isinstance(getattr(workflow, "archive", None), Archive)


def played_entries(workflow: Workflow) -> tuple[str, ...]:
    """Return the names of the entries of a workflow's state that evaluations and animations read."""
    return (*workflow.evaluation_entries, *(("archive_state",) if has_archive(workflow) else ()))


def best_policy(state: State) -> AgentState:
    """Return the agent state that evaluations use, from the state of one seed; in a population, the best member's."""
    if "members" not in state:
        return state.agent_state
    return row_of(state.members.agent_state, best_member(state.scores))


def players_of(workflow: Workflow, state: State, num_episodes: int, cells: int | Sequence[int] | None) -> list[Player]:
    """Return the policies to render.

    Args:
        workflow: the trained workflow.
        state: state of one seed; with ``archive_state`` if the workflow has an archive.
        num_episodes: number of episodes of the best policy; each elite plays one episode.
        cells: number of elites, or indices of their cells; 0 renders only the best policy. ``None`` renders
            ``ELITES_SHOWN`` elites, or the best policy without an archive.

    Raises:
        ValueError: ``cells`` needs an archive that the workflow does not have, or the archive or a cell has no elite.
    """
    if cells and not has_archive(workflow):
        raise ValueError(
            f"cells={cells} needs an archive, but {type(workflow).__name__} does not keep one: remove cells."
        )
    if cells == 0 or not has_archive(workflow):
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
    """Select up to ``number`` cells with elites: the best elite, then repeatedly the one farthest from those selected.

    Distances are Euclidean, between descriptors scaled to [0, 1] by the bounds of the archive.

    Raises:
        ValueError: no cell has an elite.
    """
    fitness = np.asarray(state.fitness)
    cells = np.flatnonzero(np.isfinite(fitness))
    if not cells.size:
        raise ValueError("The archive has no elite yet: train longer.")
    low, high = np.asarray(archive.low), np.asarray(archive.high)
    positions = (np.asarray(state.descriptors)[cells] - low) / (high - low)
    chosen = [int(np.argmax(fitness[cells]))]
    distances = np.linalg.norm(positions - positions[chosen[0]], axis=1)
    while len(chosen) < min(number, cells.size):
        chosen.append(int(np.argmax(np.where(np.isin(np.arange(cells.size), chosen), -1.0, distances))))
        distances = np.minimum(distances, np.linalg.norm(positions - positions[chosen[-1]], axis=1))
    return cells[chosen].tolist()


def checked_cells(state: ArchiveState, cells: Sequence[int]) -> list[int]:
    """Return the requested cells; raise ``ValueError``, which lists filled cells, if one has no elite."""
    filled = np.flatnonzero(np.isfinite(np.asarray(state.fitness))).tolist()
    for cell in cells:
        if cell not in filled:
            some = ", ".join(map(str, filled[:12])) + (" ..." if len(filled) > 12 else "")
            raise ValueError(
                f"cells: the archive has no elite in cell {cell!r}. Cells with elites ({len(filled)}): {some}."
            )
    return list(cells)


def elite_title(state: ArchiveState, cell: int) -> str:
    """Return the title of an elite, its cell and descriptors: ``cell 3 (0.5, 0.2)``."""
    numbers = ", ".join(f"{value:.2g}" for value in np.asarray(state.descriptors)[cell])
    return f"cell {cell} ({numbers})"


def elite_of(state: ArchiveState, cell: int) -> Any:
    """Return the policy parameters of the elite in ``cell``."""
    return jax.tree.map(lambda x: x[cell], state.solutions)

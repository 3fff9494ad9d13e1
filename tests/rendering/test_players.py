"""Selection of rendered policies: the best, and the most different elites."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState
from evorl.ec.archives import ArchiveState, GridArchive
from evorl.rendering.players import (
    ELITES_SHOWN,
    best_policy,
    checked_cells,
    has_archive,
    players_of,
    spread_cells,
)
from evorl.types import PyTreeDict, State
from tests.support.errors import raises_naming

ARCHIVE = GridArchive(low=(0.0, 0.0), high=(1.0, 10.0), bins=(4, 4))
FILLED = {0: (0.1, 1.0), 1: (0.1, 4.0), 5: (0.4, 4.0), 15: (0.9, 9.0)}


def archive_state(filled: dict[int, tuple[float, float]] = FILLED) -> ArchiveState:
    fitness, descriptors = np.full(16, -np.inf, np.float32), np.zeros((16, 2), np.float32)
    for place, (cell, descriptor) in enumerate(filled.items()):
        fitness[cell], descriptors[cell] = place % 3, descriptor
    return ArchiveState(solutions={"w": jnp.arange(16.0)}, fitness=fitness, descriptors=descriptors)


def workflow(**attributes: Any) -> Any:
    return SimpleNamespace(**{"execution": SimpleNamespace(num_seeds=None), **attributes})


def agent_state(value: Any) -> AgentState:
    return AgentState(params=PyTreeDict(policy={"w": jnp.asarray(value)}))


def test_the_best_comes_first_and_then_the_farthest() -> None:
    # Fitness 0, 1, 2, 0: the best is cell 5; relative to the range, 15 is farthest from it, then 0.
    assert spread_cells(ARCHIVE, archive_state(), 3) == [5, 15, 0]
    assert spread_cells(ARCHIVE, archive_state(), 10) == [5, 15, 0, 1]
    with raises_naming(ValueError, "no elite"):
        spread_cells(ARCHIVE, archive_state({}), 3)


def test_cells_that_are_empty_are_refused() -> None:
    assert checked_cells(archive_state(), [15, 0]) == [15, 0]
    with raises_naming(ValueError, "cell 2.", ": 0, 1, 5, 15"):
        checked_cells(archive_state(), [0, 2])


def test_each_elite_plays_one_episode() -> None:
    state = State(agent_state=agent_state(-1.0), archive_state=archive_state())
    keeper = workflow(archive=ARCHIVE)
    assert has_archive(keeper)
    assert ELITES_SHOWN == 9
    players = players_of(keeper, state, 3, None)
    assert [(player.title, player.num_episodes) for player in players][:2] == [
        ("cell 5 (0.4, 4)", 1),
        ("cell 15 (0.9, 9)", 1),
    ]
    assert [float(player.agent_state.params.policy["w"]) for player in players] == [5, 15, 0, 1]
    assert [player.title for player in players_of(keeper, state, 3, [1])] == ["cell 1 (0.1, 4)"]
    (best,) = players_of(keeper, state, 3, 0)
    assert (best.title, best.num_episodes, float(best.agent_state.params.policy["w"])) == ("", 3, -1.0)


def test_without_an_archive_there_are_no_cells() -> None:
    state = State(agent_state=agent_state(2.0))
    (player,) = players_of(workflow(), state, 4, None)
    assert (player.title, player.num_episodes) == ("", 4)
    with raises_naming(ValueError, "cells=3", "archive", "SimpleNamespace"):
        players_of(workflow(), state, 4, 3)


def test_of_a_population_the_member_with_the_best_score_plays() -> None:
    members = State(agent_state=agent_state([1.0, 2.0, 3.0]))
    state = State(members=members, scores=jnp.array([0.5, 4.0, jnp.nan]))
    assert float(best_policy(state).params.policy["w"]) == 2.0

"""The history of a population: lineages, also after the ring has wrapped."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.config.search_space import SearchSpace
from evorl.workflows.population_history import PopulationHistory

PARENTS = [[0, 0, 2], [0, 1, 1], [2, 1, 2], [0, 1, 2]]
SCORES = [[3.0, 1.0, 2.0], [1.0, 3.0, 0.0], [0.0, 1.0, 5.0], [9.0, 2.0, 3.0]]
LINE = [0, 1, 2, 0]  # backwards: 0 from 2, from 1, from 0
SPACE = SearchSpace(("a", "agent.b"), jnp.zeros(2), jnp.ones(2), jnp.array([False, True]))


def history(num_generations: int, capacity: int) -> PopulationHistory:
    record = PopulationHistory.create(capacity, 3, 2)
    for g in range(num_generations):
        values = 10.0 * g + jnp.arange(6.0).reshape(3, 2)
        record = record.record(jnp.uint32(g), values, jnp.array(SCORES[g]), jnp.array(PARENTS[g]))
    return record


@pytest.mark.parametrize("capacity", [4, 7])
@pytest.mark.parametrize("num_generations", [1, 2, 3, 4])
def test_the_winning_line_leads_through_parents(num_generations: int, capacity: int) -> None:
    expected = {1: [0], 2: [0, 1], 3: [0, 1, 2], 4: LINE}[num_generations]
    assert history(num_generations, capacity).best_lineage(num_generations).tolist() == expected


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_full_ring_holds_the_last_generations(capacity: int) -> None:
    full = history(4, capacity)
    assert full.generations(4).tolist() == list(range(4 - capacity, 4))
    assert full.best_lineage(4).tolist() == LINE[4 - capacity :]
    assert full.chart(4, 100, SPACE).columns["generation"].tolist() == np.repeat(range(4 - capacity, 4), 3).tolist()


def test_nothing_has_happened_yet() -> None:
    chart = history(0, 3).chart(0, 100, SPACE)
    assert {len(column) for column in chart.columns.values()} == {0}


def test_a_chart_without_timesteps_is_drawn_over_generations() -> None:
    chart = history(2, 3).chart(2, 0, SPACE)
    assert "timesteps" not in chart.columns
    assert {panel.x for panel in chart.panels} == {"generation"}


def test_the_chart() -> None:
    chart = history(4, 8).chart(4, 100, SPACE)
    assert list(chart.columns) == ["generation", "timesteps", "member", "parent", "score", "winner", "a", "agent.b"]
    assert {len(column) for column in chart.columns.values()} == {12}
    winner = chart.columns["winner"] == 1
    assert chart.columns["member"][winner].tolist() == LINE
    assert chart.columns["timesteps"][winner].tolist() == [100, 200, 300, 400]
    assert chart.columns["score"][winner].tolist() == [3.0, 3.0, 5.0, 9.0]
    assert chart.columns["a"][winner].tolist() == [0.0, 12.0, 24.0, 30.0]
    assert chart.columns["parent"].reshape(4, 3).tolist() == PARENTS
    assert [(panel.y, panel.log) for panel in chart.panels] == [("score", False), ("a", False), ("agent.b", True)]

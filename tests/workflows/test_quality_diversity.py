"""Generations of offspring for an archive: breeding, descriptors, and settings that must not change results."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.archives import CentroidArchive, DominatedNoveltyArchive, GridArchive
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.execution import programs
from evorl.execution.restoration import restore
from evorl.execution.trainable import Execution
from evorl.ops.collectives import DATA_AXIS
from evorl.recorders import ChartRecorder
from evorl.recorders.row_file import CsvRecorder
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.recorder import Panel
from evorl.types import State
from evorl.workflows.quality_diversity import QualityDiversityWorkflow, fitness_map
from tests.support.errors import raises_naming
from tests.support.small_workflows import EPISODE_STEPS, arrays, assert_close, assert_identical, small

ALGORITHMS = ["map_elites", "pga_me"]
GENERATIONS, SEED = 6, 2


def qd(algorithm: str, **changes: Any) -> QualityDiversityWorkflow:
    workflow = small(algorithm, "Pendulum-v1", **changes)
    assert isinstance(workflow, QualityDiversityWorkflow)
    return workflow


def _collected(workflow: QualityDiversityWorkflow, state: State) -> EpisodeOutcomes:
    return jax.jit(lambda workflow, state: workflow.collect(state)[0])(workflow, state)


@functools.cache
def trained(algorithm: str) -> tuple[QualityDiversityWorkflow, dict[str, np.ndarray], State]:
    """Return the workflow, its metrics ``[G]``, and its state after ``GENERATIONS``."""
    workflow = qd(algorithm)
    metrics, state = programs.iterate_program(workflow, workflow.init(SEED), GENERATIONS)
    metrics.pop("episodes")
    return workflow, {name: np.asarray(x)[:GENERATIONS] for name, x in metrics.items()}, state


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scores_never_fall(algorithm: str) -> None:
    workflow, metrics, state = trained(algorithm)
    for name in ("coverage", "qd_score", "best_fitness"):
        assert (np.diff(metrics[name]) >= 0).all(), name
        assert metrics[name][-1] > metrics[name][0], name
    assert (metrics["timesteps"] == workflow.pop_size * EPISODE_STEPS).all()
    assert int(state.timesteps) == GENERATIONS * workflow.pop_size * EPISODE_STEPS
    fitness = np.asarray(state.archive_state.fitness)
    filled = np.isfinite(fitness)
    np.testing.assert_allclose(metrics["qd_score"][-1], (fitness[filled] + 200.0).sum(), rtol=1e-5)
    np.testing.assert_allclose(metrics["coverage"][-1], filled.mean())


def test_projected_policies_fill_the_archive() -> None:
    """With ``unit_norm``, the weights of each unit have norm 1 in every elite, the first ones included."""
    workflow = qd("map_elites", variation={"projection": "unit_norm"})
    _, state = programs.iterate_program(workflow, workflow.init(SEED), 2)
    filled = np.isfinite(state.archive_state.fitness)
    weights = {path: x[filled] for path, x in arrays(state.archive_state.solutions).items() if "kernel" in path}
    assert len(weights) == 2
    for path, x in weights.items():
        np.testing.assert_allclose(np.linalg.norm(x, axis=-2), 1.0, rtol=1e-5, err_msg=path)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_acts_by_the_best_elite(algorithm: str) -> None:
    workflow, metrics, state = trained(algorithm)
    best = int(np.argmax(state.archive_state.fitness))
    elite = jax.tree.map(lambda x: x[best], state.archive_state.solutions)
    assert_identical(state.agent_state.params.policy, elite)
    assert float(state.archive_state.fitness[best]) == metrics["best_fitness"][-1] == metrics["fitness_max"].max()
    assert workflow.evaluate(state).episode_return < 0.0


def test_a_generation_goes_into_the_archive() -> None:
    """Each cell of the archive contains the best individual with its descriptor."""
    workflow = qd("map_elites")
    state = workflow.init(SEED)
    outcomes = _collected(workflow, state)
    fitness = np.asarray(outcomes.returns).mean(axis=1)
    angle, speed = (np.asarray(outcomes.totals[f"next_obs.{i}"])[:, 0] / EPISODE_STEPS for i in (0, 2))
    columns = np.clip((angle + 1) * 2, 0, 3).astype(int), np.clip((speed + 8) / 4, 0, 3).astype(int)
    cells = columns[0] * 4 + columns[1]
    _, after = workflow.step(state)
    assert set(np.flatnonzero(after.archive_state.is_filled)) == set(cells)
    for cell in set(cells):
        best = max(np.flatnonzero(cells == cell), key=lambda i: fitness[i])
        np.testing.assert_allclose(after.archive_state.fitness[cell], fitness[best], rtol=1e-6)
        np.testing.assert_allclose(after.archive_state.descriptors[cell], [angle[best], speed[best]], rtol=1e-5)
        elite = jax.tree.map(lambda x, cell=cell: x[cell], after.archive_state.solutions)
        assert_identical(elite, jax.tree.map(lambda x, best=best: x[best], state.population))


def test_a_return_that_is_no_number_fills_no_cell() -> None:
    """Individuals with NaN returns are not added to the archive."""
    workflow, _, _ = trained("map_elites")
    state = workflow.init(SEED)
    outcomes = _collected(workflow, state)
    broken = outcomes.replace(returns=outcomes.returns.at[3, 0].set(jnp.nan))
    cells = np.asarray(workflow.archive.cells(workflow.descriptor_values(outcomes)))
    update = jax.jit(workflow.update)
    (_, whole), (metrics, after) = update(state, outcomes), update(state, broken)
    fitness = np.asarray(outcomes.returns.mean(axis=1))
    others = [fitness[i] for i in np.flatnonzero(cells == cells[3]) if i != 3]
    assert after.archive_state.fitness[cells[3]] == max(others, default=-np.inf)
    elsewhere = np.arange(workflow.archive.num_cells) != cells[3]
    np.testing.assert_array_equal(after.archive_state.fitness[elsewhere], whole.archive_state.fitness[elsewhere])
    assert np.isfinite(metrics.fitness)


def test_offspring_descend_from_elites() -> None:
    """Without noise and with only one elite, all offspring equal it."""
    workflow = qd("map_elites", variation={"iso_sigma": 0.0, "line_sigma": 0.5})
    state = workflow.init(SEED)
    fresh = np.asarray(jax.tree.leaves(state.population)[-1])
    assert len(np.unique(fresh.reshape(workflow.pop_size, -1), axis=0)) == workflow.pop_size
    alone = jax.tree.map(lambda x: x[:1], state.population)
    archive_state = workflow.archive.add(state.archive_state, alone, jnp.zeros(1), jnp.zeros((1, 2)))
    offspring = workflow.offspring(state.replace(archive_state=archive_state), jax.random.key(0))
    expected = jax.tree.map(lambda x: jnp.repeat(x, workflow.pop_size, axis=0), alone)
    assert_close(offspring, expected, 1e-6)


def test_descriptors_are_means_or_last_values() -> None:
    means, lasts = (qd("map_elites", descriptor_statistic=statistic) for statistic in ("mean", "last"))
    outcomes = _collected(means, means.init(SEED))
    assert outcomes.returns.shape == (8, 1)
    expected = np.stack([np.asarray(outcomes.last[name])[:, 0] for name in means.descriptors], axis=1)
    np.testing.assert_array_equal(lasts.descriptor_values(outcomes), expected)
    expected = np.stack([np.asarray(outcomes.totals[name])[:, 0] for name in means.descriptors], axis=1)
    np.testing.assert_allclose(means.descriptor_values(outcomes), expected / EPISODE_STEPS, rtol=1e-6)


def test_a_vector_is_a_descriptor_of_several_numbers() -> None:
    archive = {"name": "centroid", "low": [-1, -1, -8], "high": [1, 1, 8], "num_centroids": 12}
    workflow = qd("map_elites", descriptors=["next_obs"], archive=archive, episodes_per_individual=2)
    assert isinstance(workflow.archive, CentroidArchive)
    outcomes = _collected(workflow, workflow.init(SEED))
    described = workflow.descriptor_values(outcomes)
    np.testing.assert_allclose(described, outcomes.totals["next_obs"].mean(axis=1) / EPISODE_STEPS, rtol=1e-5)
    metrics, _ = workflow.step(workflow.init(SEED))
    assert 0.0 < float(metrics.coverage) <= 8 / 12


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "layout",
    [
        {"eval_chunk": 3},
        {"execution": Execution(axis=DATA_AXIS, num_devices=2)},
        {"execution": Execution(axis=DATA_AXIS, num_devices=4), "eval_chunk": 1},
    ],
    ids=["chunks", "2 devices", "4 devices, chunks"],
)
def test_layout_does_not_show(algorithm: str, layout: dict[str, Any]) -> None:
    workflow, _, state = trained(algorithm)
    laid_out = workflow.replace(**layout)
    _, its_state = programs.iterate_program(laid_out, programs.place(laid_out, workflow.init(SEED)), GENERATIONS)
    for name in ("archive_state", "agent_state", "population"):
        assert_close(its_state[name], state[name], 1e-3)
    assert_identical(its_state.timesteps, state.timesteps)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_seeds_side_by_side(algorithm: str) -> None:
    _, _, state = trained(algorithm)
    together = qd(algorithm, num_seeds=2)
    _, states = programs.iterate_program(together, together.init(SEED - 1), GENERATIONS)
    assert_close(jax.tree.map(lambda x: x[1], states.archive_state), state.archive_state, 1e-3)


def _run(algorithm: str) -> QualityDiversityWorkflow:
    steps = 8 * EPISODE_STEPS
    intervals = {"log_interval": 2 * steps, "checkpoint_interval": 2 * steps, "eval_interval": 4 * steps}
    return qd(algorithm, total_timesteps=GENERATIONS * steps, **intervals)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stop_and_resume(algorithm: str, tmp_path: Path) -> None:
    """A stopped and resumed run equals an uninterrupted one in every leaf and row."""
    whole = CsvRecorder(tmp_path / "whole.csv")
    workflow = _run(algorithm)
    state = workflow.learn(key=SEED, recorder=whole, checkpointer=RunCheckpointer(tmp_path / "whole"))
    whole.close()
    assert int(state.iterations) == GENERATIONS
    calls = iter(range(100))
    first = CsvRecorder(tmp_path / "parts.csv")
    checkpointer = RunCheckpointer(tmp_path / "parts")
    stopped = _run(algorithm).learn(
        key=SEED, recorder=first, checkpointer=checkpointer, should_stop=lambda: next(calls) >= 1
    )
    first.close()
    assert 0 < int(stopped.iterations) < GENERATIONS
    state_then, progress = restore(_run(algorithm), RunCheckpointer(tmp_path / "parts"), SEED, "latest")
    second = CsvRecorder(tmp_path / "parts.csv")
    second.resume_at(progress["iterations"])
    resumed = _run(algorithm).learn(state_then, recorder=second, checkpointer=checkpointer, progress=progress)
    second.close()
    assert_identical(resumed, state)
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_the_best_elite_is_in_the_checkpoint(tmp_path: Path) -> None:
    workflow = _run("map_elites")
    checkpointer = RunCheckpointer(tmp_path)
    state = workflow.learn(key=SEED, checkpointer=checkpointer)
    read, _ = restore(workflow, checkpointer, SEED, "latest", entries=workflow.evaluation_entries)
    assert set(read) == set(workflow.evaluation_entries)
    assert_identical(read.agent_state, state.agent_state)
    assert arrays(workflow.evaluate(read)) == arrays(workflow.evaluate(state))


def test_the_archive_is_drawn_at_the_end(tmp_path: Path) -> None:
    workflow = _run("map_elites")
    state = workflow.learn(key=SEED, recorder=ChartRecorder(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive.csv", "archive.png"]
    header, *rows = (tmp_path / "archive.csv").read_text().splitlines()
    assert header == "cell,fitness,next_obs.0,next_obs.2"
    cells = np.flatnonzero(state.archive_state.is_filled)
    table = np.array([row.split(",") for row in rows], float)
    np.testing.assert_array_equal(table[:, 0], cells)
    np.testing.assert_array_equal(table[:, 1].astype(np.float32), state.archive_state.fitness[cells])
    np.testing.assert_array_equal(table[:, 2:].astype(np.float32), state.archive_state.descriptors[cells])
    together = qd("map_elites", num_seeds=2)
    charts = together.charts(together.init(SEED))
    assert sorted(charts) == ["archive_seed_0", "archive_seed_1"]
    assert len(charts["archive_seed_0"].columns["cell"]) == 0
    one = qd("map_elites", descriptors=["next_obs.0"], archive={"name": "grid", "low": [-1], "high": [1], "bins": [4]})
    assert one.charts(one.init(SEED))["archive"].panels == (Panel("next_obs.0", "fitness"),)


def test_a_map_has_the_elite_of_every_cell_where_the_cell_lies() -> None:
    grid = GridArchive(low=(0.0, 0.0), high=(2.0, 3.0), bins=(2, 3))
    fitness = np.array([1.0, -np.inf, 2.0, 3.0, -np.inf, 4.0], np.float32)  # the last dimension varies fastest
    heat = fitness_map(grid, fitness, np.zeros((6, 2), np.float32), (0, 1))
    np.testing.assert_array_equal(heat.values, [[1.0, np.nan, 2.0], [3.0, np.nan, 4.0]])
    assert (heat.low, heat.high, heat.label) == ((0.0, 0.0), (2.0, 3.0), "fitness")


def test_a_map_of_points_has_the_nearest_one() -> None:
    points = CentroidArchive(low=(0.0, 0.0), high=(1.0, 1.0), num_centroids=2, centroids=[[0.0, 0.5], [1.0, 0.5]])
    heat = fitness_map(points, np.array([1.0, 2.0], np.float32), np.zeros((2, 2), np.float32), (0, 1))
    half = heat.values.shape[0] // 2
    assert set(heat.values[:half].ravel()) == {1.0}
    assert set(heat.values[half:].ravel()) == {2.0}


def test_a_map_without_cells_has_the_best_of_each_bin() -> None:
    archive = DominatedNoveltyArchive(low=(0.0, 0.0), high=(2.0, 2.0), bins=(2,), capacity=4)
    fitness = np.array([1.0, 5.0, -np.inf, 3.0], np.float32)
    descriptors = np.array([[0.1, 0.1], [0.2, 0.3], [1.9, 1.9], [1.5, 0.5]], np.float32)
    heat = fitness_map(archive, fitness, descriptors, (0, 1))
    np.testing.assert_array_equal(heat.values, [[5.0, np.nan], [3.0, np.nan]])


def test_a_map_of_two_of_three_descriptors_says_what_it_leaves_out() -> None:
    grid = GridArchive(low=(0.0, 0.0, 0.0), high=(1.0, 1.0, 1.0), bins=(2, 2, 2))
    fitness = np.array([1.0, 5.0, -np.inf, -np.inf, -np.inf, -np.inf, 3.0, 2.0], np.float32)
    descriptors = np.array([[0.2, 0.2, 0.2], [0.2, 0.2, 0.7], *4 * [[0, 0, 0]], [0.7, 1.0, 0.2], [9.0, 0.7, 0.7]])
    heat = fitness_map(grid, fitness, descriptors, (0, 1))
    np.testing.assert_array_equal(heat.values, [[5.0, np.nan], [np.nan, 3.0]])
    assert heat.label == "maximum fitness over the other descriptors (1 of 3)"


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"descriptors": []}, ("descriptors", "empty")),
        ({"pop_size": 0}, ("pop_size", "got 0")),
        ({"descriptor_statistic": "median"}, ("descriptor_statistic", "last, mean")),
        ({"agent": {"normalize_obs": True}}, ("normalize_obs", "elites")),
        ({"archive": {"name": "gird"}}, ("'gird'", "'grid'")),
        ({"archive": {"name": "grid", "low": [0.0], "high": [1.0], "bins": [2, 2]}}, ("1 dimensions", "got [2, 2]")),
        ({"archive": {"name": "grid", "cells": 3}}, ("archive", "'cells'")),
        ({"archive": {"name": "grid", "bins": 4}}, ("archive.bins", "[4]", "got 4")),
        ({"descriptors": "next_obs.0"}, ("descriptors", "['next_obs.0']")),
        ({"discount": 0.9}, ("'discount'",)),
        ({"episodes_per_individual": 0}, ("episodes_per_individual", "got 0")),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        qd("map_elites", **changes)


def test_descriptors_are_looked_for_when_the_run_is_set_up() -> None:
    workflow = qd("map_elites", descriptors=["metrics.x_position", "next_obs.0"])
    with raises_naming(ValueError, "'metrics.x_position'"):
        jax.eval_shape(workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0)))
    workflow = qd("map_elites", descriptors=["next_obs"])
    with raises_naming(ValueError, "2 dimensions", "got [8, 3]"):
        jax.eval_shape(workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0)))

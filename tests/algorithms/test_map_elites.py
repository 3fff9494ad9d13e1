"""MAP-Elites on problems where the best solution of every cell is known."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.algorithms.map_elites import MAPElitesWorkflow
from evorl.ec.archives import Archive, CentroidArchive, DominatedNoveltyArchive, GridArchive
from evorl.ec.covariance_emitter import CovarianceEmitter
from evorl.ec.operators.iso_line import IsoLineVariation
from evorl.envs.wrappers import VmapWrapper
from evorl.execution import programs
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.small_workflows import QUALITY_DIVERSITY_CONFIG, arrays, assert_close
from tests.support.toy_envs import NUM_STEPS, LineWalk

FARTHEST = 3.0
BOX = {"low": (-FARTHEST,), "high": (FARTHEST,)}


class TestContract(WorkflowContract):
    workflow = MAPElitesWorkflow
    SMALL = {**QUALITY_DIVERSITY_CONFIG, "agent": {"network": {"torso": [8]}}}
    endless_env = ("Pendulum-v1", 3)


class TestEmitters(WorkflowContract):
    """CMA-ME: accepted individuals are parents, and emitters restart."""

    workflow = MAPElitesWorkflow
    SMALL = {**TestContract.SMALL, "emitter": {"num_emitters": 2, "ranking": "2rd"}}
    endless_env = TestContract.endless_env
    has_other_products = True  # adaptation of the covariance


class TestThresholds(WorkflowContract):
    """CMA-MAE: the archive has thresholds."""

    workflow = MAPElitesWorkflow
    SMALL = {
        **TestContract.SMALL,
        "archive": {**QUALITY_DIVERSITY_CONFIG["archive"], "threshold_min": -200.0},
        "emitter": {"num_emitters": 2, "ranking": "imp", "selection": "mu", "restart": "basic"},
    }
    endless_env = TestContract.endless_env
    has_other_products = True  # as above


class TestDominatedNovelty(WorkflowContract):
    """Fewer slots than cells of the grid, and than policies."""

    workflow = MAPElitesWorkflow
    SMALL = {
        **TestContract.SMALL,
        "archive": {**QUALITY_DIVERSITY_CONFIG["archive"], "name": "dominated_novelty", "capacity": 12},
    }
    endless_env = TestContract.endless_env


class TestAgent(AgentContract):
    workflow = MAPElitesWorkflow
    settings = TestContract.SMALL["agent"]
    explores = False


def _walks(archive: Archive, **settings: Any) -> MAPElitesWorkflow:
    env = VmapWrapper(LineWalk(), 32)
    return MAPElitesWorkflow(
        env=env,
        eval_env=VmapWrapper(LineWalk(), 2),
        agent=MAPElitesWorkflow.make_agent({"network": {"torso": [8]}}, env),
        archive=archive,
        descriptors=("metrics.place",),
        descriptor_statistic="last",
        pop_size=32,
        variation=IsoLineVariation(iso_sigma=0.1, line_sigma=0.3),
        **settings,
    )


@pytest.mark.parametrize(
    ("archive", "emitter"),
    [
        (GridArchive(**BOX, bins=(12,)), None),
        (CentroidArchive(**BOX, num_centroids=12), None),
        (GridArchive(**BOX, bins=(12,)), CovarianceEmitter(2)),
        (
            GridArchive(**BOX, bins=(12,), threshold_min=-3.0, threshold_rate=0.1),
            CovarianceEmitter(2, ranking="imp", selection="mu", restart="basic"),
        ),
    ],
    ids=["grid", "centroid", "CMA-ME", "CMA-MAE"],
)
def test_the_best_walk_to_every_place_is_found(archive: Archive, emitter: CovarianceEmitter | None) -> None:
    workflow = _walks(archive, emitter=emitter)
    _, state = programs.iterate_program(workflow, workflow.init(0), 150)
    elites = state.archive_state
    assert np.asarray(elites.is_filled).all()
    place, fitness = np.asarray(elites.descriptors)[:, 0], np.asarray(elites.fitness)
    best = -np.square(place) / NUM_STEPS
    assert (fitness <= best + 1e-5).all()
    assert (fitness >= best - 0.3).all()
    assert (best - fitness).mean() < 0.1
    np.testing.assert_array_equal(archive.cells(elites.descriptors), np.arange(12))
    assert float(workflow.evaluate(state).episode_return) == pytest.approx(fitness.max(), abs=1e-5)


def test_walks_spread_without_cells() -> None:
    """Dominated novelty keeps walks that end far apart, each near the best for its place."""
    archive = DominatedNoveltyArchive(**BOX, bins=(12,), capacity=24)
    workflow = _walks(archive)
    _, state = programs.iterate_program(workflow, workflow.init(0), 150)
    elites = state.archive_state
    place, fitness = np.sort(np.asarray(elites.descriptors)[:, 0]), np.asarray(elites.fitness)
    assert place[0] < -2.5
    assert place[-1] > 2.5
    assert np.diff(place).max() < 1.5  # of 8, with 24 walks
    best = -np.square(np.asarray(elites.descriptors)[:, 0]) / NUM_STEPS
    assert (best - fitness).mean() < 0.2
    cells = set(np.asarray(archive.cells(elites.descriptors)).tolist())
    assert float(archive.coverage(elites)) == pytest.approx(len(cells) / 12)


def test_emitters_start_at_policies_of_their_own_and_make_the_first_generation() -> None:
    workflow = TestEmitters.make()
    state = workflow.init(3)
    variation = TestContract.make().init(3)
    means = jax.tree.map(np.asarray, state.emitter_state.searches.mean)
    rows = arrays(jax.tree.map(lambda x: x.reshape(2, 4, *x.shape[1:]), state.population))
    for path, mean in arrays(means).items():
        assert (np.abs(rows[path] - mean[:, None]) < 3.5).all()  # seven standard deviations
        assert np.abs(mean[0] - mean[1]).max() > 0 or "bias" in path
    assert "emitter_state" not in variation
    asked = workflow.emitter.ask(state.emitter_state, workflow.pop_size)
    assert_close(asked, state.population, 1e-6)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"emitter": {"num_emitters": 3}}, ("pop_size=8", "num_emitters=3")),
        ({"emitter": {"num_emitters": 2, "rankings": "imp"}}, ("'rankings'", "'ranking'")),
        ({"emitter": {"num_emitters": 2, "ranking": "3imp"}}, ("ranking", "2imp")),
        ({"variation": {"projection": "unit_norm"}}, ("variation.projection=unit_norm", "null", "emitter")),
        ({"archive": {"name": "dominated_novelty"}}, ("emitter", "grid", "dominated_novelty")),
        ({"archive": {"name": "grid", "threshold_rate": 1.5}}, ("threshold_rate", "[0, 1]", "1.5")),
    ],
)
def test_emitters_that_cannot_work_are_refused(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        TestEmitters.make(**changes)

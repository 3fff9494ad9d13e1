"""MAP-Elites on problems where the best solution of every cell is known."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.algorithms.map_elites import MAPElitesWorkflow
from evorl.ec.archives import Archive, CentroidArchive, GridArchive
from evorl.ec.operators.iso_line import IsoLineVariation
from evorl.envs.wrappers import VmapWrapper
from evorl.execution import programs
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.small_workflows import QUALITY_DIVERSITY_CONFIG
from tests.support.toy_envs import NUM_STEPS, LineWalk

FARTHEST = 3.0
BOX = {"low": (-FARTHEST,), "high": (FARTHEST,)}


class TestContract(WorkflowContract):
    workflow = MAPElitesWorkflow
    SMALL = {**QUALITY_DIVERSITY_CONFIG, "agent": {"network": {"torso": [8]}}}
    endless_env = ("Pendulum-v1", 3)


class TestAgent(AgentContract):
    workflow = MAPElitesWorkflow
    settings = TestContract.SMALL["agent"]
    explores = False


@pytest.mark.parametrize(
    "archive",
    [GridArchive(**BOX, bins=(12,)), CentroidArchive(**BOX, num_centroids=12)],
    ids=lambda archive: type(archive).__name__,
)
def test_the_best_walk_to_every_place_is_found(archive: Archive) -> None:
    env = VmapWrapper(LineWalk(), 32)
    workflow = MAPElitesWorkflow(
        env=env,
        eval_env=VmapWrapper(LineWalk(), 2),
        agent=MAPElitesWorkflow.make_agent({"network": {"torso": [8]}}, env),
        archive=archive,
        descriptors=("metrics.place",),
        descriptor_statistic="last",
        pop_size=32,
        variation=IsoLineVariation(iso_sigma=0.1, line_sigma=0.3),
    )
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

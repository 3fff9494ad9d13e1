"""PGA-ME: composition of the offspring, data of the learner, and problems with a known optimum."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.algorithms.pga_me import PGAMEWorkflow
from evorl.algorithms.td3 import TD3Workflow
from evorl.ec.archives import GridArchive
from evorl.ec.operators.iso_line import IsoLineVariation
from evorl.envs.wrappers import VmapWrapper
from evorl.execution import programs
from evorl.ops.optimization import Optimizer
from tests.conformance.workflow import WorkflowContract
from tests.support.compilation import compiled_to_run_long
from tests.support.errors import raises_naming
from tests.support.small_workflows import EPISODE_STEPS, QUALITY_DIVERSITY_CONFIG, arrays, assert_identical, small
from tests.support.toy_envs import NUM_STEPS, LineWalk

SEED = 1


class TestContract(WorkflowContract):
    workflow = PGAMEWorkflow
    SMALL = {
        **QUALITY_DIVERSITY_CONFIG,
        "gradient_share": 0.5,
        "policy_updates": 3,
        "policy_batch_size": 16,
        "learner": {
            "workflow": "evorl.algorithms.td3.TD3Workflow",
            "agent": {"network": {"torso": [8]}},
            "updates_per_iteration": 4,
            "batch_size": 16,
            "replay_capacity": 256,
        },
    }
    endless_env = ("Pendulum-v1", 3)


def pga_me(**changes: Any) -> PGAMEWorkflow:
    workflow = small("pga_me", "Pendulum-v1", **changes)
    assert isinstance(workflow, PGAMEWorkflow)
    return workflow


def _with_learner(**changes: Any) -> dict[str, Any]:
    return {"learner": {**TestContract.SMALL["learner"], **changes}}


def test_all_policies_are_projected() -> None:
    projection = {"projection": "unit_norm"}
    settings = {"variation": projection, "policy_optimizer": projection}
    workflow = pga_me(**settings, **_with_learner(actor_optimizer=projection))
    _, state = workflow.step(workflow.init(SEED))
    kernels = [x for path, x in arrays(state.population).items() if path.endswith("kernel']")]
    assert kernels
    for kernel in kernels:
        np.testing.assert_allclose(np.linalg.norm(kernel, axis=-2), 1.0, rtol=1e-5)


def test_every_transition_of_a_generation_is_stored() -> None:
    workflow = pga_me()
    state = workflow.init(SEED)
    outcomes, _ = jax.jit(lambda workflow, state: workflow.collect(state))(workflow, state)
    metrics, after = workflow.step(state)
    replay = after.learner.replay_state
    assert int(replay.size) == int(metrics.timesteps) == workflow.pop_size * EPISODE_STEPS
    stored = jax.tree.map(lambda x: np.asarray(x)[: int(replay.size), 0], replay.data)
    returns = stored.rewards.reshape(workflow.pop_size, EPISODE_STEPS).sum(axis=1)
    np.testing.assert_allclose(returns, np.asarray(outcomes.returns)[:, 0], rtol=1e-5)
    assert stored.dones.reshape(workflow.pop_size, EPISODE_STEPS)[:, -1].all()
    assert not stored.extras.termination.any()
    np.testing.assert_array_equal(stored.next_obs[:-1][~stored.dones[:-1]], stored.obs[1:][~stored.dones[:-1]])


def test_offspring_are_of_three_kinds() -> None:
    """Offspring are variations as in MAP-Elites, then policies after gradient steps, and last the learner's greedy
    policy.
    """
    workflow = pga_me(variation={"iso_sigma": 0.0, "line_sigma": 0.0})
    _, state = workflow.step(workflow.init(SEED))
    still = workflow.replace(policy_optimizer=Optimizer(learning_rate=0.0))
    key = jax.random.key(0)
    moved, unmoved = (arrays(jax.jit(PGAMEWorkflow.offspring)(w, state, key)) for w in (workflow, still))
    elites = arrays(state.archive_state.solutions)
    greedy = arrays(state.learner.agent_state.params.policy)
    for path, rows in moved.items():
        np.testing.assert_array_equal(rows[:4], unmoved[path][:4])
        assert all(any(np.array_equal(row, elite) for elite in elites[path]) for row in unmoved[path][:7])
        assert (np.abs(rows[4:7] - unmoved[path][4:7]).reshape(3, -1).max(axis=1) > 1e-4).all()
        np.testing.assert_array_equal(rows[7], greedy[path])


def test_the_learner_learns_as_told() -> None:
    workflow = pga_me()
    state = workflow.init(SEED)
    metrics, after = workflow.step(state)
    assert int(after.learner.opt_state.num_updates) == 4
    assert float(metrics.critic_loss) > 0.0
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), after.learner.agent_state, state.learner.agent_state)
    assert all(jax.tree.leaves(changed.params.critic))
    assert all(jax.tree.leaves(changed.params.policy))


def test_a_learner_of_other_settings() -> None:
    """The learner may use prioritized sampling and n-step returns, and may have a stochastic policy."""
    workflow = pga_me(**_with_learner(prioritized=True, n_step=3))
    metrics, state = workflow.step(workflow.init(SEED))
    assert np.isfinite(metrics.critic_loss)
    assert float(state.learner.replay_state.greatest) > 1.0
    workflow = pga_me(**_with_learner(workflow="evorl.algorithms.sac.SACWorkflow"))
    metrics, _ = workflow.step(workflow.init(SEED))
    assert float(metrics.temperature) > 0.0


def test_its_first_generation_are_fresh_policies_in_the_archive() -> None:
    """The first generation is evaluated and stored without the learner."""
    workflow = pga_me()
    _, state = workflow.step(workflow.init(SEED))
    first = workflow.init(SEED)
    outcomes, _ = workflow.collect(first)
    archive_state = workflow.archive.add(
        first.archive_state, first.population, outcomes.returns.mean(axis=1), workflow.descriptor_values(outcomes)
    )
    np.testing.assert_array_equal(state.archive_state.is_filled, archive_state.is_filled)


@compiled_to_run_long()
def test_walks_are_found_by_gradients_too() -> None:
    """The archive fills with walks whose return is near the optimum of their cell."""
    env = VmapWrapper(LineWalk(), 32)
    learner = TD3Workflow(
        env=VmapWrapper(LineWalk(), 1),
        eval_env=VmapWrapper(LineWalk(), 1),
        agent=TD3Workflow.make_agent({"network": {"torso": [16]}}, env),
        updates_per_iteration=20,
        batch_size=64,
        replay_capacity=4096,
        actor_optimizer=Optimizer(learning_rate=3e-3),
        critic_optimizer=Optimizer(learning_rate=3e-3),
    )
    workflow = PGAMEWorkflow(
        env=env,
        eval_env=VmapWrapper(LineWalk(), 2),
        agent=learner.agent,
        learner=learner,
        archive=GridArchive(low=(-3.0,), high=(3.0,), bins=(12,)),
        descriptors=("metrics.place",),
        descriptor_statistic="last",
        pop_size=32,
        variation=IsoLineVariation(iso_sigma=0.1, line_sigma=0.3),
        policy_updates=10,
        policy_batch_size=32,
    )
    _, state = programs.iterate_program(workflow, workflow.init(0), 100)
    elites = state.archive_state
    assert np.asarray(elites.is_filled).all()
    place, fitness = np.asarray(elites.descriptors)[:, 0], np.asarray(elites.fitness)
    best = -np.square(place) / NUM_STEPS
    assert (fitness <= best + 1e-5).all()
    assert (best - fitness).mean() < 0.15
    # Standing still costs nothing, which the learner's greedy policy has learned.
    outcomes, _ = workflow.collect(state)
    assert float(outcomes.returns[-1, 0]) > -0.1


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"gradient_share": 0.1}, ("gradient_share", "2 offspring")),
        ({"gradient_share": 1.5}, ("gradient_share", "(0, 1]", "got 1.5")),
        (
            _with_learner(replay_capacity=79),
            ("replay_capacity=79", "80 transitions"),
        ),
        (_with_learner(num_envs=2), ("learner.num_envs=1",)),
        (_with_learner(updates_per_iteration=0.5), ("updates_per_iteration=0.5", "integer")),
        (_with_learner(workflow="evorl.algorithms.ppo.PPOWorkflow"), ("PPOWorkflow", "replay")),
        (_with_learner(workflow="evorl.algorithms.td3.Nothing"), ("learner.workflow='evorl.algorithms.td3.Nothing'",)),
        (_with_learner(env={"name": "Pendulum-v1"}), ("learner.env", "whole run")),
        (_with_learner(batch_sise=3), ("batch_sise", "'batch_size'")),
        ({"agent": {"network": {}}}, ("learner.agent",)),
        (
            _with_learner(actor_optimizer={"projection": "unit_norm"}),
            ("learner.actor_optimizer.projection=unit_norm", "variation.projection=null", "norms"),
        ),
        ({"variation": {"projection": "unit_norm"}}, ("variation.projection=unit_norm", "policy_optimizer", "same")),
        (
            {"variation": {"projection": "unit_norm"}, **_with_learner(actor_optimizer={"projection": "unit_norm"})},
            ("policy_optimizer.projection=null",),
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        pga_me(**changes)


def test_a_run_is_the_same_twice() -> None:
    workflow = pga_me()
    states = [programs.iterate_program(workflow, workflow.init(SEED), 2)[1] for _ in range(2)]
    assert_identical(*states)

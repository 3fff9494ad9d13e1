"""An emitter accepts every learner whose agent declares ``improves_policies``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import policy_improvers
from evorl.algorithms.pga_me import PGAMEWorkflow
from evorl.evaluators.episodes import transition_rows
from evorl.ops.optimization import Optimizer
from evorl.types import Params, State
from evorl.workflows import learner_emitter
from evorl.workflows.learner_emitter import LearnerEmitter
from tests.support.config_files import said_by
from tests.support.errors import raises_naming
from tests.support.small_workflows import EPISODE_STEPS, arrays, assert_identical, inner_config, one_iteration, small

KEY = jax.random.key(5)
# Offline learners collect data; observations are not normalized, which would change the elites' behaviors.
_AS_A_LEARNER = {"offline": False, "agent": {"network": {"torso": [8]}, "normalize_obs": False}}
_CROSSQ = {"network": {"torso": [8]}, "critic_network": {"torso": ["batch_renorm", 8]}}
CHANGES: dict[str, dict[str, Any]] = {
    "crossq": {"agent": _CROSSQ},
    "flash_sac": {"agent": {**_CROSSQ, "joint_policy": True, "target_critics": True}, "tau": 0.01},
    "iql": _AS_A_LEARNER,
    "td3_bc": _AS_A_LEARNER,
}


@functools.cache
def two_generations(algorithm: str, env: str = "Pendulum-v1") -> tuple[PGAMEWorkflow, State, State]:
    """Return a workflow with this learner, its initial state, and that after two generations."""
    learner = {
        "workflow": said_by(f"agent/{algorithm}")["workflow"],
        "agent": {"network": {"torso": [8]}},
        "updates_per_iteration": 4,
        "batch_size": 16,
        "replay_capacity": 256,
        **CHANGES.get(algorithm, {}),
    }
    workflow = small("pga_me", env, learner=learner)
    assert isinstance(workflow, PGAMEWorkflow)
    first = state = workflow.init(1)
    for _ in range(2):
        _, state = one_iteration(workflow, state)
    return workflow, first, state


def emitted(emitter: LearnerEmitter, learned: State, parents: Params) -> dict[str, np.ndarray]:
    return arrays(jax.jit(LearnerEmitter.emit)(emitter, learned, parents, KEY))


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        *((algorithm, "Pendulum-v1") for algorithm in policy_improvers()),
        ("flash_sac", "Pendulum-v1"),  # the policy reads next_obs
        ("crossq", "Acrobot-v1"),
    ],
)
def test_any_learner_lends_its_gradients(algorithm: str, env: str) -> None:
    """Every learner trains on all episodes and improves the parents; its own policy comes last."""
    workflow, first, state = two_generations(algorithm, env)
    assert int(state.learner.replay_state.size) == 2 * workflow.pop_size * EPISODE_STEPS
    before, after = (arrays(s.learner.agent_state.params) for s in (first, state))
    assert any((before[path] != after[path]).any() for path in after if "critic" in path)
    assert all(np.isfinite(x).all() for x in after.values())
    assert bool(state.archive_state.is_filled.any())

    parents = jax.tree.map(lambda x: x[:3], state.population)
    rows, unmoved = emitted(workflow.emitter, state.learner, parents), arrays(parents)
    greedy = arrays(state.learner.agent_state.params.policy)
    moved = np.zeros(3)
    for path, row in rows.items():
        assert np.isfinite(row).all()
        moved = np.maximum(moved, np.abs(row[:3] - unmoved[path]).reshape(3, -1).max(axis=1))
        np.testing.assert_array_equal(row[3], greedy[path])
    assert (moved > 1e-4).all()
    other_first = jax.tree.map(lambda x: x.at[0].mul(2.0), parents)
    others = emitted(workflow.emitter, state.learner, other_first)
    assert_identical({path: x[1:] for path, x in others.items()}, {path: x[1:] for path, x in rows.items()})


def test_the_buffer_is_the_learners_own() -> None:
    """The learner's buffer contains every step of the generation once."""
    workflow, first, _ = two_generations("sac")
    outcomes, _ = jax.jit(lambda w, s: w.collect(s))(workflow, first)
    learn = jax.jit(lambda emitter, *args: emitter.learn(*args, KEY, KEY, jnp.zeros(())))
    losses, learned = learn(workflow.emitter, first.learner, outcomes)
    assert int(learned.replay_state.size) == int(outcomes.lengths.sum())
    stored = np.asarray(learned.replay_state.data.rewards)[: int(learned.replay_state.size), 0]
    np.testing.assert_allclose(stored.sum(), np.asarray(outcomes.returns).sum(), rtol=1e-5)
    assert set(losses) == set(workflow.learner.loss_names)


def test_without_steps_parents_stay() -> None:
    workflow, _, state = two_generations("sac")
    parents = jax.tree.map(lambda x: x[:3], state.population)
    still = workflow.emitter.replace(optimizer=Optimizer(learning_rate=0.0))
    rows = emitted(still, state.learner, parents)
    assert_identical({path: x[:3] for path, x in rows.items()}, arrays(parents))


def test_policies_improve_on_the_batches_of_the_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hindsight relabels the transitions of elites, too."""
    replay = {"hindsight": "future", "ratio": 1.0}
    learner = {**inner_config("sac"), "num_envs": 1, "updates_per_iteration": 1, "replay": replay}
    archive = {"name": "grid", "low": [0.0, 0.0], "high": [1.0, 1.0], "bins": [4]}
    maze = {"name": "point_maze", "max_episode_steps": 10}
    workflow = small("pga_me", maze, learner=learner, archive=archive, descriptors=["next_obs.achieved_goal"])
    assert isinstance(workflow, PGAMEWorkflow)
    outcomes, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state := workflow.init(1))
    learned = workflow.learner.store(state.learner, *transition_rows(outcomes))
    batches = []

    def improve(learner: Any, agent_state: Any, policies: Any, draw: Any, num_updates: int, **_: Any) -> Any:
        batches.append(draw(KEY, num_updates))
        return policies, None

    monkeypatch.setattr(learner_emitter, "improved_policies", improve)
    workflow.emitter.emit(learned, state.population, KEY)
    (batch,) = batches
    assert batch.rewards.shape == (workflow.policy_updates, workflow.policy_batch_size)
    assert 0.3 < np.asarray(batch.extras.is_relabeled).mean() < 0.7


def test_updates_are_whole_ones() -> None:
    workflow, _, _ = two_generations("sac")
    workflow.emitter.check()
    with raises_naming(ValueError, "learner.updates_per_iteration=0.5", "integer"):
        workflow.emitter.replace(learner=workflow.learner.replace(updates_per_iteration=0.5)).check()

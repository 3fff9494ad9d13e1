"""TRPO solves problems with closed-form solutions in all its modes; no natural gradient step leaves the
trust region.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.trpo import TRPOWorkflow
from evorl.ops.natural_gradient import TrustRegion
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.types import State
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import (
    ACTION_NAMES,
    KINDS,
    NAMES,
    Answers,
    train_on_every_probe,
)
from tests.support.small_workflows import EPISODE_STEPS, NUM_ENVS, PPO_CONFIG, assert_close, small

MODES: dict[str, dict[str, Any]] = {
    "trpo-d2": {"kind": "trpo-d2"},
    "trpo-d2, adaptive": {"kind": "trpo-d2", "linesearch": "adaptive"},
    "trpo-d1": {"kind": "trpo-d1"},
    "trpo-d1, episodes": {"kind": "trpo-d1", "episodes_per_batch": 128},
    "ppo": {"kind": "ppo"},
}
# With Adam's small default epsilon, vanishing gradients of exact values still cause steps of the whole learning rate.
LEARNING = Optimizer(learning_rate=Schedule(1e-2, 0.0), max_grad_norm=0.5, epsilon=1e-3)


class TestContract(WorkflowContract):
    workflow = TRPOWorkflow
    has_other_products = True
    SMALL = PPO_CONFIG


class TestAgent(AgentContract):
    workflow = TRPOWorkflow
    settings = TestContract.SMALL["agent"]


@pytest.fixture(scope="module", params=[(mode, kind) for mode in MODES for kind in KINDS], ids=", ".join)
def trained(request: pytest.FixtureRequest) -> tuple:
    mode, kind = request.param
    # Batches of whole episodes contain fewer last observations, and one rare late action changes all values.
    atol = 0.05 if "episodes_per_batch" in MODES[mode] else 0.0
    trained = train_on_every_probe(
        TRPOWorkflow,
        {"network": {"torso": [32, 32]}},
        KINDS[kind],
        num_envs=128,
        rollout_length=8,
        num_epochs=4,
        num_minibatches=4,
        optimizer=LEARNING,
        policy_optimizer=LEARNING,
        total_timesteps=1024 * 110,
        runs_long=True,
        **MODES[mode],
    )
    return atol, Answers(*trained)


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_probe(trained: tuple, name: str) -> None:
    atol, answers = trained
    answers.assert_values_are_known(name, atol)


@pytest.mark.parametrize("name", ACTION_NAMES)
def test_actions_in_a_probe(trained: tuple, name: str) -> None:
    trained[1].assert_actions_are_best(name)


def _small(env: str = "CartPole-v1", **changes: Any) -> TRPOWorkflow:
    return cast(TRPOWorkflow, small("trpo", env, **changes))


def _steps(workflow: TRPOWorkflow, num: int) -> tuple[list[Any], State]:
    state, metrics = workflow.init(0), []
    for _ in range(num):
        row, state = workflow.step(state)
        metrics.append(row)
    return metrics, state


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("mode", ["trpo-d1", "trpo-d2", "trpo-d2, adaptive"])
def test_no_step_leaves_the_trust_region(mode: str, env: str) -> None:
    """The divergence between old and new policy, recomputed from the parameters, stays within the bound."""
    workflow = _small(env, trust_region={"max_kl": 0.003}, **MODES[mode])
    state, divergences = workflow.init(0), []
    for _ in range(6):
        trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
        metrics, after = workflow.step(state)
        old, new = (
            workflow.agent.policy(state.agent_state, s.agent_state.params, trajectory.obs) for s in (state, after)
        )
        divergences.append(float(old.kl(new).mean()))
        np.testing.assert_allclose(metrics.kl, divergences[-1], rtol=1e-3, atol=1e-6)
        state = after
    assert max(divergences) <= 0.003 * 1.001
    assert max(divergences) > 0.0005


def test_a_failed_search_leaves_the_policy_and_teaches_the_values() -> None:
    workflow = _small()
    state = workflow.init(0)
    asking_too_much = workflow.replace(trust_region=workflow.trust_region.replace(accept_ratio=1e6))
    metrics, after = asking_too_much.step(state)
    params, fresh = after.agent_state.params, state.agent_state.params
    jax.tree.map(np.testing.assert_array_equal, params.policy, fresh.policy)
    assert any(bool((a != b).any()) for a, b in zip(*map(jax.tree.leaves, (params.value, fresh.value)), strict=True))
    assert float(metrics.step_fraction) == 0.0
    np.testing.assert_allclose([metrics.gain, metrics.kl], 0.0, atol=1e-6)


def test_an_adaptive_search_remembers_where_it_ended() -> None:
    workflow = _small(linesearch="adaptive")
    metrics, state = _steps(workflow, 1)
    assert float(metrics[0].step_fraction) == 1.0
    np.testing.assert_allclose(state.opt_state.first_fraction, TrustRegion().growth)
    _, state = _steps(_small(), 1)
    np.testing.assert_allclose(state.opt_state.first_fraction, 1.0)


def test_the_surrogate_and_its_clipped_form() -> None:
    """The surrogate equals equation 14; if no ratio is clipped, the clipped loss is its negative."""
    workflow = _small(agent={"network": {"torso": [8]}, "clip_epsilon": 10.0})
    state = workflow.init(0)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    agent, agent_state = workflow.agent, state.agent_state
    batch = agent.batch_with_advantages(agent_state, trajectory, 0.9, 0.8)
    batch = batch.replace(weights=workflow._weights(trajectory.dones))
    moved = jax.tree.map(lambda x: x + 0.01, agent_state.params.policy)
    policy = agent.policy(agent_state, agent_state.params.replace(policy=moved), batch.obs)
    ratio = np.exp(policy.log_prob(batch.raw_actions) - batch.log_probs)
    surrogate = float((ratio * batch.advantages).mean())
    np.testing.assert_allclose(agent.surrogate(moved, agent_state, batch), surrogate, rtol=1e-4)
    clipped, _ = agent.clipped_loss(moved, agent_state, batch)
    np.testing.assert_allclose(clipped, -surrogate, rtol=1e-4)


@pytest.mark.parametrize("kind", ["ppo", "trpo-d1", "trpo-d2"])
def test_only_the_chosen_episodes_are_learned_from(kind: str) -> None:
    """Steps outside of the chosen episodes do not influence the update."""
    workflow = _small(kind=kind, episodes_per_batch=12, rollout_length=32)
    state = workflow.init(0)
    trajectory, collected = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    dones = np.asarray(trajectory.dones)
    chosen = np.zeros_like(dones, bool)
    for number in range(12):
        column = number % NUM_ENVS
        ends = np.flatnonzero(dones[:, column])
        turn = number // NUM_ENVS
        chosen[(0 if turn == 0 else ends[turn - 1] + 1) : ends[turn] + 1, column] = True
    batch = workflow.agent.batch_with_advantages(state.agent_state, trajectory, 0.99, 0.95)
    weights = np.asarray(workflow._weights(trajectory.dones))
    np.testing.assert_array_equal(weights > 0, chosen)
    np.testing.assert_allclose(weights.mean(), 1.0, rtol=1e-5)
    standard = batch.replace(weights=weights).with_standardized_advantages().advantages
    np.testing.assert_allclose([standard[chosen].mean(), standard[chosen].std()], [0.0, 1.0], atol=1e-3)
    poisoned = trajectory.replace(rewards=jnp.where(chosen, trajectory.rewards, 77.0))
    update = jax.jit(lambda w, s, t: w.update(s, t))
    expected, actual = (update(workflow, collected, t) for t in (trajectory, poisoned))
    assert_close(actual[1].agent_state.params, expected[1].agent_state.params, 1e-6)
    np.testing.assert_allclose(actual[0].explained_variance, expected[0].explained_variance, atol=1e-5)


def test_whole_episodes_begin_with_the_trajectory() -> None:
    workflow = _small(episodes_per_batch=8, rollout_length=16)
    metrics, state = _steps(workflow, 3)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    info = trajectory.extras.env_extras
    np.testing.assert_array_equal(info.episode_length[0], 1.0)
    assert (np.asarray(trajectory.dones).sum(axis=0) >= 1).all()
    assert float(metrics[-1].episodes.count) >= NUM_ENVS


def test_sums_of_rewards_start_with_the_episodes() -> None:
    """The first sums of a rollout are its first rewards, although the last rollout cut an episode."""
    workflow = _small(episodes_per_batch=8, rollout_length=EPISODE_STEPS + 6, normalize_rewards=True, num_minibatches=1)
    _, state = _steps(workflow, 1)
    assert np.abs(state.reward_scale.sums).min() > 0.0
    trajectory, state = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    np.testing.assert_array_equal(state.reward_scale.sums, 0.0)
    assert (np.asarray(trajectory.extras.env_extras.episode_length[0]) == 1.0).all()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"agent": {"network": {"torso": [8], "shared": True}}}, ("shared=true", "TRPO")),
        ({"num_minibatches": 3}, ("64 transitions", "num_minibatches=3")),
        ({"kind": "trpo-d3"}, ("kind", "ppo, trpo-d1, trpo-d2; got 'trpo-d3'")),
        ({"linesearch": "adaptiv"}, ("'adaptiv'", "'adaptive'")),
        ({"trust_region": {"max_kl": 0}}, ("trust_region.max_kl", "above 0, got 0")),
        (
            {"episodes_per_batch": 9, "rollout_length": 16},
            ("2 episodes", f"{EPISODE_STEPS} steps", "rollout_length=16"),
        ),
    ],
)
def test_impossible_options_are_refused(changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        _small(**changes)


def test_new_episodes_keep_the_memory_of_the_goal_setter() -> None:
    env = {"name": "goal/point_maze", "goal_setter": "achieved", "max_episode_steps": 4}
    workflow = small("trpo", env, episodes_per_batch=8, rollout_length=8)
    state = workflow.init(0)
    assert not state.env_state._internal.goals.memory.count.any()
    for iteration in (1, 2):
        trajectory, state = workflow.collect(state)
        np.testing.assert_array_equal(trajectory.extras.env_extras.episode_length[0], 1.0)
        np.testing.assert_array_equal(state.env_state._internal.goals.memory.count, 2 * iteration)

"""Evolution-guided learning: storage, counters and updates, on one device or several, for any seed."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.erl import ERLWorkflow
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.execution import programs
from evorl.metrics import WideCounter
from evorl.ops.trees import entries_of, row_of
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State
from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow
from tests.support.errors import raises_naming
from tests.support.small_workflows import arrays, assert_close, assert_identical, inner_config, one_iteration, small
from tests.support.toy_envs import LONGEST, TwoCountdowns

COUNTDOWN = {"factory": "tests.support.toy_envs:Countdown", "max_episode_steps": LONGEST + 1}
LEARNER = {
    **inner_config("td3"),
    "num_envs": 1,
    "learning_starts": 43,  # more than one generation
    "replay_capacity": 256,
}
NORMALIZED = {**LEARNER, "agent": {"network": {"torso": [8]}, "normalize_obs": True}}
ALGORITHMS = ("erl", "cemrl")


def guided(algorithm: str = "erl", **changes: Any) -> EvolutionGuidedWorkflow:
    explorers = {"exploration_episodes": 3} if algorithm == "erl" else {}  # three are not divisible by two devices
    workflow = small(algorithm, COUNTDOWN, **{"learner": NORMALIZED, **explorers, **changes})
    assert isinstance(workflow, EvolutionGuidedWorkflow)
    return workflow


@functools.cache
def generations(algorithm: str, num: int) -> tuple[EvolutionGuidedWorkflow, list[EpisodeOutcomes], list, list[State]]:
    """Return the workflow, collected data, metrics and states of the first generations."""
    workflow = guided(algorithm)
    collect = jax.jit(type(workflow).collect)
    states, collected, metrics = [workflow.init(0)], [], []
    for _ in range(num):
        collected.append(collect(workflow, states[-1])[0])
        row, state = one_iteration(workflow, states[-1])
        metrics.append(row)
        states.append(state)
    return workflow, collected, metrics, states


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_buffer_holds_exactly_the_steps_that_were_sampled(algorithm: str) -> None:
    workflow, collected, metrics, states = generations(algorithm, 4)
    stored = []
    for outcomes, row in zip(collected, metrics, strict=True):
        lengths = np.asarray(outcomes.lengths)
        assert lengths.shape == (workflow.num_rows,)
        assert (lengths >= 1).all()
        assert len(set(lengths)) > 1
        assert int(row.timesteps) == lengths.sum()
        steps = jax.tree.map(np.asarray, outcomes.transitions)
        stored += [jax.tree.map(lambda x, i=i, n=n: x[i, :n], steps) for i, n in enumerate(lengths)]
    expected = jax.tree.map(lambda *x: np.concatenate(x), *stored)
    ring = states[-1].replay_state
    assert int(ring.size) == len(expected.rewards) == int(states[-1].timesteps)
    for name in ("obs", "actions", "rewards", "next_obs", "dones"):
        np.testing.assert_array_equal(getattr(ring.data, name)[: len(expected.rewards), 0], getattr(expected, name))
    ended = expected.extras.env_extras.termination
    np.testing.assert_array_equal(ring.data.extras.termination[: len(ended), 0], ended)
    assert ended.sum() == 4 * workflow.num_rows


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_statistics_of_observations_are_those_of_all_steps(algorithm: str) -> None:
    _, _, _, states = generations(algorithm, 4)
    seen = np.asarray(states[-1].replay_state.data.obs)[: int(states[-1].timesteps), 0]
    statistics = states[-1].agent_state.obs_preprocessor_state
    assert float(statistics.count) == len(seen)
    np.testing.assert_allclose(statistics.mean, seen.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.m2 / statistics.count, seen.var(axis=0), rtol=1e-4)
    assert_identical(row_of(states[-1].learners.agent_state).obs_preprocessor_state, statistics)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_updates_are_counted_by_sampled_steps(algorithm: str) -> None:
    workflow, _, metrics, states = generations(algorithm, 4)
    total, made = 0, 0
    for row, state in zip(metrics, states[1:], strict=True):
        total += int(row.timesteps)
        expected = 2 * int(row.timesteps) if total >= workflow.learner.learning_starts else 0
        assert int(row.updates) == expected
        made += expected
        assert int(state.learners.opt_state.num_updates[0]) == made
        assert int(state.timesteps) == total
    assert made > 0
    assert int(metrics[0].updates) == 0
    assert float(metrics[0].critic_loss) == 0.0 < float(metrics[-1].critic_loss)


def test_warming_up_explores_at_random_and_learns_nothing() -> None:
    _, collected, _, states = generations("erl", 4)
    assert_identical(states[1].learners.agent_state.params, states[0].learners.agent_state.params)
    explored = []
    for outcomes in collected[:2]:
        assert outcomes.transitions is not None
        explored.append(np.asarray(outcomes.transitions.actions)[-1, : int(outcomes.lengths[-1]), 0])
    actions = np.concatenate(explored)
    assert np.abs(actions).max() > 0.5  # near 0 for an untrained policy with noise of 0.1
    assert len(np.unique(actions)) == len(actions)


def test_a_fixed_number_of_updates() -> None:
    workflow = guided(updates_per_generation=3)
    for before, sampled, expected in ((0, 42, 0), (0, 43, 3), (20, 23, 3), (1000, 1, 3)):
        assert int(workflow._num_updates(WideCounter.create(before), jnp.int32(sampled))) == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_fitness_is_that_of_the_individuals(algorithm: str) -> None:
    """Fitness equals the individuals' mean returns, which exclude the learner's episodes."""
    workflow, collected, metrics, states = generations(algorithm, 4)
    returns = np.asarray(collected[1].returns)[: workflow.pop_size]
    np.testing.assert_allclose(metrics[1].fitness, returns.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics[1].fitness_max, returns.max(), rtol=1e-6)
    best = max(float(np.asarray(c.returns)[: workflow.pop_size].max()) for c in collected)
    np.testing.assert_allclose(states[-1].best.fitness, best, rtol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [*((name, {}) for name in ALGORITHMS), ("erl", {"learner": {**LEARNER, "replay": {"overwrite": "random"}}})],
)
def test_devices_do_not_show(algorithm: str, changes: dict[str, Any]) -> None:
    workflow, wide = guided(algorithm, **changes), guided(algorithm, devices=2, **changes)
    assert wide.execution.num_devices == 2
    metrics, state = programs.iterate_program(workflow, workflow.init(1), 5)
    wide_metrics, wide_state = programs.iterate_program(wide, wide.init(1), 5)
    assert int(metrics.updates[4]) > 0
    assert_close(wide_metrics, metrics, 1e-3)
    assert_close(wide_state.replay_state, state.replay_state, 1e-4)
    assert_close(wide_state.learners, state.learners, 1e-3)
    assert_close(wide_state.ec_state, state.ec_state, 1e-3)
    assert_identical(wide_state.timesteps, state.timesteps)


def test_a_seed_of_several_is_the_solo_run() -> None:
    together, solo = guided(num_seeds=2), guided()
    _, states = programs.iterate_program(together, together.init(5), 3)
    for i in range(2):
        _, state = programs.iterate_program(solo, solo.init(5 + i), 3)
        own = {name: jax.tree.map(lambda x, i=i: x[i], states[name]) for name in ("replay_state", "ec_state", "best")}
        assert_close(own, {name: state[name] for name in own}, 1e-4)
        assert int(row_of(states.timesteps, i)) == int(state.timesteps)


def test_common_random_numbers_start_all_individuals_alike() -> None:
    workflow = guided(common_random_numbers=True, episodes_per_individual=2)
    outcomes, _ = jax.jit(type(workflow).collect)(workflow, workflow.init(0))
    assert outcomes.transitions is not None
    starts = np.asarray(outcomes.transitions.obs)[:8, 0, 0].reshape(4, 2)
    assert (starts == starts[0]).all()


def test_learners_explore_with_all_of_their_parameters() -> None:
    """BRO explores with a second network, which shifts the policy's actions."""
    learner = {**inner_config("bro"), "num_envs": 1, "replay_capacity": 1000, "learning_starts": 0}
    workflow = small("erl", "Pendulum-v1", learner=learner, num_rl_agents=2, exploration_episodes=2)
    assert isinstance(workflow, EvolutionGuidedWorkflow)
    state = workflow.init(0)
    agents = state.learners.agent_state
    shifts = jax.tree.map(lambda x: x * jnp.array([0.0, 9.0]).reshape(2, *[1] * (x.ndim - 1)), agents.params.shift)
    agents = agents.replace(params=agents.params.replace(shift=shifts))
    state = state.replace(learners=state.learners.replace(agent_state=agents), agent_state=row_of(agents))
    batch = SampleBatch(obs=jnp.array([[1.0, 0.0, 0.5]] * 2), extras=PyTreeDict())
    keys = jax.random.split(jax.random.key(1), 2)
    rows = jnp.array([0, workflow.num_explorations - 1])  # the first learner, and the second one
    actions, _ = workflow._explorers_act(state, rows)(state.agent_state, batch, keys)
    for i in range(2):
        part = slice(i, i + 1)
        own, _ = workflow.learner.exploring(jnp.bool_(False))(row_of(agents, i), row_of(batch, part), keys[part])
        np.testing.assert_allclose(actions[i], own[0], rtol=1e-5)


def test_evaluations_read_little() -> None:
    workflow, _, _, states = generations("erl", 4)
    read = entries_of(states[-1], workflow.evaluation_entries)
    assert_identical(workflow.evaluate(read), workflow.evaluate(states[-1]))
    assert "replay_state" not in read
    assert set(read.learners) == {"agent_state"}  # without optimizers


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"learner": inner_config("ppo")}, ("PPOWorkflow", "replay buffer")),
        ({"learner": {**inner_config("crossq"), "num_envs": 1}}, ("policy", "running statistics")),
        ({"learner": inner_config("td3")}, ("learner.num_envs=8", "learner.num_envs=1")),
        ({"learner": {**LEARNER, "replay_capacity": 30}}, ("replay_capacity=30", "one generation")),
        ({"learner": {**LEARNER, "devices": 2}}, ("learner.devices", "whole run")),
        ({"learner": {"num_envs": 1}}, ("learner.workflow",)),
        ({"optimizer": {"name": "cmaes", "pop_size": 4}}, ("CMAES", "0 of optimizer.pop_size=4")),
        ({"optimizer": {"name": "ga", "pop_size": 4, "num_elites": 3}, "num_rl_agents": 2}, ("1 of", "pop_size=4")),
        (
            {"optimizer": {"name": "ga", "pop_size": 4, "projection": "unit_norm"}},
            (
                "learner.actor_optimizer.projection=null",
                "optimizer.projection=unit_norm",
                "Set optimizer.projection=null",
            ),
        ),
        (
            {"learner": {**LEARNER, "actor_optimizer": {"projection": "unit_norm"}}},
            ("optimizer.projection=null", "Set optimizer.projection=unit_norm"),
        ),
        ({"optimiser": {}}, ("'optimizer'",)),
        ({"agent": {}}, ("'agent'",)),
        ({"agent": {"network": {}}}, ("learner.agent",)),
        ({"episodes_per_individual": 0}, ("episodes_per_individual",)),
    ],
)
def test_nonsense_is_refused_in_words(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        guided(**changes)


def test_several_agents_are_refused() -> None:
    learner = {**LEARNER, "num_envs": 2}
    with raises_naming(ValueError, "learner", "a single agent", "has 2", "agent=ec/openes"):
        small("erl", {**COUNTDOWN, "factory": f"{TwoCountdowns.__module__}:TwoCountdowns"}, learner=learner)


def test_a_learner_without_a_policy_is_refused() -> None:
    discrete = {"name": "CartPole-v1", "max_episode_steps": 10}
    with raises_naming(ValueError, "DQNWorkflow", "policy", "critics"):
        small("erl", discrete, learner={**inner_config("dqn"), "num_envs": 1})


def test_population_and_learner_are_projected_alike() -> None:
    """With ``unit_norm``, the weights of each unit have norm 1 in every individual and learner, after an injection."""
    projection = {"projection": "unit_norm"}
    optimizer = {"name": "ga", "pop_size": 4, **projection}
    learner = {**LEARNER, "learning_starts": 0, "actor_optimizer": projection}
    workflow = guided(learner=learner, optimizer=optimizer)
    state = workflow.init(0)
    for _ in range(2):
        metrics, state = one_iteration(workflow, state)
    assert metrics.updates > 0
    policies = {
        "population": workflow.optimizer.ask(state.ec_state),
        "learners": state.learners.agent_state.params.policy,
    }
    weights = {path: x for path, x in arrays(policies).items() if path.endswith("['kernel']")}
    assert len(weights) == 4
    for path, x in weights.items():
        np.testing.assert_allclose(np.linalg.norm(x, axis=-2), 1.0, rtol=1e-5, err_msg=path)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_broken_episodes_spoil_nothing(algorithm: str) -> None:
    """The episodes of one individual fail, and the last one, which is a learner's where learners explore."""
    workflow, collected, _, states = generations(algorithm, 4)
    outcomes, rows = collected[3], jnp.array([1, workflow.num_rows - 1])
    assert outcomes.transitions is not None
    transitions = outcomes.transitions.replace(rewards=outcomes.transitions.rewards.at[rows].set(jnp.nan))
    outcomes = outcomes.replace(returns=outcomes.returns.at[rows].set(jnp.nan), transitions=transitions)
    metrics, state = jax.jit(type(workflow).update)(workflow, states[3], outcomes)
    assert all(np.isfinite(x).all() for name, x in metrics.items() if name != "episodes"), metrics
    for tree in (state.learners, state.best, state.agent_state, workflow.optimizer.ask(state.ec_state)):
        assert all(np.isfinite(x).all() for x in arrays(tree).values())
    assert metrics.updates > 0


def test_the_state_stays_finite() -> None:
    _, _, _, states = generations("erl", 4)
    assert isinstance(states[-1].learners, PyTreeDict)
    assert all(np.isfinite(x).all() for x in arrays(states[-1].learners).values())
    assert isinstance(guided(), ERLWorkflow)
    assert jnp.isfinite(states[-1].best.fitness)

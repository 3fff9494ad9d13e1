"""ERL: learners' policies join the population when due; any evolutionary optimizer works with any learner."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.erl import ERLWorkflow
from evorl.execution import programs
from evorl.execution.restoration import restore
from evorl.ops.trees import row_of
from evorl.runs.checkpointer import RunCheckpointer
from evorl.types import State
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.small_workflows import (
    EPISODE_STEPS,
    RUN_CONFIG,
    arrays,
    assert_close,
    assert_identical,
    inner_config,
    one_iteration,
    small,
)

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "ga": {"name": "ga", "pop_size": 4, "num_elites": 2},
    "es": {"name": "vanilla_es", "pop_size": 4},
    "eda": {"name": "sepcem", "pop_size": 4},
}
DDPG = {"network": {"torso": [8]}, "num_critics": 1, "noise": {"kind": "ornstein_uhlenbeck"}}
WARM_UP: dict[str, Any] = {"num_envs": 1, "learning_starts": 60, "replay_capacity": 512}
TD3 = {**inner_config("td3"), **WARM_UP}
LEARNERS: dict[str, dict[str, Any]] = {
    "td3": TD3,
    "sac": {**inner_config("sac"), **WARM_UP},
    "ddpg": {**TD3, "agent": DDPG, "policy_delay": 1},
}
SEVERAL = {"num_rl_agents": 2, "exploration_episodes": 2, "injection_period": 3}
PER_GENERATION = 5 * EPISODE_STEPS  # all episodes of Pendulum last until the time limit


class TestContract(WorkflowContract):
    workflow = ERLWorkflow
    evaluates_by_common_numbers = True
    SMALL = {
        **RUN_CONFIG,
        "learner": LEARNERS["td3"],
        "optimizer": OPTIMIZERS["ga"],
        "log_interval": 1,
        "total_timesteps": 800,
    }
    endless_env = ("Pendulum-v1", 3)


def erl(**changes: Any) -> ERLWorkflow:
    workflow = small("erl", "Pendulum-v1", **changes)
    assert isinstance(workflow, ERLWorkflow)
    return workflow


@functools.cache
def states(num: int, **changes: Any) -> tuple[ERLWorkflow, list[State]]:
    workflow = erl(**changes)
    states = [workflow.init(0)]
    for _ in range(num):
        states.append(one_iteration(workflow, states[-1])[1])
    return workflow, states


def policies_of(state: State) -> Any:
    return state.learners.agent_state.params.policy


def individuals(workflow: ERLWorkflow, state: State, rows: slice) -> Any:
    return jax.tree.map(lambda x: x[rows], workflow.optimizer.ask(state.ec_state))


def test_the_learners_policy_becomes_the_last_individual_to_the_last_bit() -> None:
    workflow, (fresh, warm, trained, more) = states(3)
    assert_identical(policies_of(warm), policies_of(fresh))  # 50 steps of a warm-up of 60
    for state in (trained, more):
        assert_identical(individuals(workflow, state, slice(3, 4)), policies_of(state))
    last = arrays(individuals(workflow, warm, slice(3, 4)))
    assert any((last[path] != value).any() for path, value in arrays(policies_of(warm)).items())


def test_injection_waits_for_its_interval() -> None:
    workflow, all_states = states(4, **SEVERAL)
    for number, state in enumerate(all_states):
        own, last = arrays(policies_of(state)), arrays(individuals(workflow, state, slice(2, 4)))
        assert all((own[path] == last[path]).all() for path in own) == (number == 3)


def test_elites_survive_an_injection() -> None:
    workflow, (_, _, trained, more) = states(3)
    population = workflow.optimizer.ask(trained.ec_state)
    elites = arrays(individuals(workflow, more, slice(0, 2)))
    for path, rows in arrays(population).items():
        assert all((elite == rows).reshape(4, -1).all(axis=1).any() for elite in elites[path])


def test_several_learners_differ_and_share_what_was_sampled() -> None:
    workflow, all_states = states(4, **SEVERAL)
    first, last = all_states[0], all_states[-1]
    assert int(last.replay_state.size) == 4 * 8 * EPISODE_STEPS == int(last.timesteps) == 4 * workflow.num_rows * 10
    np.testing.assert_array_equal(last.learners.opt_state.num_updates, [2 * 4 * 8 * EPISODE_STEPS] * 2)
    for state in (first, last):
        one, other = (arrays(row_of(policies_of(state), i)) for i in range(2))
        assert all((one[path] != other[path]).any() for path in one if "kernel" in path)


def test_learners_learn_side_by_side_as_each_alone() -> None:
    workflow, all_states = states(4, **SEVERAL)
    state, num = all_states[-1], jnp.int32(7)
    _, together = jax.jit(lambda state, key: workflow._learn(state, key, num))(state, jax.random.key(4))
    alone = workflow.replace(num_rl_agents=1)
    learn = jax.jit(lambda state, key: alone._learn(state, key, num))
    for i, key in enumerate(jax.random.split(jax.random.key(4))):
        own = state.replace(learners=jax.tree.map(lambda x, i=i: x[i : i + 1], state.learners))
        _, learned = learn(own, key)
        assert_close(row_of(together.learners, i), row_of(learned.learners), 1e-5)


def test_critics_with_running_statistics_guide_policies_without_any() -> None:
    """CrossQ updates running statistics, while its policies, without statistics, join the population."""
    network = {"network": {"torso": [8]}, "critic_network": {"torso": ["batch_renorm", 8]}}
    workflow = erl(learner={**inner_config("crossq"), **WARM_UP, "agent": network})
    first = state = workflow.init(0)
    for _ in range(2):
        _, state = one_iteration(workflow, state)
    before, after = (arrays(s.learners.agent_state.extra_state) for s in (first, state))
    assert all((before[path] != after[path]).any() for path in after if "mean" in path)
    assert all(np.isfinite(x).all() for x in arrays(state.learners).values())
    assert_identical(individuals(workflow, state, slice(3, 4)), policies_of(state))


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_combination_builds_and_steps(optimizer: str, learner: str) -> None:
    """Every combination is traced completely; the combinations on the diagonal also run until they learn."""
    workflow = erl(optimizer=OPTIMIZERS[optimizer], learner=LEARNERS[learner])
    if list(OPTIMIZERS).index(optimizer) != list(LEARNERS).index(learner):
        fresh = jax.eval_shape(workflow.setup, jax.random.key(0))
        metrics, state = jax.eval_shape(workflow.pure_step, fresh)
        assert jax.tree.structure(state) == jax.tree.structure(fresh)
        for before, after in zip(jax.tree.leaves(fresh), jax.tree.leaves(state), strict=True):
            assert (after.shape, after.dtype) == (before.shape, before.dtype)
        assert metrics.critic_loss.shape == ()
        return
    metrics, state = programs.iterate_program(workflow, workflow.init(0), 3)
    assert metrics.updates[:3].tolist() == [0.0, 2.0 * PER_GENERATION, 2.0 * PER_GENERATION]
    assert int(state.timesteps) == 3 * PER_GENERATION
    assert_identical(individuals(workflow, state, slice(3, 4)), policies_of(state))
    assert all(np.isfinite(x).all() for x in arrays(state.learners).values())


def test_evaluation_is_of_the_population_and_of_the_learners() -> None:
    workflow, all_states = states(3)
    state = all_states[-1]
    metrics = workflow.evaluate(state)
    assert float(metrics.episode_return_std) > 0.0
    same = state.replace(agent_state=row_of(state.learners.agent_state))
    metrics = workflow.evaluate(same)
    np.testing.assert_allclose(metrics.rl_episode_return, metrics.episode_return, rtol=1e-6)


def test_evaluation_reports_the_successes_of_the_population() -> None:
    """The success rates equal the rates of an off-policy run with the same policy and episodes."""
    maze = {"name": "point_maze", "max_episode_steps": EPISODE_STEPS}
    workflow = small("erl", maze, eval_episodes=64)
    state = workflow.init(0)
    metrics = workflow.evaluate(state)
    learner = small("td3", maze, eval_episodes=64)
    alone = learner.init(0)
    expected = learner.evaluate(alone.replace(agent_state=state.agent_state, eval_key=state.eval_key))
    assert float(expected.success_ever) > 0.0
    for name in ("success", "success_ever", "episode_return"):
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-5, err_msg=name)


def test_the_best_is_restored_without_what_evaluation_does_not_read(tmp_path: Path) -> None:
    intervals = {"checkpoint_interval": 2 * PER_GENERATION, "eval_interval": 3 * PER_GENERATION}
    workflow = erl(total_timesteps=6 * PER_GENERATION, **intervals)
    whole = workflow.learn(workflow.init(3), checkpointer=RunCheckpointer(tmp_path))
    assert int(whole.iterations) == 6
    best, _ = restore(workflow, RunCheckpointer(tmp_path), 3, "best", workflow.evaluation_entries)
    assert set(best) == {name.partition(".")[0] for name in workflow.evaluation_entries}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"num_rl_agents": 2, "learner": {**LEARNERS["td3"], "prioritized": True}},
            ("num_rl_agents=2", "learner.prioritized=false"),
        ),
        ({"injection_period": 0}, ("injection_period", "got 0")),
        ({"num_rl_agents": 0}, ("num_rl_agents", "got 0")),
    ],
)
def test_nonsense_is_refused_in_words(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        erl(**changes)

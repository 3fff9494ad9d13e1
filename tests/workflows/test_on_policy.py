"""The on-policy family: data of an update, and counters."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.execution import programs
from evorl.ops.normalization import init_statistics, update_statistics
from evorl.workflows.on_policy import Begin, Passes, scan_updates
from tests.support.errors import raises_naming
from tests.support.faulty_envs import Walk
from tests.support.small_workflows import EPISODE_STEPS, NUM_ENVS, assert_close, assert_identical, small

LENGTH = 8


class Endless(Walk):
    """An environment without a time limit."""


def test_statistics_count_a_trajectory_after_it_was_learned_from() -> None:
    workflow = small("ppo", "Pendulum-v1", agent={"network": {"torso": [8]}, "normalize_obs": True})
    state = workflow.init(0)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    _, after = workflow.step(state)
    expected = update_statistics(init_statistics(workflow.env.obs_space.zeros()), trajectory.obs)
    assert_close(after.agent_state.obs_preprocessor_state, expected, 1e-5)


def test_episodes_are_counted_where_they_end() -> None:
    workflow = small("ppo", "Pendulum-v1")
    metrics, state = workflow.step(workflow.init(0))
    assert float(metrics.episodes.count) == 0.0  # 8 of 10 steps
    metrics, state = workflow.step(state)
    assert float(metrics.episodes.count) == NUM_ENVS
    assert float(metrics.episodes.mean_length) == EPISODE_STEPS
    assert int(state.iterations) == 2
    assert workflow.timesteps_per_iteration == LENGTH * NUM_ENVS


def test_episodes_of_parallel_environments_end_at_different_times_if_chosen() -> None:
    workflow = small("ppo", "Pendulum-v1", random_first_step=True)
    state = workflow.init(0)
    first = np.asarray(state.env_state._internal.inner.episode_steps)
    assert len(set(first)) > 1
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    times = first + 1 + np.arange(LENGTH)[:, None]
    np.testing.assert_array_equal(trajectory.dones, times % EPISODE_STEPS == 0)
    assert not workflow.capabilities.single_steps, "asynchronous actors start their own episodes"


@pytest.mark.parametrize("env", [{"library": "gymnasium", "name": "CartPole-v1"}, {"factory": f"{__name__}:Endless"}])
def test_random_first_steps_need_a_limit_in_jax(env: dict[str, Any]) -> None:
    with raises_naming(ValueError, "random_first_step=true", "JAX", "env.max_episode_steps"):
        small("ppo", env, random_first_step=True)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        *((name, "CartPole-v1") for name in ("ppo", "a2c", "impala", "reinforce", "trpo", "pqn", "pqn_recurrent")),
        *((name, "Pendulum-v1") for name in ("pqn_continuous", "reppo")),
    ],
)
def test_every_algorithm_checks_the_settings_of_its_family(algorithm: str, env: str) -> None:
    with raises_naming(ValueError, "normalize_until", "agent.normalize_obs"):
        small(algorithm, env, normalize_until=100.0, agent={"network": {"torso": [8]}, "normalize_obs": False})
    with raises_naming(ValueError, "rollout_length", "got 0"):
        small(algorithm, env, rollout_length=0)


@pytest.mark.parametrize("option", [{"random_first_step": True}, {"intrinsic": "e3b"}])
def test_options_across_rollouts_need_episodes_that_continue(option: dict[str, Any]) -> None:
    with raises_naming(ValueError, next(iter(option)), "episodes_per_batch=null"):
        small("trpo", episodes_per_batch=4, **option)


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    with raises_naming(ValueError, "64 transitions", "num_minibatches=3"):
        small("ppo", num_minibatches=3)


def test_a_trajectory_has_every_environment_on_every_step() -> None:
    workflow = small("ppo", "Pendulum-v1")
    trajectory, state = jax.jit(lambda w, s: w.collect(s))(workflow, workflow.init(0))
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(trajectory)} == {(LENGTH, NUM_ENVS)}
    np.testing.assert_array_equal(trajectory.next_obs[:-1], trajectory.obs[1:])
    np.testing.assert_array_equal(state.env_state.obs, trajectory.next_obs[-1])


SGD = {"name": "sgd", "learning_rate": 0.01}
ONE_UPDATE = {"num_epochs": 1, "num_minibatches": 1}
# Algorithms whose optimizer steps policy and value function together, with one gradient step per iteration.
ACTOR_CRITICS = {"a2c": {}, "reinforce": {}, "ppo": ONE_UPDATE, "impala": ONE_UPDATE}
WITH_MINIBATCHES = ("ppo", "impala", "trpo", "pqn", "pqn_recurrent")
STEPS = ("environment", "update")


def _params(workflow: Any, state: Any) -> Any:
    return programs.iterate_program(workflow, jax.tree.map(jax.numpy.copy, state), 2)[1].agent_state.params


@pytest.mark.parametrize("algorithm", ACTOR_CRITICS)
@pytest.mark.parametrize("shared", [False, True])
def test_the_value_function_learns_at_its_own_rate(algorithm: str, shared: bool) -> None:
    """The value step is scaled by ``value_learning_rate_scale``; in shared networks only the head's."""
    settings = {**ACTOR_CRITICS[algorithm], "optimizer": SGD, "agent": {"network": {"torso": [8], "shared": shared}}}
    plain = small(algorithm, **settings)
    state = plain.init(0)
    first = state.agent_state.params
    params = {scale: small(algorithm, value_learning_rate_scale=scale, **settings).step(state)[1] for scale in (0.5, 0)}
    half, none = (params[scale].agent_state.params for scale in (0.5, 0))
    whole = plain.step(state)[1].agent_state.params
    assert_close(half.value, jax.tree.map(lambda a, b: 0.5 * (a + b), first.value, whole.value), 1e-6)
    assert_identical(none.value, first.value)
    others = [name for name in first if name != "value"]
    for name in others:
        assert_close(half[name], whole[name], 1e-6)
    assert len(others) == 1 + shared


def test_a_rate_of_a_value_function_that_is_not_there_is_refused() -> None:
    with raises_naming(ValueError, "value_learning_rate_scale=0.5", "agent.baseline=true"):
        small("reinforce", value_learning_rate_scale=0.5, agent={"network": {"torso": [8]}, "baseline": False})


@pytest.mark.parametrize("algorithm", WITH_MINIBATCHES)
def test_schedules_may_advance_with_every_gradient_step(algorithm: str) -> None:
    """Schedules may advance per environment step or per update; a constant rate is equal for both."""
    schedule = {"name": "sgd", "learning_rate": {"start": 0.1, "end": 0.0}}
    settings = {"num_epochs": 2, "num_minibatches": 2}
    by_step = {step: small(algorithm, optimizer=schedule, schedule_step=step, **settings) for step in STEPS}
    state = by_step["update"].init(0)
    seen = {step: _params(workflow, state) for step, workflow in by_step.items()}
    with pytest.raises(AssertionError):
        assert_identical(*seen.values())
    constant = [small(algorithm, optimizer=SGD, schedule_step=step, **settings) for step in STEPS]
    assert_close(*(_params(workflow, state) for workflow in constant), 1e-6)
    with raises_naming(ValueError, "schedule_step", "environment, update"):
        small(algorithm, schedule_step="updates")


def test_progress_between_gradient_steps_is_that_of_the_steps() -> None:
    """Progress grows by 1/4 of an iteration with each of its four updates, also if two calls share them."""
    workflow = small("ppo", num_epochs=2, num_minibatches=2, schedule_step="update")
    batch, key = np.zeros((4, 1), np.float32), jax.random.key(0)

    def update(carry: Any, minibatch: Any, progress: Any) -> tuple[Any, Any]:
        return carry, progress

    start = jax.numpy.float32(0.5)
    begin = Begin(key, start)
    _, progress = scan_updates(workflow, update, 0, batch, begin)
    np.testing.assert_allclose(progress, 0.5 + np.arange(4) / 4 / 20, rtol=1e-6)
    passes = [scan_updates(workflow, update, 0, batch, begin, Passes(i, 1, 2))[1] for i in range(2)]
    np.testing.assert_allclose(np.concatenate(passes), progress, rtol=1e-6)
    _, constant = scan_updates(workflow.replace(schedule_step="environment"), update, 0, batch, begin)
    np.testing.assert_array_equal(constant, 0.5)

"""A worker is an ordinary workflow: sent data, kept state, and unsupported settings."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.execution.collector import iterate
from evorl.metrics import EpisodeStatistics
from evorl.parameter_server.worker import ParameterWorker, ServedParameters, check_supported, settings_for, worker_key
from tests.support.errors import raises_naming
from tests.support.small_workflows import arrays, assert_close, assert_identical, small


@pytest.mark.parametrize(("algorithm", "env"), [("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_an_agent_is_taken_apart_and_put_together(algorithm: str, env: str) -> None:
    workflow = small(algorithm, env)
    one, other = workflow.init(0).agent_state, workflow.init(1).agent_state
    served = ServedParameters.of(workflow)
    rest = served.other_arrays(other)
    assert rest, "there are target networks"
    joined = served.with_params(served.with_rest(one, rest), served.params_of(other))
    assert_identical(joined, other)
    halfway = served.with_params(one, served.params_of(other))
    different = {name for name, leaf in arrays(halfway).items() if not np.array_equal(leaf, arrays(one)[name])}
    assert different
    assert not any("target" in name for name in different)


def test_workers_draw_differently_and_the_first_as_an_ordinary_training() -> None:
    assert_identical(worker_key(3, 0), jax.random.key(3))
    words = {tuple(jax.random.key_data(worker_key(3, i)).tolist()) for i in range(20)}
    assert len(words) == 20


def test_it_sends_the_gradient_of_its_batch() -> None:
    workflow = small("a2c", optimizer={"name": "sgd", "learning_rate": 1.0, "max_grad_norm": None})
    worker = ParameterWorker(workflow, "gradient", seed=5)
    params = worker.served.params_of(worker.agent_state)
    before = jax.tree.map(jnp.copy, params)
    work = worker.work(params, 0)
    _, plain = iterate(workflow, workflow.init(5), 1)
    assert_identical(params, before)
    step = jax.tree.map(jnp.subtract, before.optimizer, plain.agent_state.params)
    assert work.sent is not None
    assert_close(work.sent.optimizer, step, 2e-6)
    assert work.steps == workflow.timesteps_per_iteration
    assert np.isfinite(work.metrics.policy_loss)


def test_it_sends_the_change_of_its_parameters() -> None:
    workflow = small("ppo")
    worker = ParameterWorker(workflow, "delta", seed=5)
    params = worker.served.params_of(worker.agent_state)
    before = jax.tree.map(jnp.copy, params)
    work = worker.work(params, 0)
    _, plain = iterate(workflow, workflow.init(5), 1)
    assert work.sent is not None
    assert_close(jax.tree.map(jnp.add, before, work.sent).optimizer, plain.agent_state.params, 1e-6)


def test_steps_and_episodes_before_the_first_update_come_with_the_first_push() -> None:
    workflow = small("dqn", updates_per_iteration=1, learning_starts=100)
    worker = ParameterWorker(workflow, "gradient")
    params = worker.served.params_of(worker.agent_state)
    per_iteration = workflow.timesteps_per_iteration
    silent = 0
    while (work := worker.work(params, 0)).sent is None:
        silent += 1
        assert work.steps == 0
    assert silent > 0
    assert work.steps == (silent + 1) * per_iteration
    state, episodes = workflow.init(0), []
    for _ in range(silent + 1):
        metrics, state = iterate(workflow, state, 1)
        episodes.append(jax.tree.map(lambda x: x[0], metrics.episodes))
    in_all = functools.reduce(EpisodeStatistics.merge, episodes)
    assert in_all.count > 1
    assert_close(work.metrics.episodes, in_all, 1e-5)
    assert worker.work(params, 0).metrics.episodes.count < in_all.count  # only of this iteration


def test_schedules_follow_the_steps_of_all() -> None:
    """Schedules advance by the steps of all workers: with four, four times as fast as with one."""
    workflow = small("a2c", total_timesteps=64 * 100)
    worker = ParameterWorker(workflow, "gradient")
    params = worker.served.params_of(worker.agent_state)
    for step in (0, 256, 512):
        worker.work(params, step)
    state = worker._state
    assert float(worker._at(4 * 192).progress(state)) == pytest.approx(0.12)
    assert float(workflow.progress(state)) == pytest.approx(0.03)
    alone = worker._at(192)
    assert float(alone.total_timesteps) == workflow.total_timesteps, "one worker: to the bit"


def test_schedules_of_a_worker_that_joins_late_do_not_start_again() -> None:
    workflow = small(
        "a2c", total_timesteps=64 * 100, optimizer={"name": "sgd", "learning_rate": {"start": 1, "end": 0}}
    )
    worker = ParameterWorker(workflow, "delta", worker=1)
    params = worker.served.params_of(worker.agent_state)
    worker.work(params, 64 * 75)
    assert float(worker._at(64 * 90).progress(worker._state)) == pytest.approx(0.9)
    first = ParameterWorker(workflow, "delta", worker=1).work(params, 0)
    late = ParameterWorker(workflow, "delta", worker=1).work(params, 64 * 75)
    assert_close(late.sent, jax.tree.map(lambda x: x / 4, first.sent), 1e-6)


def test_a_worker_that_joins_late_warms_up() -> None:
    workflow = small("dqn", updates_per_iteration=1, learning_starts=24)
    per_iteration = workflow.timesteps_per_iteration
    worker = ParameterWorker(workflow, "gradient", worker=1)
    params = worker.served.params_of(worker.agent_state)
    sent = [worker.work(params, 50 * per_iteration).sent is not None for _ in range(24 // per_iteration + 1)]
    expected = ParameterWorker(workflow, "gradient")
    assert sent == [expected.work(params, 0).sent is not None for _ in sent]
    assert sent[0] is False
    assert sent[-1] is True


def test_several_gradient_steps_are_refused() -> None:
    workflow = small("ppo")
    worker = ParameterWorker(workflow, settings_for(workflow).send)
    with raises_naming(ValueError, "PPOWorkflow", "4 gradient steps", "send=delta"):
        worker.work(worker.served.params_of(worker.agent_state), 0)


def test_an_adaptive_learning_rate_is_refused() -> None:
    """The worker would adapt a rate that the server, which takes the steps, does not know."""
    workflow = small("ppo", num_epochs=1, num_minibatches=1, desired_kl=0.01)
    with raises_naming(ValueError, "desired_kl", "send=delta"):
        settings_for(workflow, {"send": "gradient"})
    assert settings_for(workflow, {"send": "delta"}).send == "delta"


def test_several_optimizers_are_refused() -> None:
    workflow = small("sac", "Pendulum-v1")
    with raises_naming(ValueError, "SACWorkflow", "actor_optimizer", "send=delta"):
        settings_for(workflow, {"send": "gradient"})
    assert settings_for(workflow, {"send": "delta"}).send == "delta"


@pytest.mark.parametrize(
    ("algorithm", "changes", "parts"),
    [
        ("trpo", {}, ("policy_optimizer",)),
        ("a2c", {"intrinsic": "rnd"}, ("intrinsic.optimizer", "remove intrinsic")),
        ("map_elites", {}, ("optimizer", "gradients")),
        ("a2c", {"num_seeds": 2}, ("one seed", "actors")),
        ("dqn", {"resets": [5]}, ("resets=[5]", "parameter server")),
        ("dqn", {"redo_interval": 5}, ("redo_interval=5", "parameter server")),
    ],
)
def test_workflows_that_cannot_work_for_a_server(algorithm: str, changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        check_supported(small(algorithm, "Pendulum-v1" if algorithm == "map_elites" else "CartPole-v1", **changes))


def test_a_setting_that_is_none_is_named() -> None:
    with raises_naming(ValueError, "key of parameters", "mod", "'mode'"):
        settings_for(small("a2c"), {"mod": "fifo"})
    with raises_naming(ValueError, "parameters.num_gradients", "got "):
        settings_for(small("a2c"), {"num_gradients": -3})

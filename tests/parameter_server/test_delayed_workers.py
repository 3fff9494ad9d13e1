"""Workers with given delays in one process: the reference for the effects of a parameter server."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.execution.collector import iterate
from evorl.parameter_server.delayed_workers import simulate_workers
from tests.support.compilation import compiled_to_run_long
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close, assert_identical, small

ADAM = {"name": "adam", "learning_rate": {"start": 1e-2, "end": 0.0}, "max_grad_norm": 0.5}
ONE_UPDATE = {"updates_per_iteration": 1, "learning_starts": 0, "optimizer": ADAM}


def _plain(workflow: Any, num_iterations: int) -> Any:
    state = workflow.init(0)
    for _ in range(num_iterations):
        _, state = iterate(workflow, state, 1)
    return state.agent_state


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("a2c", {"optimizer": ADAM}),
        ("a2c", {"optimizer": ADAM, "value_learning_rate_scale": 0.25}),
        ("dqn", ONE_UPDATE | {"target_update_interval": 1, "tau": 0.5}),
        ("dqn", ONE_UPDATE | {"target_update_interval": 2}),
        ("r2d2", ONE_UPDATE | {"target_update_interval": 2, "tau": 0.5, "rollout_length": 8}),
    ],
    ids=["a2c", "a2c, value learning rate scale", "dqn, Polyak updates", "dqn, hard updates", "r2d2"],
)
def test_one_worker_is_the_ordinary_training_to_the_bit(algorithm: str, changes: dict) -> None:
    """One worker equals ordinary training bit for bit, with schedules and target networks, in three modes."""
    workflow = small(algorithm, **changes)
    plain = _plain(workflow, 8)
    for settings in ({}, {"mode": "delay_compensation"}, {"mode": "averaging", "num_gradients": 1}):
        simulated = simulate_workers(workflow, 1, settings=settings, num_pushes=8)
        assert_identical(simulated.agent_state.params, plain.params)


@pytest.mark.parametrize(("algorithm", "env"), [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1"), ("td3", "Pendulum-v1")])
def test_one_worker_that_sends_deltas_is_the_ordinary_training(algorithm: str, env: str) -> None:
    """One worker that sends deltas equals training up to the rounding of ``theta + (theta' - theta)``."""
    workflow = small(algorithm, env)
    simulated = simulate_workers(workflow, 1, settings={"send": "delta"}, num_pushes=4)
    assert_close(simulated.agent_state.params, _plain(workflow, 4).params, 1e-5)


def test_it_is_the_same_again() -> None:
    workflow = small("a2c")
    one, other = (simulate_workers(workflow, 3, [1, 2, 5], seed=4, num_pushes=9) for _ in range(2))
    assert one.rows == other.rows
    assert_identical(one.params, other.params)
    assert not np.array_equal(
        jax.tree.leaves(one.params)[0],
        jax.tree.leaves(simulate_workers(workflow, 3, [1, 2, 5], seed=5, num_pushes=9).params)[0],
    )


def test_delays_say_who_pushes_when_and_how_old() -> None:
    rows = simulate_workers(small("a2c"), 3, [1, 2, 5], num_pushes=9).rows
    assert [(row["time"], row["worker"]) for row in rows] == [
        *[(1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1), (5, 0), (5, 2), (6, 0)]
    ]
    assert [row["staleness"] for row in rows] == [0, 0, 2, 0, 0, 2, 0, 7, 0]
    assert [row["step"] for row in rows] == [64 * (i + 1) for i in range(9)]
    taking_turns = simulate_workers(small("a2c"), 1, [[1, 3]], num_pushes=4).rows
    assert [row["time"] for row in taking_turns] == [1, 4, 5, 8]


def test_workers_of_equal_speed_are_as_stale_as_there_are_others() -> None:
    rows = simulate_workers(small("a2c"), 4, num_pushes=12).rows
    assert [row["staleness"] for row in rows[4:]] == [3] * 8


def test_averaging_drops_the_slow() -> None:
    rows = simulate_workers(small("a2c"), 3, [1, 1, 3], {"mode": "averaging", "num_gradients": 2}, num_pushes=9).rows
    dropped = [row for row in rows if not row["accepted"]]
    assert dropped
    assert {row["worker"] for row in dropped} == {2}
    assert rows[-1]["step"] == 64 * 2 * 4


def test_it_ends_with_the_steps_of_the_training() -> None:
    simulated = simulate_workers(small("a2c", total_timesteps=64 * 5), 2)
    assert [row["step"] for row in simulated.rows] == [64, 128, 192, 256, 320]
    assert np.isfinite(simulated.evaluation.episode_return)


@pytest.mark.parametrize(("num_workers", "delays"), [(2, [1]), (2, [1, 0]), (1, [[]]), (0, [])])
def test_delays_that_do_not_fit(num_workers: int, delays: list) -> None:
    with raises_naming(ValueError, "delays" if num_workers else "num_workers"):
        simulate_workers(small("a2c"), num_workers, delays)


@compiled_to_run_long()
@pytest.mark.parametrize(
    ("settings", "delays", "num_pushes"),
    [
        ({}, [4, 4, 5, 7], 1200),
        ({"mode": "delay_compensation"}, [4, 4, 5, 7], 1200),
        ({"mode": "averaging", "num_gradients": 4}, [1, 1, 1, 1], 2400),
    ],
    ids=["fifo", "delay_compensation", "averaging"],
)
def test_four_workers_learn_cartpole(settings: dict, delays: list, num_pushes: int) -> None:
    workflow = small(
        "a2c",
        {"name": "CartPole-v1"},
        agent={"network": {"torso": [32]}},
        optimizer={"name": "adam", "learning_rate": 1e-2, "max_grad_norm": 0.5},
        gae_lambda=0.95,
        eval_episodes=8,
        total_timesteps=64 * num_pushes,
    )
    simulated = simulate_workers(workflow, 4, delays, settings)
    assert len(simulated.rows) == num_pushes, "none was dropped"
    assert float(simulated.evaluation.episode_return) > 195

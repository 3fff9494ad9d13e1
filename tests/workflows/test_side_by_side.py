"""Rows of one program equal single runs with their seeds and numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.execution.trainable import loss_names
from evorl.ops.trees import named_leaves
from evorl.types import State
from evorl.workflows.side_by_side import SideBySideWorkflow, numbers_side_by_side, with_numbers
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.recorded_pendulum import NUM_STEPS, recorded_pendulum
from tests.support.small_workflows import arrays, assert_close, small

ROWS = {"agent.clip_epsilon": (0.1, 0.1, 0.4, 0.4), "optimizer.learning_rate": (1e-3, 1e-3, 3e-2, 3e-2)}
SEEDS = (0, 2, 0, 2)


def side_by_side(inner: Workflow, devices: int = 1) -> SideBySideWorkflow:
    return SideBySideWorkflow.of(inner, tuple(ROWS), np.array(list(ROWS.values())).T, SEEDS, devices)


@pytest.fixture(scope="module")
def rows() -> SideBySideWorkflow:
    return side_by_side(small("ppo"))


@pytest.mark.parametrize("row", range(4))
def test_a_row_is_its_solo_run(rows: SideBySideWorkflow, row: int) -> None:
    state = rows.init(5)
    solo = rows.row(rows.numbers[row])
    its_state = solo.init(5 + SEEDS[row])
    for _ in range(3):
        metrics, state = rows.step(state)
        its_metrics, its_state = solo.step(its_state)
        of_row = {name: x for name, x in state.items() if name not in ("numbers", "iterations")}
        mine = arrays(jax.tree.map(lambda x: x[row], of_row))
        theirs = arrays({name: x for name, x in its_state.items() if name != "iterations"})
        assert mine.keys() == theirs.keys()
        for path, leaf in theirs.items():
            np.testing.assert_allclose(mine[path], leaf, rtol=1e-4, atol=1e-5, err_msg=path)
        np.testing.assert_allclose(metrics.policy_loss[row], its_metrics.policy_loss, rtol=1e-3, atol=1e-5)
    evaluated = rows.evaluate(state).episode_return[row]
    np.testing.assert_allclose(evaluated, solo.evaluate(its_state).episode_return, rtol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "path"),
    [("neuroevolution", "optimizer.lr_schedule.decay"), ("map_elites", "fitness_offset"), ("pbt", "truncation")],
)
def test_metrics_of_rows_are_reduced_as_those_of_the_solo_run(algorithm: str, path: str) -> None:
    """A row of metrics has the last value of the best fitness so far, and no NaN of members without a score."""
    inner = small(algorithm, "Pendulum-v1")
    together = SideBySideWorkflow.of(inner, [path], [[0.5]], [0])
    for name in ("latest_metrics", "optional_metrics"):
        assert getattr(together, name) == getattr(inner, name)
    assert together.latest_metrics


def test_numbers_of_a_learner_act_in_the_rows() -> None:
    """The learner's agent is also the agent of the workflow, with which the individuals act."""
    path = "learner.agent.noise.scale"
    inner = small("erl", "Pendulum-v1")
    row = SideBySideWorkflow.of(inner, [path], [[0.75]], [0]).row(np.array([0.75]))
    assert named_leaves(row)[path] == named_leaves(row)["agent.noise.scale"] == 0.75
    nested = named_leaves(with_numbers(State(inner=inner), {f"inner.{path}": 0.5}))
    assert nested[f"inner.{path}"] == nested["inner.agent.noise.scale"] == 0.5


def test_devices_share_the_rows(rows: SideBySideWorkflow) -> None:
    shared = side_by_side(rows.inner, devices=2)
    assert shared.execution.num_devices == 2
    _, state = rows.step(rows.init(0))
    _, its_state = shared.step(shared.init(0))
    for path, leaf in arrays(state).items():
        np.testing.assert_allclose(arrays(its_state)[path], leaf, rtol=1e-4, atol=1e-5, err_msg=path)


def test_a_row_that_diverges_leaves_the_others(rows: SideBySideWorkflow) -> None:
    numbers = rows.numbers.at[0, 1].set(np.inf)
    state = rows.replace(numbers=numbers, total_timesteps=64.0 * 3).learn(key=0)
    finite = [np.isfinite(leaf).reshape(4, -1).all(axis=1) for leaf in jax.tree.leaves(state.agent_state.params)]
    np.testing.assert_array_equal(np.all(finite, axis=0), [False, True, True, True])
    returns = np.asarray(rows.evaluate(state).episode_return)  # the argmax of NaN logits is an action, too
    np.testing.assert_array_equal(np.isfinite(returns), [False, True, True, True])


def test_numbers_of_a_row_are_leaves_and_checked(rows: SideBySideWorkflow) -> None:
    settings = {"agent.clip_epsilon": 1, "num_minibatches": 4, "total_timesteps": 5.0, "gae_lambda": None}
    assert numbers_side_by_side(rows.inner, settings) == {"agent.clip_epsilon": 1.0}
    with raises_naming(ValueError, "discount", "[0, 1]"):
        numbers_side_by_side(rows.inner, {"discount": 2.0})
    with raises_naming(ValueError, "'agent.clip'", "'agent.clip_epsilon'"):
        SideBySideWorkflow.of(rows.inner, ["agent.clip"], [[0.1]], [0])


def test_a_number_without_effect_is_refused() -> None:
    with raises_naming(ValueError, "agent.support_low", "no effect in TQCAgent"):
        numbers_side_by_side(small("tqc", "Pendulum-v1"), {"agent.support_low": -10.0})


def test_rows_have_the_losses_of_their_workflow() -> None:
    inner = small("sac")
    assert "critic_loss" in loss_names(SideBySideWorkflow.of(inner, (), (), (0, 1), 1)) == loss_names(inner)
    assert loss_names(side_by_side(small("ppo"))) == ()


def test_a_single_row_has_an_axis_too() -> None:
    inner = small("ppo")
    alone = SideBySideWorkflow.of(inner, ["discount"], [[0.9]], [0], devices=2)
    assert alone.execution.num_seeds == alone.execution.num_devices == 1
    metrics, state = alone.step(alone.init(0))
    assert metrics.policy_loss.shape == state.numbers[:, 0].shape == (1,)


@pytest.mark.parametrize(("num_rows", "num_devices"), [(1, 1), (3, 1), (4, 2)])
def test_devices_need_to_divide_only_the_rows(num_rows: int, num_devices: int) -> None:
    """Each device has all environments of its rows, so their number may be odd."""
    inner = small("ppo", num_envs=5, num_minibatches=1)
    rows = SideBySideWorkflow.of(inner, ["discount"], [[0.9]] * num_rows, range(num_rows), devices=2)
    assert rows.execution.num_devices == num_devices
    with raises_naming(ValueError, "devices=64", "4 that JAX sees"):
        SideBySideWorkflow.of(inner, ["discount"], [[0.9]], [0], devices=64)


@pytest.mark.parametrize(
    ("changes", "devices"),
    [({}, 1), ({"num_envs": 3}, 2), ({"num_envs": 2, "replay": {"mixed": True}}, 1)],
    ids=["plain", "devices", "mixed"],
)
def test_every_row_starts_with_the_recorded_steps(changes: dict[str, Any], devices: int) -> None:
    """Buffer, statistics and reward scale (which depends on the discount) of each row equal its solo run."""
    replay = {"load": recorded_pendulum(), **changes.get("replay", {})}
    agent = {"network": {"torso": [8]}, "normalize_obs": True}
    settings = {**changes, "replay": replay, "replay_capacity": 300, "reward_bound": 5.0, "agent": agent}
    inner = small("sac", {"name": "Pendulum-v1", "max_episode_steps": 10}, **settings)
    rows = SideBySideWorkflow.of(inner, ["discount"], [[0.5], [0.99]], [0, 3], devices)
    state = rows.init(5)
    for row, seed in enumerate((5, 8)):
        solo = rows.row(rows.numbers[row]).init(seed)
        assert int(solo.get("recorded_state", solo.replay_state).size) == NUM_STEPS // inner.env.num_envs
        of_row = {name: jax.tree.map(lambda x, i=row: x[i], state[name]) for name in solo if name != "iterations"}
        assert_close(of_row, {name: x for name, x in solo.items() if name != "iterations"}, 1e-5)

"""The policy of a stored run as a function of observations."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import evorl
from evorl.cli import main as cli
from evorl.export.stored_policy import LoadedPolicy, acting_agent, stored_policy
from evorl.reports.seed_choice import choose_seed
from evorl.runs.checkpointer import CheckpointError
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from tests.support.command_line import SMALL
from tests.support.errors import raises_naming
from tests.support.portable import stored
from tests.support.small_workflows import assert_identical, inner_config, small


def test_three_lines_act(trained: RunFolder) -> None:
    policy = evorl.load_policy(trained.path)
    action = policy(np.zeros(4))
    assert isinstance(action, np.integer)
    assert action in (0, 1)
    assert policy(np.zeros((6, 4))).shape == (6,)
    with raises_naming(ValueError, "obs", "[3]", "[4]"):
        policy(np.zeros(3))


def test_the_dtype_of_networks_changes_between_runs(
    train_once: Callable[..., RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in float32, whose parameters are continued and loaded by networks in bfloat16."""
    first = train_once("agent=ppo", *SMALL)
    shutil.copytree(first.path, tmp_path / "resumed")
    narrow = "agent.network.dtype=bfloat16"
    for overrides in (
        [f"resume={tmp_path / 'resumed'}", narrow, "total_timesteps=192"],
        ["agent=ppo", *SMALL, narrow, f"init_from={first.path}", f"runs_folder={tmp_path / 'runs'}"],
    ):
        monkeypatch.setattr(sys, "argv", ["evorl", *overrides])
        cli.train()
    obs = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    for path in (tmp_path / "resumed", RunFolder.latest(tmp_path / "runs").path):
        stored = stored_policy(path)
        assert stored.in_float32 is not None
        exact, ours = (each.rows({"obs": obs})["action_scores"] for each in (stored.in_float32, stored.policy))
        assert 0.0 < np.abs(exact - ours).max() < 0.02 * max(1.0, np.abs(exact).max())
    assert stored_policy(first.path).in_float32 is None


def test_each_seed_has_a_policy_of_its_own(trained: RunFolder) -> None:
    first, second = (stored_policy(trained.path, seed_number=i).policy for i in range(2))
    obs = {"obs": np.ones((1, 4), np.float32)}
    assert not np.allclose(first.rows(obs)["action_scores"], second.rows(obs)["action_scores"])
    with raises_naming(ValueError, "seed_number=2", "0 to 1"):
        stored_policy(trained.path, seed_number=2)


def test_the_best_seed_by_evaluation_is_the_default(trained: RunFolder) -> None:
    obs = {"obs": np.ones((1, 4), np.float32)}
    best = choose_seed(trained.path, 2, 64).number
    of_each = [stored_policy(trained.path, seed_number=i).policy.rows(obs)["action_scores"] for i in range(2)]
    default = stored_policy(trained.path)
    assert default.seed.number == best
    assert np.array_equal(default.policy.rows(obs)["action_scores"], of_each[best])
    assert "best by evaluation" in default.describe()


def test_which_checkpoint_is_told(trained: RunFolder) -> None:
    policy = stored_policy(trained.path.name, trained.path.parent, checkpoint="latest", sample=True)
    assert policy.describe().startswith("PPO in gymnax/CartPole-v1, the latest checkpoint of 64 steps, seed_number=")
    assert policy.describe().endswith(", sampled actions")
    assert len(policy.policy.draws) == 1
    (step,) = (int(path.name) for path in trained.checkpoints.glob("[0-9]*"))
    words = stored_policy(trained.path, checkpoint=step, seed_number=1).describe()
    assert "iteration 2 of 64 steps, seed_number=1 of 2 seeds, greedy actions" in words
    with pytest.raises(CheckpointError):
        stored_policy(trained.path, checkpoint=step + 1)
    with raises_naming(RunFolderError, "nowhere", "no folder"):
        evorl.load_policy("nowhere", trained.path.parent)


def test_memory_is_kept_for_each_row_and_forgotten(tmp_path: Path) -> None:
    policy = LoadedPolicy(stored("ppo_gru_history", tmp_path).policy)
    obs = np.random.default_rng(0).standard_normal((4, 2, 3))
    start = policy(obs[0])
    later = policy(obs[0])
    assert not np.allclose(start, later)
    policy.reset([True, False])
    mixed = policy(obs[0])
    np.testing.assert_allclose(mixed[0], start[0], atol=1e-6)
    assert not np.allclose(mixed[1], start[1])
    with raises_naming(ValueError, "1: ", "reset()"):
        policy(obs[0, 0])
    policy.reset()
    np.testing.assert_allclose(policy(obs[0, 0]), start[0], atol=1e-6)
    assert np.abs(start).max() <= 2.0


@pytest.mark.parametrize("outer", [None, "erl"])
def test_of_a_population_the_best_member_acts_with_its_hyperparameters(outer: str | None) -> None:
    """Sampled actions have the exploration noise of the best member, not the one in the config."""
    noise = {"agent": {"noise": {"scale": {"low": 0.5, "high": 1.0}}}}
    if outer is not None:
        noise = {"learner": noise}
    learner = {**inner_config("td3"), "agent": {"noise": {"scale": 0.0}}}
    inner = learner if outer is None else inner_config(outer) | {"learner": learner | {"num_envs": 1}}
    workflow: Any = small("pbt", "Pendulum-v1", inner=inner, search_space=noise, pop_size=3)
    state = workflow.init(0)
    state.scores = np.asarray([1.0, np.nan, 5.0], np.float32)
    agent: Any
    agent, agent_state = acting_agent(workflow, state)
    assert agent.noise.scale == state.hyper_parameters[2, 0]
    assert_identical(agent_state, jax.tree.map(lambda x: x[2], state.members.agent_state))


def test_of_several_populations_the_best_member_of_one_seed_acts() -> None:
    noise = {"agent": {"noise": {"scale": {"low": 0.5, "high": 1.0}}}}
    workflow: Any = small("pbt", "Pendulum-v1", inner=inner_config("td3"), search_space=noise, pop_size=3, num_seeds=2)
    state = workflow.init(0)
    state.scores = np.asarray([[1.0, np.nan, 5.0], [9.0, 2.0, 3.0]], np.float32)
    for seed, best in enumerate([2, 0]):
        agent: Any
        agent, agent_state = acting_agent(workflow, state, seed)
        assert agent.noise.scale == state.hyper_parameters[seed, best, 0]
        assert_identical(agent_state, jax.tree.map(lambda x, at=(seed, best): x[at], state.members.agent_state))


@pytest.mark.parametrize(
    "obs",
    [
        np.zeros(2),
        np.zeros((3, 2)),
        None,
        0.0,
        "observation",
        {},
        {"obs": np.zeros(2)},
        {"observation": np.zeros(2), "achieved_goal": np.zeros(2)},
        {"observation": {"x": 1}, "achieved_goal": np.zeros(2), "desired_goal": np.zeros(2)},
        [np.zeros(4), np.zeros(2), np.zeros(2)],
    ],
    ids=repr,
)
def test_an_observation_of_another_structure_is_an_error(obs: Any, tmp_path: Path) -> None:
    policy = LoadedPolicy(stored("goals", tmp_path).policy)
    with raises_naming(ValueError, "obs must be", "'achieved_goal': [2]", "'desired_goal': [2]", "'observation': [2]"):
        policy(obs)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ({"observation": 4}, ("obs_observation", "[4]", "of shape [2]")),
        ({"achieved_goal": (3, 2)}, ("obs_desired_goal", "[2]", "batch")),  # a batch of one entry only
        ({"desired_goal": (3, 2)}, ("obs_desired_goal", "[2]", "batch")),
    ],
)
def test_an_observation_of_another_shape_is_an_error(sizes: dict, parts: tuple[str, ...], tmp_path: Path) -> None:
    policy = LoadedPolicy(stored("goals", tmp_path).policy)
    sizes = {"observation": 2, "achieved_goal": 2, "desired_goal": 2} | sizes
    with raises_naming(ValueError, *parts):
        policy({name: np.zeros(size) for name, size in sizes.items()})


@pytest.mark.parametrize("obs", [{"a": np.zeros(4)}, "text", [[0.0], [1.0, 2.0]], (np.zeros(4), np.zeros(3))], ids=repr)
def test_values_that_are_not_an_array_are_refused_for_an_array_space(obs: Any, tmp_path: Path) -> None:
    with raises_naming(ValueError, "obs must be", "[4]"):
        LoadedPolicy(stored("dqn", tmp_path).policy)(obs)


@pytest.mark.parametrize(("num_rows", "ended"), [(1, [True]), (1, True), (3, [True] * 3)])
def test_ended_has_a_value_for_each_row(num_rows: int, ended: Any, tmp_path: Path) -> None:
    policy = LoadedPolicy(stored("ppo_gru_history", tmp_path).policy)
    obs = np.ones((num_rows, 3), np.float32)
    start, later = policy(obs), policy(obs)
    assert not np.allclose(start, later)
    policy.reset(ended)
    np.testing.assert_allclose(policy(obs), start, atol=1e-6)


@pytest.mark.parametrize(
    ("num_rows", "ended"),
    [(1, x) for x in ([], [True] * 3, [True, False], [[True]] * 3)]
    + [(3, x) for x in ([], [True], [True, False], [[True]] * 3, True)],
)
def test_ended_of_another_shape_is_refused_and_changes_nothing(num_rows: int, ended: Any, tmp_path: Path) -> None:
    policy = stored("ppo_gru_history", tmp_path).policy
    refusing, expected = LoadedPolicy(policy), LoadedPolicy(policy)
    refusing.reset(ended)  # before the first call, the policy has no memory
    obs = np.ones((num_rows, 3), np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(refusing(obs), expected(obs))
    with raises_naming(ValueError, "ended", str(list(np.shape(ended))), f"[{num_rows}]", "reset()"):
        refusing.reset(ended)
    np.testing.assert_array_equal(refusing(obs), expected(obs))


def test_a_checkpoint_in_place_of_a_corrupted_one_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = dataclasses.replace(stored("dqn", tmp_path), notices=("2 is corrupted.", "1 is used instead."))
    monkeypatch.setattr("evorl.export.stored_policy.stored_policy", lambda *args, **options: policy)
    with pytest.warns(UserWarning, match=r"2 is corrupted\. 1 is used instead\."):
        evorl.load_policy("latest")

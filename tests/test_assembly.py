"""From a config to a workflow: conversion of valid values, and errors for invalid ones before anything is built."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.ppo import PPOWorkflow
from evorl.algorithms.sac import SACWorkflow
from evorl.assembly import as_paid_by_the_environment, eval_rows, training_mode
from evorl.config.values import plain
from evorl.envs import AutoresetMode
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import value_at
from tests.support.small_workflows import inner_config, small


@pytest.mark.parametrize("mode", ["envpool", "DISABLED", AutoresetMode.ENVPOOL])
def test_modes_with_idle_steps_are_not_for_training(mode: str | AutoresetMode) -> None:
    with pytest.raises(ValueError, match=r"is unsuitable for training: .* Use normal or fast\."):
        small("ppo", autoreset_mode=mode)
    assert training_mode("fast") is AutoresetMode.FAST


def test_evaluation_reports_what_the_environment_pays() -> None:
    env = {
        "name": "CartPole-v1",
        "max_episode_steps": 10,
        "reward_transform": "tanh",
        "reward_clip": 0.5,
        "reward_scale": 0.1,
        "sparse_reward_interval": 4,
    }
    workflow = small("ppo", env)
    assert as_paid_by_the_environment("hopper") == "hopper"
    assert workflow.eval_env == small("ppo").eval_env
    state = workflow.env.step(workflow.env.reset(jax.random.key(0)), jnp.zeros(workflow.env.num_envs, jnp.int32))
    assert not state.reward.any()  # training is paid later
    metrics = workflow.evaluate(workflow.init(0))
    assert metrics.episode_return == metrics.episode_length


def test_evaluation_draws_the_physics_too_unless_told_otherwise() -> None:
    env = {"name": "mjx/hopper", "randomization": {"body_mass": {"scale": [0.5, 2.0]}}}
    assert as_paid_by_the_environment(env) == env
    env["randomization"]["in_evaluation"] = False  # pyright: ignore[reportIndexIssue]
    assert as_paid_by_the_environment(env) == {"name": "mjx/hopper"}


def test_a_schedule_may_be_by_environment_steps() -> None:
    rate = {"start": 2e-2, "end": 2e-3, "steps": 30_000}
    for total, share in ((60_000, 0.5), (30_000, 1.0), (15_000, 2.0)):
        built: Any = small("a2c", total_timesteps=total, optimizer={"learning_rate": rate})
        schedule = built.optimizer.learning_rate
        assert schedule.share == share
        steps = jnp.asarray([0.0, 7500.0, 15_000.0, 30_000.0, 45_000.0])
        expected = np.asarray([0.02, 0.0155, 0.011, 0.002, 0.002])
        values = value_at(schedule, steps / total)
        np.testing.assert_allclose(values[steps <= total], expected[steps <= total], rtol=1e-5)
    agent = small("dqn", total_timesteps=1000, agent={"epsilon": {"start": 1, "end": 0, "steps": 100}}).agent
    assert agent.epsilon.share == 0.1  # pyright: ignore[reportAttributeAccessIssue]
    by_share: Any = small("a2c", optimizer={"learning_rate": {**rate, "share": 0.25, "steps": None}})
    assert by_share.optimizer.learning_rate.share == 0.25


@pytest.mark.parametrize("steps", [0, -1, "many"])
def test_steps_of_a_schedule_are_a_positive_number(steps: Any) -> None:
    rate = {"start": 2e-2, "end": 2e-3, "steps": steps}
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate\.steps must be a number"):
        small("a2c", optimizer={"learning_rate": rate})


def test_a_learner_within_another_workflow_has_no_length_of_its_own() -> None:
    learner = {**inner_config("td3"), "optimizer": {"learning_rate": {"start": 1, "end": 0, "steps": 10}}}
    learner.pop("total_timesteps", None)
    with pytest.raises(ValueError, match=r"learner\.optimizer\.learning_rate\.steps .*learning_rate\.share"):
        small("erl", learner=learner)


def test_whole_floats_are_whole_numbers() -> None:
    workflow = small("sac", replay_capacity=1e3, batch_size=16.0, total_timesteps=100)
    assert (workflow.replay_capacity, workflow.batch_size, workflow.total_timesteps) == (1000, 16, 100.0)
    assert isinstance(workflow.replay_capacity, int)


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        ("ppo", {"rollout_length": "a"}, "rollout_length must be a positive whole number, got 'a'"),
        ("ppo", {"num_epochs": 0}, "num_epochs must be a positive whole number, got 0"),
        ("ppo", {"num_minibatches": 1.5}, "num_minibatches must be a positive whole number, got 1.5"),
        ("ppo", {"num_minibatches": 7}, "cannot be cut into num_minibatches=7 equal parts"),
        ("ppo", {"num_envs": float("inf")}, "num_envs must be a positive whole number, got inf"),
        ("ppo", {"eval_episodes": 0}, "eval_episodes must be a positive whole number, got 0"),
        ("ppo", {"eval_interval": -1}, "eval_interval must be a number of at least 0, got -1"),
        ("ppo", {"discount": 1.1}, r"discount must be a number in \[0, 1\], got 1.1"),
        ("ppo", {"gae_lambda": None}, "gae_lambda must be a number in .*, got null"),
        ("ppo", {"optimizer": 3}, "optimizer must be a mapping from settings to values, got 3"),
        ("ppo", {"optimizer": {"learning_rate": -1}}, "optimizer.learning_rate must be a number of at least 0, got -1"),
        (
            "ppo",
            {"optimizer": {"name": "adm"}},
            r"got 'adm'\. Did you mean 'adam'",
        ),
        ("ppo", {"agent": 3}, "agent must be a mapping from settings to values, got 3"),
        ("ppo", {"agent": {"network": [64]}}, r"agent.network must be a mapping .* got \[64\]"),
        ("ppo", {"agent": {"network": {"torso": 64}}}, "torso must be a list of layers"),
        ("ppo", {"agent": {"clip_epsilon": -1}}, "agent.clip_epsilon must be a number above 0, got -1"),
        ("ppo", {"agent": {"normalize_obs": "yes"}}, "agent.normalize_obs must be true or false, got 'yes'"),
        ("sac", {"batch_size": 0}, "batch_size must be a positive whole number, got 0"),
        ("sac", {"tau": 2}, r"tau must be a number in \[0, 1\], got 2"),
        ("sac", {"agent": {"num_critics": 0}}, "agent.num_critics must be a positive whole number, got 0"),
        ("sac", {"agent": {"temperature": 0}}, "agent.temperature must be a number above 0, got 0"),
        ("ppo", {"rolout_length": 3}, "here is no config key 'rolout_length'. Did you mean 'rollout_length'"),
    ],
)
def test_nonsense_is_refused_in_words(algorithm: str, changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small(algorithm, **changes)


def test_ranges_do_not_meet_traced_numbers() -> None:
    workflow = small("ppo")
    rates = jax.vmap(lambda x: workflow.replace(discount=x, optimizer=Optimizer(learning_rate=x)).discount)(jnp.ones(3))
    assert rates.shape == (3,)


def test_a_built_node_is_taken_as_it_is() -> None:
    optimizer = Optimizer("sgd", learning_rate=0.5)
    assert small("ppo", optimizer=optimizer).optimizer is optimizer


def test_an_environment_must_be_named() -> None:
    with pytest.raises(ValueError, match="The config has no environment"):
        PPOWorkflow.build_from_config({})
    with pytest.raises(ValueError, match="replay_capacity=4 is less than one iteration collects"):
        SACWorkflow.build_from_config({"env": "CartPole-v1", "num_envs": 8, "replay_capacity": 4})


def test_plain_configs() -> None:
    from omegaconf import OmegaConf

    node = OmegaConf.create({"a": 1, "b": {"c": "${a}", "d": [1, 2]}})
    assert plain(node) == plain({"a": 1, "b": node.b}) == {"a": 1, "b": {"c": 1, "d": [1, 2]}}


@pytest.mark.parametrize(("episodes", "multiple_of", "rows"), [(20, 1, 20), (300, 1, 100), (20, 8, 24), (129, 2, 66)])
def test_evaluation_rows(episodes: int, multiple_of: int, rows: int) -> None:
    assert eval_rows(episodes, multiple_of) == rows

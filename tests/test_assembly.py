"""Conversion of configs to workflows: valid values, and errors for invalid ones before anything is built."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.ppo import PPOWorkflow
from evorl.algorithms.sac import SACWorkflow
from evorl.assembly import eval_rows, evaluation_env, seeded_env, training_mode
from evorl.config.values import plain
from evorl.envs import AutoresetMode
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import value_at
from evorl.runs.spec import RunSpec
from tests.support.errors import raises_naming
from tests.support.small_workflows import contract_of, inner_config, small


@pytest.mark.parametrize("mode", ["envpool", "DISABLED", AutoresetMode.ENVPOOL])
def test_modes_with_idle_steps_are_not_for_training(mode: str | AutoresetMode) -> None:
    with raises_naming(ValueError, "autoreset_mode=", "training", "normal or fast"):
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
    assert evaluation_env(RunSpec(workflow={"env": "hopper"})) == {"name": "hopper"}
    assert workflow.eval_env == small("ppo").eval_env
    state = workflow.env.step(workflow.env.reset(jax.random.key(0)), jnp.zeros(workflow.env.num_envs, jnp.int32))
    assert not state.reward.any()  # rewards for training only
    metrics = workflow.evaluate(workflow.init(0))
    assert metrics.episode_return == metrics.episode_length


def test_evaluation_draws_the_physics_too_unless_told_otherwise() -> None:
    env = {"name": "mjx/hopper", "randomization": {"body_mass": {"scale": [0.5, 2.0]}}}
    spec = RunSpec(workflow={"env": env})
    assert evaluation_env(spec) == env
    env["randomization"]["in_evaluation"] = False  # pyright: ignore[reportIndexIssue]
    assert evaluation_env(spec) == {"name": "mjx/hopper"}


def test_only_compiled_simulators_have_a_seed_of_their_own() -> None:
    spec = RunSpec(seed=5, workflow={"env": {"name": "Pong", "reward_scale": 0.1}})
    assert seeded_env(spec) == spec.env
    spec = RunSpec(seed=5, workflow={"env": {**spec.env, "host": "compiled"}})
    assert seeded_env(spec) == {"seed": 5, **spec.env}
    assert seeded_env(spec, evaluates=True) == {"seed": 6, "name": "Pong", "host": "compiled"}
    spec = RunSpec(seed=5, workflow={"env": {**spec.env, "seed": 1}})
    assert seeded_env(spec, evaluates=True)["seed"] == 1


def test_compiled_simulators_of_a_population_have_the_seed_of_the_run() -> None:
    workflow: Any = small("pbt", {"name": "envpool/CartPole-v1", "host": "compiled"}, seed=5)
    assert (workflow.env._seed, workflow.eval_env._seed) == (5, 6)


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
    with raises_naming(ValueError, "optimizer.learning_rate.steps", f"got {steps!r}"):
        small("a2c", optimizer={"learning_rate": rate})


@pytest.mark.parametrize("own_length", [{}, {"total_timesteps": 1e6}])
@pytest.mark.parametrize("outer", ["erl", "cemrl", "pga_me", "pbt"])
def test_schedules_within_an_inner_workflow_run_over_its_part_of_the_training(
    outer: str, own_length: dict[str, float]
) -> None:
    part = {
        **inner_config("td3"),
        "num_envs": 1,
        "agent": {"noise": {"scale": {"start": 1, "end": 0, "steps": 100}}},
        **own_length,
    }
    if not own_length:
        part.pop("total_timesteps", None)
    others = {"search_space": {"discount": {"low": 0.9, "high": 0.99}}} if outer == "pbt" else {}
    built: Any = small(outer, "Pendulum-v1", total_timesteps=1000, **{"inner" if others else "learner": part}, **others)
    inner = built.inner if others else built.learner
    assert inner.agent.noise.scale.share == 100 / (1000 / built.pop_size if others else 1000)


def test_whole_floats_are_whole_numbers() -> None:
    workflow = small("sac", replay_capacity=1e3, batch_size=16.0, total_timesteps=100)
    assert (workflow.replay_capacity, workflow.batch_size, workflow.total_timesteps) == (1000, 16, 100.0)
    assert isinstance(workflow.replay_capacity, int)


@pytest.mark.parametrize(
    ("algorithm", "changes", "parts"),
    [
        ("ppo", {"rollout_length": "a"}, ("rollout_length", "integer", "got 'a'")),
        ("ppo", {"num_epochs": 0}, ("num_epochs", "positive", "got 0")),
        ("ppo", {"num_minibatches": 1.5}, ("num_minibatches", "integer", "got 1.5")),
        ("ppo", {"num_minibatches": 7}, ("num_minibatches=7",)),
        ("ppo", {"num_envs": float("inf")}, ("num_envs", "integer", "got inf")),
        ("ppo", {"eval_episodes": 0}, ("eval_episodes", "positive", "got 0")),
        ("ppo", {"eval_interval": -1}, ("eval_interval", "at least 0", "got -1")),
        ("ppo", {"discount": 1.1}, ("discount", "[0, 1]", "got 1.1")),
        ("ppo", {"gae_lambda": None}, ("gae_lambda", "number in", "got null")),
        ("ppo", {"optimizer": 3}, ("optimizer", "mapping", "got 3")),
        ("ppo", {"optimizer": {"learning_rate": -1}}, ("optimizer.learning_rate", "at least 0", "got -1")),
        (
            "ppo",
            {"optimizer": {"name": "adm"}},
            ("optimizer.name", "got 'adm'", "'adam'"),
        ),
        ("ppo", {"agent": 3}, ("agent", "mapping", "got 3")),
        ("ppo", {"agent": {"network": [64]}}, ("agent.network", "mapping", "got [64]")),
        ("ppo", {"agent": {"network": {"torso": 64}}}, ("torso", "list of layers")),
        ("ppo", {"agent": {"clip_epsilon": -1}}, ("agent.clip_epsilon", "above 0", "got -1")),
        ("ppo", {"agent": {"normalize_obs": "yes"}}, ("agent.normalize_obs", "true or false", "got 'yes'")),
        ("sac", {"batch_size": 0}, ("batch_size", "positive", "got 0")),
        ("sac", {"tau": 2}, ("tau", "[0, 1]", "got 2")),
        ("sac", {"agent": {"num_critics": 0}}, ("agent.num_critics", "positive", "got 0")),
        ("sac", {"agent": {"temperature": 0}}, ("agent.temperature", "above 0", "got 0")),
        ("ppo", {"rolout_length": 3}, ("'rolout_length'", "'rollout_length'")),
    ],
)
def test_nonsense_is_refused_in_words(algorithm: str, changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small(algorithm, **changes)


def test_ranges_do_not_meet_traced_numbers() -> None:
    workflow = small("ppo")
    rates = jax.vmap(lambda x: workflow.replace(discount=x, optimizer=Optimizer(learning_rate=x)).discount)(jnp.ones(3))
    assert rates.shape == (3,)


def test_a_built_node_is_taken_as_it_is() -> None:
    optimizer = Optimizer("sgd", learning_rate=0.5)
    assert small("ppo", optimizer=optimizer).optimizer is optimizer


def test_an_environment_must_be_named() -> None:
    with raises_naming(ValueError, "config", "no environment"):
        PPOWorkflow.build_from_config({})
    with raises_naming(ValueError, "replay_capacity=4", "one iteration"):
        SACWorkflow.build_from_config({"env": "CartPole-v1", "num_envs": 8, "replay_capacity": 4})


def test_plain_configs() -> None:
    from omegaconf import OmegaConf

    node = OmegaConf.create({"a": 1, "b": {"c": "${a}", "d": [1, 2]}})
    assert plain(node) == plain({"a": 1, "b": node.b}) == {"a": 1, "b": {"c": 1, "d": [1, 2]}}


@pytest.mark.parametrize(("episodes", "multiple_of", "rows"), [(20, 1, 20), (300, 1, 100), (20, 8, 24), (129, 2, 66)])
def test_evaluation_rows(episodes: int, multiple_of: int, rows: int) -> None:
    assert eval_rows(episodes, multiple_of) == rows


@pytest.mark.parametrize(("algorithm", "part"), [("pbt", "inner"), ("erl", "learner"), ("cemrl", "learner")])
@pytest.mark.parametrize("is_inner", [False, True], ids=["whole", "part"])
def test_actors_without_effect_are_refused(algorithm: str, part: str, is_inner: bool) -> None:
    """Algorithms with an inner workflow step the environments themselves: actors would be built and never used."""
    actors = {"actors": {"count": 2}}
    section = contract_of(algorithm).SMALL[part]
    with raises_naming(ValueError, f"{part}.actors={{" if is_inner else "actors={", "remove", f"section {part}"):
        small(algorithm, "Pendulum-v1", **({part: section | actors} if is_inner else actors))


@pytest.mark.parametrize(("algorithm", "part"), [("pbt", "inner"), ("erl", "learner"), ("cemrl", "learner")])
def test_no_actors_are_accepted_in_the_whole_and_in_the_part(algorithm: str, part: str) -> None:
    section = contract_of(algorithm).SMALL[part]
    small(algorithm, "Pendulum-v1", **{part: section | {"actors": None}, "actors": None})

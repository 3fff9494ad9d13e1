"""Settings of actors in configs, and the errors for invalid ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from evorl.actors.actor_settings import ActorSettings
from evorl.assembly import workflow_from_config
from tests.support.errors import raises_naming

CONFIG = {"env": {"name": "gymnax/CartPole-v1"}, "num_envs": 4, "agent": {"network": {"torso": [8]}}}


def build(algorithm: str, actors: dict[str, Any], **changes: Any) -> Any:
    return workflow_from_config({"workflow": f"evorl.algorithms.{algorithm}", **CONFIG, "actors": actors, **changes})


def test_what_is_silent_is_as_usual() -> None:
    def read(**actors: Any) -> ActorSettings:
        return build("impala.IMPALAWorkflow", actors).collector.settings

    assert dataclasses.asdict(read(count=4)) == dataclasses.asdict(ActorSettings(count=4))
    assert not read().is_async
    assert read(mode="async").is_async


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"kind": "proces"}, ("'proces'", "'process'")),
        ({"mode": "asynch"}, ("'asynch'", "'async'")),
        ({"number": 3}, ("'number'",)),
        ({"count": 0}, ("count", "got 0")),
        ({"timeout": 0.0}, ("timeout", "got 0.0")),
        ({"mode": "async", "count": 4, "max_lag": 2}, ("only 3 of actors.count=4", "at least 3")),
        (3, ("actors must be a mapping",)),
    ],
)
def test_settings_that_cannot_be_are_refused_in_words(config: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        build("ppo.PPOWorkflow", config)


@pytest.mark.parametrize(
    ("algorithm", "actors", "changes", "parts"),
    [
        ("ppo.PPOWorkflow", {"mode": "async"}, {}, ("PPOWorkflow", "IMPALA")),
        (
            "impala.IMPALAWorkflow",
            {"mode": "async"},
            {"normalize_rewards": True},
            ("consecutive steps", "normalize_rewards", "actors.mode=sync"),
        ),
        ("dqn.DQNWorkflow", {"mode": "async"}, {"n_step": 3}, ("consecutive steps", "n_step", "actors.mode=sync")),
        (
            "dqn.DQNWorkflow",
            {"mode": "async"},
            {"replay": {"overwrite": "random"}},
            ("consecutive steps", "replay.overwrite=random", "actors.mode=sync"),
        ),
        (
            "r2d2.R2D2Workflow",
            {"mode": "async"},
            {"agent": {}},
            ("consecutive steps", "R2D2Workflow", "actors.mode=sync"),
        ),
        ("ppo.PPOWorkflow", {"count": 3}, {}, ("num_envs=4", "actors.count=3")),
        ("ppo.PPOWorkflow", {}, {"num_seeds": 2}, ("num_seeds=2", "actors", "seed=0,1,2")),
        (
            "trpo.TRPOWorkflow",
            {},
            {"episodes_per_batch": 4, "rollout_length": 500},
            ("TRPOWorkflow", "remove actors"),
        ),
    ],
)
def test_what_cannot_learn_from_actors_is_refused_in_words(
    algorithm: str, actors: dict, changes: dict, parts: tuple[str, ...]
) -> None:
    with raises_naming(ValueError, *parts):
        build(algorithm, actors, **changes)


def test_an_asynchronous_iteration_is_of_one_actor() -> None:
    together = build("impala.IMPALAWorkflow", {"count": 2, "mode": "sync"})
    one = build("impala.IMPALAWorkflow", {"count": 2, "mode": "async"})
    assert (together.env.num_envs, one.env.num_envs) == (4, 2)
    assert together.timesteps_per_iteration == 2 * one.timesteps_per_iteration
    assert not together.collector.is_one_program

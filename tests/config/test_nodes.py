"""Nodes from mappings: a setting that may follow a schedule is a number or a mapping."""

from __future__ import annotations

import math
from typing import Any

import jax
import pytest

from evorl.algorithms.ppo import PPOAgent
from evorl.config.nodes import fields_from_config, node_from_config
from evorl.ec.optimizers import OpenES, SepCEM, VanillaES
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from tests.support.errors import raises_naming


def rate_of(value: Any) -> Any:
    return node_from_config(Optimizer, {"learning_rate": value}, "optimizer").learning_rate


def test_a_schedule_is_a_number_or_a_mapping() -> None:
    assert rate_of(1) == 1.0
    assert isinstance(rate_of(1), float)
    rate = rate_of({"start": 2, "end": 0.1, "share": 0.5, "kind": "exponential"})
    assert (rate.start, rate.end, rate.share, rate.kind) == (2.0, 0.1, 0.5, "exponential")
    rate = rate_of({"start": 2})
    assert (rate.start, rate.end, rate.share, rate.kind) == (2.0, 0.0, 1.0, "linear")
    schedule = Schedule(1.0, 0.0)
    assert rate_of(schedule) is schedule


def test_an_optimizer_has_options() -> None:
    config = {"name": "sgd", "options": {"momentum": 1, "nesterov": True}}
    assert jax.tree.leaves(node_from_config(Optimizer, config, "optimizer").options) == [1.0]
    assert node_from_config(Optimizer, {"options": None}, "optimizer").options == {}
    with raises_naming(ValueError, "'lion'"):
        node_from_config(Optimizer, {"name": "lyon"}, "optimizer")


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (-1, ("optimizer.learning_rate", "at least 0", "got -1")),
        (None, ("optimizer.learning_rate", "at least 0", "got null")),
        ("fast", ("optimizer.learning_rate", "at least 0", "got 'fast'")),
        ({"start": -1, "end": 0}, ("optimizer.learning_rate.start", "at least 0", "got -1")),
        ({"start": 1, "end": -0.5}, ("optimizer.learning_rate.end", "at least 0", "got -0.5")),
        ({"end": 1}, ("optimizer.learning_rate.start", "missing", "{'end': 1}", "{start: a value}")),
        (
            {"start": 1, "kind": "exponential"},
            ("optimizer.learning_rate.end", "above 0", "kind=exponential", "got 0"),
        ),
        ({"start": 0, "end": 1, "kind": "exponential"}, ("optimizer.learning_rate.start", "above 0", "got 0")),
        ({"start": 1, "ende": 0}, ("optimizer.learning_rate", "'ende'", "'end'")),
        ({"start": 1, "end": 0, "share": 0}, ("optimizer.learning_rate.share", "above 0", "got 0")),
        ({"start": 1, "end": 0, "kind": "liner"}, ("optimizer.learning_rate.kind", "'liner'", "'linear'")),
    ],
)
def test_what_is_neither_is_refused_in_words(value: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        rate_of(value)


def test_a_schedule_may_end_at_the_bound_that_its_setting_stays_above() -> None:
    config = {"clip_epsilon": {"start": 0.2, "end": 0}}
    assert fields_from_config(PPOAgent, config, "agent")["clip_epsilon"].end == 0.0
    for value, name in ((0, "clip_epsilon"), ({"start": 0, "end": 0}, "clip_epsilon.start")):
        with raises_naming(ValueError, f"agent.{name}", "above 0", "got 0"):
            fields_from_config(PPOAgent, {"clip_epsilon": value}, "agent")
    with raises_naming(ValueError, "agent.clip_epsilon.end", "at least 0", "got -1"):
        fields_from_config(PPOAgent, {"clip_epsilon": {"start": 0.2, "end": -1}}, "agent")


@pytest.mark.parametrize(
    ("kind", "setting", "value", "parts"),
    [
        (OpenES, "weight_decay", -1, ("optimizer.weight_decay", "at least 0", "got -1")),
        (OpenES, "noise_std_schedule", {"init": 0}, ("optimizer.noise_std_schedule.init", "above 0", "got 0")),
        (OpenES, "noise_std_schedule", {"final": -1}, ("optimizer.noise_std_schedule.final", "at least 0", "got -1")),
        (OpenES, "lr_schedule", {"init": -1}, ("optimizer.lr_schedule.init", "at least 0", "got -1")),
        (OpenES, "lr_schedule", {"init": math.nan}, ("optimizer.lr_schedule.init", "number", "got nan")),
        (VanillaES, "noise_std_schedule", {"init": 0}, ("optimizer.noise_std_schedule.init", "above 0", "got 0")),
        (SepCEM, "extra_variance", {"init": -1}, ("optimizer.extra_variance.init", "at least 0", "got -1")),
    ],
)
def test_schedules_of_evolution_strategies_have_ranges(kind: Any, setting: str, value: Any, parts: Any) -> None:
    with raises_naming(ValueError, *parts):
        node_from_config(kind, {"pop_size": 8, setting: value}, "optimizer")


def test_schedules_of_evolution_strategies_may_grow_and_be_constant() -> None:
    falling, growing = {"init": 0.1, "final": 0.0}, {"init": 0.1, "final": 0.2, "decay": 1.1}
    below_the_default_of_final = {"init": 1e-4}  # constant
    for schedule in (falling, growing, {"init": 9.0, "decay": 1.0}, below_the_default_of_final):
        node_from_config(OpenES, {"pop_size": 8, "noise_std_schedule": schedule, "lr_schedule": schedule}, "optimizer")
    node_from_config(SepCEM, {"pop_size": 8, "extra_variance": {"init": 0.0, "final": 0.0}}, "optimizer")

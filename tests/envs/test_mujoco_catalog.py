"""MuJoCo tasks by name: options, errors, models and their bodies."""

from __future__ import annotations

import importlib.util

import pytest

from evorl.envs.mujoco_catalog import TASKS, load_model, make_task, numbers_of_bodies
from evorl.envs.mujoco_runners import Ant, Hopper
from tests.support.errors import raises_naming


def test_options_become_fields() -> None:
    task = make_task("mine", "hopper", {"healthy_z_range": [1, 2], "ctrl_cost_weight": 2}, TASKS, ())
    assert task == Hopper(healthy_z_range=(1.0, 2.0), ctrl_cost_weight=2.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hoper", {}, ("task of mine", "'hoper'", "'hopper'")),
        ("swimmer", {}, ("task of mine", "'swimmer'")),
        ("hopper", {"iteration": 3}, ("mine/hopper", "'iteration'", "'iterations'")),
        ("hopper", {"healthy_z_range": 2}, ("healthy_z_range", "two numbers", "got 2")),
    ],
)
def test_errors_in_words(name: str, options: dict, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        make_task("mine", name, options, ("ant", "hopper"), ("iterations",))


def test_bodies_of_a_model() -> None:
    model = load_model(Ant())
    bodies = numbers_of_bodies(model)
    assert bodies["world"] == 0
    assert model.body("front_left_leg").id == bodies["front_left_leg"] > bodies["torso"] == 1


def test_models_come_with_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises_naming(ImportError, "pip install gymnasium"):
        load_model(Ant())

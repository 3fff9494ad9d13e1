"""Action distributions that match a space, and settings of agents that would have no effect."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import pytest

from evorl.agent import Agent, action_distribution, shipped_agents
from evorl.algorithms.iql import IQLAgent
from evorl.algorithms.pqn_continuous import PQNContinuousAgent
from evorl.algorithms.recurrent_sac import RecurrentSACAgent
from evorl.algorithms.tqc import TQCAgent
from evorl.envs import Box, Discrete, Space, TupleSpace, create_env
from evorl.envs.action_spaces import ActionSpaces, describe_kinds
from tests.support.errors import raises_naming

BOX = Box(-2.0, 3.0, (2,))


def test_the_distribution_suits_the_action_space() -> None:
    categorical = action_distribution(Discrete(3))
    assert (categorical.is_discrete, categorical.num_parameters) == (True, 3)
    squashed = action_distribution(BOX)
    assert (squashed.is_discrete, squashed.size, squashed.num_parameters) == (False, 2, 4)
    assert squashed.kind == "tanh_normal"
    assert action_distribution(BOX, squashed=False).kind == "normal"
    assert action_distribution(Box(-jnp.inf, jnp.inf, (2,))).kind == "normal"


@pytest.mark.parametrize("space", [TupleSpace((BOX, Discrete(2))), Box(-1.0, 1.0, (2, 2))], ids=repr)
def test_a_space_it_cannot_act_in_is_refused_describe_kinds(space: Space) -> None:
    with raises_naming(ValueError, "Discrete", "flat Box", type(space).__name__):
        action_distribution(space)


def test_every_kind_of_action_space_has_words() -> None:
    for kinds in range(1, ActionSpaces.ANY.value + 1):
        assert describe_kinds(ActionSpaces(kinds))
    assert (
        describe_kinds(ActionSpaces.BOUNDED_BOXES | ActionSpaces.DISCRETE) == "Discrete spaces and flat, bounded Boxes"
    )


def test_only_agents_with_categorical_values_have_a_support() -> None:
    for agent in shipped_agents():
        settings = {field.name for field in dataclasses.fields(agent) if field.metadata.get("setting", True)}
        is_categorical = "values" in agent.complete_config() or agent.__name__ == "REPPOAgent"
        assert ("support_low" in settings) == ("support_high" in settings) == is_categorical, agent


def test_completed_settings_have_an_effect() -> None:
    for agent in shipped_agents():
        inert = {field.name for field in dataclasses.fields(agent) if not field.metadata.get("setting", True)}
        assert not inert & agent.complete_config().keys(), agent


@pytest.mark.parametrize("agent", [IQLAgent, PQNContinuousAgent, RecurrentSACAgent, TQCAgent])
def test_a_setting_without_effect_is_refused(agent: type[Agent]) -> None:
    """Its default is accepted, because the stored configs of earlier versions contain it."""
    env = create_env("Pendulum-v1", parallel=1)
    agent.from_config({"support_low": -10}, env)
    with raises_naming(ValueError, "agent.support_low=-5", "no effect", "remove"):
        agent.from_config({"support_low": -5}, env)

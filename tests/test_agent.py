"""Action distributions that match a space."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from evorl.agent import action_distribution
from evorl.envs import Box, Discrete, Space, TupleSpace
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

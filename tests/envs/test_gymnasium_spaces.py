"""Gymnasium's spaces become ours, of observations and of actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import Box, DictSpace, Discrete, MultiDiscrete, TupleSpace
from evorl.envs.gymnasium_spaces import action_space_of, space_of


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (spaces.Box(-1.0, 2.0, (3,), np.float64), Box(-1.0, 2.0, (3,), np.float32)),
        (spaces.Box(0, 255, (4, 4, 1), np.uint8), Box(0, 255, (4, 4, 1), np.uint8)),
        (spaces.Discrete(3), Discrete(3)),
        (spaces.Discrete(3, start=-1), Discrete(3, start=-1)),
        (spaces.MultiDiscrete([2, 5], start=[1, 0]), MultiDiscrete([2, 5], start=[1, 0])),
        (spaces.MultiBinary(3), Box(0, 1, (3,), np.int8)),
        (spaces.Dict({"a": spaces.Discrete(2)}), DictSpace({"a": Discrete(2)})),
        (spaces.Tuple([spaces.Discrete(2)]), TupleSpace([Discrete(2)])),
    ],
)
def test_spaces_of_observations(theirs: Any, ours: Any) -> None:
    assert space_of(theirs) == ours


def test_choices_at_once_are_one_choice_among_all_combinations() -> None:
    space, convert = action_space_of(spaces.MultiDiscrete([2, 3], start=[0, 5]))
    assert space == Discrete(6)
    np.testing.assert_array_equal(convert(np.arange(6)), [[0, 5], [0, 6], [0, 7], [1, 5], [1, 6], [1, 7]])
    space, convert = action_space_of(spaces.MultiBinary(2))
    np.testing.assert_array_equal(convert(np.arange(4)), [[0, 0], [0, 1], [1, 0], [1, 1]])
    space, convert = action_space_of(spaces.Discrete(3, start=-1))
    np.testing.assert_array_equal(convert(np.arange(3)), [-1, 0, 1])
    space, convert = action_space_of(spaces.Box(-2.0, 2.0, (1,), np.float64))
    assert convert(np.zeros((2, 1), np.float32)).dtype == np.float64


@pytest.mark.parametrize(
    ("space", "says"),
    [(spaces.MultiDiscrete([100] * 4), "100,000,000 combinations"), (spaces.Text(4), "agents act in")],
)
def test_actions_that_no_agent_has_are_refused_in_words(space: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        action_space_of(space)

"""States from clients are converted to elements of the observation space, or are rejected."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, TupleSpace
from evorl.serving.observations import ObservationError, action_as_sent, observation_from
from tests.support.errors import raises_naming

VECTOR = Box(-np.inf, np.inf, (2,))
PICTURE = Box(0, 255, (1, 2), np.uint8)


@pytest.mark.parametrize(
    ("state", "space", "expected"),
    [
        ([1, 2.5], VECTOR, np.array([1, 2.5], np.float32)),
        (np.array([1, 2], np.int64), VECTOR, np.array([1, 2], np.float32)),
        (np.array([True, False]), VECTOR, np.array([1, 0], np.float32)),
        (2, Discrete(3), np.int32(2)),
        (np.array(1, np.uint8), Discrete(3), np.int32(1)),
        ([1, 2], MultiDiscrete([2, 3]), np.array([1, 2], np.int32)),
        (np.array([-1.0, 2.0]), MultiDiscrete([2, 3], [-1, 0], np.int8), np.array([-1, 2], np.int8)),
        (1.5, Box(0.0, 2.0, ()), np.float32(1.5)),
        ([1.5, 2], Box(0, 1, (2,), "bfloat16"), np.array([1.5, 2], "bfloat16")),
        ([[0, 255]], PICTURE, np.array([[0, 255]], np.uint8)),
        (np.array([[0.0, 1.0]], np.float32), PICTURE, np.array([[0, 255]], np.uint8)),  # decoded like images
        (np.array([[0.0, 200.4]]), PICTURE, np.array([[0, 200]], np.uint8)),
        (np.array([1.0, 0.0]), Box(0, 3, (2,), np.uint8), np.array([1, 0], np.uint8)),  # small numbers, not an image
        (np.array([1.5, 2], np.float16), VECTOR, np.array([1.5, 2], np.float32)),
        ([], Box(1.0, 1.0, (1,)), np.ones(1, np.float32)),
        (np.zeros((0, 3)), Box(1.0, 1.0, (1,)), np.ones(1, np.float32)),
    ],
)
def test_forms_of_a_state(state: Any, space: Any, expected: Any) -> None:
    got = observation_from(state, space)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_parts_by_name_and_in_order() -> None:
    space = DictSpace({"eyes": PICTURE, "limbs": TupleSpace((VECTOR, Discrete(3)))})
    got = observation_from({"eyes": [[1, 2]], "limbs": [[0.5, 1], 2]}, space)
    np.testing.assert_array_equal(got["eyes"], [[1, 2]])
    np.testing.assert_array_equal(got["limbs"][0], np.array([0.5, 1.0], np.float32))
    assert got["limbs"][1] == 2


@pytest.mark.parametrize(
    ("state", "space", "parts"),
    [
        ([1.0], VECTOR, ("state", "shape [2]", "got [1]")),
        ([[1.0, 2.0]], VECTOR, ("shape [2]", "got [1, 2]")),
        ([[1], [1, 2]], VECTOR, ("array",)),
        (["a", "b"], VECTOR, ("numbers", "got str")),
        ([None, 1], VECTOR, ("numbers", "got object")),
        ([10**400, 1], VECTOR, ("numbers", "got object")),
        ({"a": 1}, VECTOR, ("numbers", "got object")),
        ([math.nan, 1], VECTOR, ("finite",)),
        ([math.inf, 1], VECTOR, ("finite",)),
        ([1e19, 1], VECTOR, ("1e+18",)),
        (np.array([3e38, 1], np.float32), VECTOR, ("1e+18",)),
        ([1e39, 1], VECTOR, ("1e+18",)),
        (3, Discrete(3), ("0 to 2", "got 3")),
        (-1, Discrete(3), ("0 to 2", "got -1")),
        (1.5, Discrete(3), ("integer",)),
        ([5, -7], MultiDiscrete([2, 3]), ("[0 0] to [1 2]", "got [ 5 -7]")),
        ([[0], [3]], MultiDiscrete([[2], [3]]), ("state", "got")),
        ([0, 1], MultiDiscrete([2, 3], [1, 0]), ("[1 0] to [2 2]", "got [0 1]")),
        ([0.6, 1.4], MultiDiscrete([2, 3]), ("integer", "got [0.6 1.4]")),
        (np.array([2**64 - 1, 0], np.uint64), MultiDiscrete([2, 3]), ("[0 0] to [1 2]",)),
        (np.float32([2**31]), Box(-np.inf, np.inf, (1,), np.int32), ("2147483647", "int32", "got 2147483648")),
        (np.float32([2**32]), Box(0, np.inf, (1,), np.uint32), ("4294967295", "uint32")),
        (np.float16([256]), Box(0, 255, (1,), np.uint8), ("255", "uint8")),
        ([1e5], Box(-np.inf, np.inf, (1,), np.float16), ("65504", "float16")),
        ([[0, 256]], PICTURE, ("uint8",)),
        ([[-1, 0]], PICTURE, ("uint8",)),
        ([[0.0, 300.0]], PICTURE, ("uint8",)),
        ([], VECTOR, ("shape [2]", "got [0]")),
        ({"b": 1}, DictSpace({"a": VECTOR}), ("entries a", "got ['b']")),
        ([1, 2], DictSpace({"a": VECTOR}), ("entries a", "got list")),
        ({"a": [1]}, DictSpace({"a": VECTOR}), ("state.a", "shape")),
        ([[1, 2]], TupleSpace((VECTOR, VECTOR)), ("list of 2",)),
        ([[1, 2], [1]], TupleSpace((VECTOR, VECTOR)), ("state[1]", "shape")),
    ],
)
def test_what_is_no_state_is_refused_in_words(state: Any, space: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ObservationError, *parts):
        observation_from(state, space)


def test_actions_are_sent_as_plain_numbers() -> None:
    assert action_as_sent(np.int32(2)) == 2
    assert action_as_sent(np.array([1.0, -0.5], np.float32)) == [1.0, -0.5]
    assert action_as_sent({"a": np.int32(1), "b": (np.zeros(2), np.int32(3))}) == {"a": 1, "b": [[0.0, 0.0], 3]}
    matrix = action_as_sent(np.zeros((2, 2)))
    assert isinstance(matrix, np.ndarray)

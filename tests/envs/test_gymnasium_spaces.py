"""Gymnasium's observation and action spaces are converted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from evorl.envs import Box, DictSpace, Discrete, MultiDiscrete, TupleSpace
from evorl.envs.action_conversion import ActionConversion, refusal_of
from evorl.envs.gymnasium_spaces import action_space_of, batch_rows, space_of
from tests.support.errors import raises_naming

KEYS = jax.random.split(jax.random.key(0), 64)


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


_BETWEEN = spaces.Box(0.1, 0.1, (2,), np.float64)  # contains no float32 number
_ACTION_SPACES = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3], start=[0, 5]),
    spaces.MultiDiscrete([[2, 3], [4, 1]], dtype=np.int16),
    spaces.MultiBinary(2),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-2.0, 2.0, (1,)),
    spaces.Box(np.array([0.0, -np.inf, -3.0]), np.array([np.inf, 1.0, 0.1]), dtype=np.float64),
    spaces.Box(-0.1, 0.1, (2, 2), np.float64),
    _BETWEEN,
    spaces.Box(-1e300, np.finfo(np.float64).max, (2,), np.float64),
    spaces.Box(-7, 300, (2,), np.int64),
    spaces.Box(0, 255, (), np.uint8),
    spaces.Box(0, 9, (1,), np.uint64),
    spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(3)]),
    spaces.Dict({"b": spaces.Box(0.1, 0.7, (2,), np.float64), "a": spaces.Box(-3, 3, (1,), np.int8)}),
]


@pytest.mark.parametrize("theirs", _ACTION_SPACES, ids=repr)
def test_what_an_agent_does_is_an_action_of_gymnasium(theirs: Any) -> None:
    ours, to_dtypes = action_space_of(theirs)
    conversion = ActionConversion(ours)
    actions = jax.jit(lambda keys: conversion.to_env(jax.vmap(conversion.agent_space.sample)(keys)))(KEYS)
    assert bool(ours.contains(actions).all())
    for action in batch_rows(ours, jax.tree.map(np.asarray, actions)):
        assert theirs.contains(action) or theirs == _BETWEEN, f"exported: {action}"
    for action in batch_rows(ours, to_dtypes(jax.tree.map(np.asarray, actions))):
        assert theirs.contains(action), f"played: {action}"
        leaves = jax.tree.leaves(jax.tree.map(lambda x: np.asarray(x).dtype.name, action))
        assert leaves == [space.dtype.name for space in _arrays(theirs)]


FAR = [3.4028235e38, 1e39, 1e300, float(np.finfo(np.float64).max), float("inf")]


@given(low=st.sampled_from([*FAR, 1.0]), high=st.sampled_from([*FAR, 2.5]))
def test_both_paths_have_one_rule_for_bounds_beyond_float32(low: float, high: float) -> None:
    theirs = spaces.Box(-low, high, (2,), np.float64)
    converted, to_dtypes = action_space_of(theirs)
    theirs_converted, ours = ActionConversion(converted), ActionConversion(Box(-low, high, (2,), np.float64))
    assert theirs_converted.agent_space == ours.agent_space
    actions = np.linspace(-4.0, 4.0, 40, dtype=np.float32).reshape(-1, 2)
    played = np.asarray(ours.to_env(jnp.asarray(actions)))
    assert np.isfinite(played).all()
    assert all((column[1:] > column[:-1]).any() for column in played.T)
    np.testing.assert_allclose(np.asarray(theirs_converted.to_env(actions)), played, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.to_env(actions), played, rtol=1e-6, atol=1e-6)
    assert np.isfinite(ours.to_agent(jnp.asarray(played))).all()
    assert all(theirs.contains(row) for row in batch_rows(converted, to_dtypes(played)))


@pytest.mark.parametrize("bounds", [(1e300, 2e300), (-np.inf, -1e39)])
def test_a_box_without_a_float32_is_refused(bounds: tuple[float, float]) -> None:
    for make in (
        lambda: action_space_of(spaces.Box(*bounds, (1,), np.float64)),
        lambda: Box(*bounds, (1,), np.float64),
    ):
        with pytest.raises(ValueError, match="excludes every number of float32"):
            make()


@pytest.mark.parametrize("bounds", [(2**40, 2**40 + 5), (2**31 - 10, 2**31 + 10), (-(2**31) - 3, 0)])
def test_whole_numbers_beyond_32_bits_are_refused_alike(bounds: tuple[int, int]) -> None:
    ours, _ = action_space_of(spaces.Box(*bounds, (1,), np.int64))
    assert ours == Box(*bounds, (1,), np.int64)
    assert refusal_of(ours)


def _arrays(space: Any) -> list[Any]:
    members = getattr(space, "spaces", None)
    if members is None:
        return [space]
    parts = [members[name] for name in sorted(members)] if hasattr(members, "items") else members
    return [leaf for part in parts for leaf in _arrays(part)]


def test_other_kinds_of_actions_are_refused() -> None:
    with raises_naming(ValueError, "Discrete, MultiDiscrete, MultiBinary, Box", "Text"):
        action_space_of(spaces.Text(4))

"""Conversion of actions between agents and environments: within the space, uniform, and complete."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.envs import Box, DictSpace, Discrete, Space, TupleSpace
from evorl.envs.action_conversion import ActionConversion, NoActionConversion, action_conversion, refusal_of
from evorl.envs.action_spaces import ActionSpaces, kind_of
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import leaf_values
from tests.support.errors import raises_naming

MOST = float(np.finfo(np.float32).max)
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool")
SHAPES = st.sampled_from([(), (1,), (3,), (2, 2)])
ENDS = st.sampled_from([-math.inf, -MOST, -1e6, -2.5, -1.0, -0.1, 0.0, 0.7, 1.0, 3.0, 1e20, MOST, math.inf])


@st.composite
def float_boxes(draw: Any) -> Box:
    """Generate boxes with arbitrary bounds in each dimension, also equal ones."""
    shape = draw(SHAPES)
    ends = draw(st.lists(st.tuples(ENDS, ENDS), min_size=math.prod(shape), max_size=math.prod(shape)))
    low, high = np.sort(np.array(ends, np.float32).reshape(*shape, 2), axis=-1).reshape(-1, 2).T
    # A single infinite bound is on its own side.
    low, high = np.where(low == np.inf, 1.0, low), np.where(high == -np.inf, 2.0, high)
    return Box(np.minimum(low, high).reshape(shape), np.maximum(low, high).reshape(shape))


@st.composite
def whole_boxes(draw: Any) -> Box:
    """Generate boxes of up to 300 integers anywhere in the range of their dtype."""
    dtype, shape = np.dtype(draw(st.sampled_from(WHOLE))), draw(SHAPES)
    if dtype == np.bool_:
        return Box(False, True, shape, dtype)
    room, size = np.iinfo(dtype), math.prod(shape)
    low = draw(st.lists(st.integers(room.min, room.max), min_size=size, max_size=size))
    width = draw(st.lists(st.integers(0, 300), min_size=size, max_size=size))
    high = [min(a + b, room.max) for a, b in zip(low, width, strict=True)]
    return Box(np.array(low, object).reshape(shape), np.array(high, object).reshape(shape), shape, dtype)


@st.composite
def choices(draw: Any) -> Space:
    """Generate Discrete and MultiDiscrete spaces with any start."""
    if draw(st.booleans()):
        return Discrete(draw(st.integers(1, 9)), draw(st.integers(-5, 5)))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 1)]))
    sizes = draw(st.lists(st.integers(1, 3), min_size=math.prod(shape), max_size=math.prod(shape)))
    start = draw(st.lists(st.integers(-4, 4), min_size=math.prod(shape), max_size=math.prod(shape)))
    dtype = draw(st.sampled_from(["int8", "int32"]))
    return MultiDiscrete(np.reshape(sizes, shape), np.reshape(start, shape), dtype)


def several(member: st.SearchStrategy) -> st.SearchStrategy:
    """Generate a space, or a tuple or dict of up to three."""
    few = st.lists(member, min_size=1, max_size=3)
    return st.one_of(
        member,
        few.map(TupleSpace),
        few.map(lambda spaces: DictSpace({"cab"[i]: space for i, space in enumerate(spaces)})),
        few.map(lambda spaces: TupleSpace([DictSpace({"x": space}) for space in spaces])),
    )


BOXES, CHOICES = several(st.one_of(float_boxes(), whole_boxes())), several(choices())


def _contained(space: Space, actions: Any) -> np.ndarray:
    """Return which NumPy actions are elements; without JAX, whose compilation would take longer."""
    if isinstance(space, DictSpace):
        return np.logical_and.reduce([_contained(part, actions[name]) for name, part in space.spaces.items()])
    if isinstance(space, TupleSpace):
        return np.logical_and.reduce([_contained(*pair) for pair in zip(space.spaces, actions, strict=True)])
    low, high = (space.low, space.high) if isinstance(space, Box) else (None, None)
    if isinstance(space, MultiDiscrete):
        low, high = space.start, space.start + space.sizes - 1
    if isinstance(space, Discrete):
        low, high = space.start, space.start + space.n - 1
    assert actions.dtype == space.dtype
    assert actions.shape[actions.ndim - len(space.shape or ()) :] == space.shape
    return ((actions >= low) & (actions <= high)).reshape(len(actions), -1).all(axis=1)


def _drawn(space: Space, num_rows: int) -> np.ndarray:
    """Return agent actions: the corners, values far outside, and numbers in between."""
    rng = np.random.default_rng(0)
    if isinstance(space, Discrete):
        return np.arange(space.n, dtype=np.int32)
    assert isinstance(space, Box)
    numbers = rng.uniform(-1.0, 1.0, (num_rows, *space.shape)).astype(np.float32)
    numbers[0], numbers[1], numbers[2] = -1.0, 1.0, 0.0
    scale = np.where(np.isfinite(space.high), 1.0, 30.0).astype(np.float32)
    return np.concatenate([numbers * scale, [np.full(space.shape, 5.0, np.float32)]])


@given(space=st.one_of(BOXES, CHOICES))
def test_what_reaches_the_environment_is_in_its_space(space: Space) -> None:
    conversion = ActionConversion(space)
    assert _contained(space, conversion.to_env(_drawn(conversion.agent_space, 50))).all()


@given(space=st.one_of(BOXES, CHOICES))
def test_agents_act_in_two_kinds_of_spaces(space: Space) -> None:
    ours = ActionConversion(space).agent_space
    if isinstance(ours, Box):
        is_line = np.isinf(ours.low) & np.isinf(ours.high)
        assert (is_line | ((ours.low == -1) & (ours.high == 1))).all()
        assert (ours.dtype, len(ours.shape)) == (np.dtype(np.float32), 1)
    else:
        assert isinstance(ours, Discrete)
        assert ours.start == 0
    assert ActionConversion(ours).is_identity
    assert action_conversion(ours) is None


@given(space=CHOICES)
def test_choices_are_numbered_one_to_one(space: Space) -> None:
    conversion = ActionConversion(space)
    numbers = _drawn(conversion.agent_space, 0)
    actions = conversion.to_env(numbers)
    flat = np.concatenate([leaf.reshape(len(numbers), -1) for leaf in leaf_values(space, actions)], axis=1)
    assert len(np.unique(flat, axis=0)) == len(numbers)
    np.testing.assert_array_equal(conversion.to_agent(actions), numbers)


@given(space=whole_boxes())
def test_each_whole_number_has_an_equal_share(space: Box) -> None:
    conversion = ActionConversion(space)
    counts = (space.high.astype(np.int64) - space.low.astype(np.int64) + 1).ravel()
    most = int(counts.max())
    # The centers of equal subintervals, so that every value of every dimension is equally frequent.
    for dimension, count in enumerate(counts.tolist()):
        middles = (np.arange(4 * count) + 0.5) / (4 * count) * 2 - 1
        actions = np.zeros((len(middles), len(counts)), np.float32)
        actions[:, dimension] = middles
        played = conversion.to_env(actions).reshape(len(middles), -1)[:, dimension].astype(np.int64)
        first = int(space.low.astype(np.int64).ravel()[dimension])
        np.testing.assert_array_equal(played, first + np.repeat(np.arange(count), 4))
    assert most >= 1
    np.testing.assert_array_equal(conversion.to_env(conversion.to_agent(played_corners(space))), played_corners(space))


def played_corners(space: Box) -> np.ndarray:
    """Return both corners of a Box as a batch of two."""
    return np.stack([space.low, space.high])


@given(space=float_boxes())
def test_the_ends_are_reached_and_the_inverse_comes_back(space: Box) -> None:
    conversion = ActionConversion(space)
    actions = np.concatenate([_drawn(conversion.agent_space, 40), np.full((1, *conversion.agent_space.shape), -5.0)])
    played = conversion.to_env(actions.astype(np.float32)).reshape(len(actions), -1)
    low, high = space.low.ravel(), space.high.ravel()
    is_closed = np.isfinite(low) & np.isfinite(high)
    np.testing.assert_array_equal(played[:, is_closed].max(axis=0), high[is_closed])
    np.testing.assert_array_equal(played[:, is_closed].min(axis=0), low[is_closed])
    lines = ~np.isfinite(low) & ~np.isfinite(high)
    np.testing.assert_array_equal(played[:, lines], actions[:, lines])
    again = conversion.to_env(conversion.to_agent(played.reshape(len(actions), *space.shape)))
    again = again.reshape(len(actions), -1)
    size = np.maximum(np.abs(np.where(np.isfinite(low), low, 0)), np.abs(np.where(np.isfinite(high), high, 0)))
    np.testing.assert_allclose(again / np.maximum(size, 1), played / np.maximum(size, 1), rtol=1e-5, atol=1e-6)


def test_a_single_end_is_kept_smoothly() -> None:
    space = Box(np.array([2.0, -np.inf], np.float32), np.array([np.inf, -3.0], np.float32))
    conversion = ActionConversion(space)
    line = np.linspace(-12.0, 60.0, 500, dtype=np.float32)
    played = conversion.to_env(np.stack([line, line], axis=1))
    assert (np.diff(played, axis=0) >= 0).all()
    assert played[0, 0] == pytest.approx(2.0, abs=1e-4)
    assert played[-1, 0] == pytest.approx(62.0)
    assert played[-1, 1] == pytest.approx(-3.0, abs=1e-4)
    middle = (line > -6) & (line < 6)
    np.testing.assert_allclose(conversion.to_agent(played)[middle, 0], line[middle], atol=1e-3)
    at_the_ends = conversion.to_agent(np.array([[2.0, -3.0], [1.0, 0.0]], np.float32))
    assert np.isfinite(at_the_ends).all()


FIXED = [
    Box(-2.0, 2.0, (3,)),
    Box([-1, 0, -np.inf, -np.inf, 4, -MOST], [1, np.inf, 3, np.inf, 4, MOST]),
    Box(-MOST, MOST, (2,)),
    Box(-0.1, 0.7, (2,)),
    Box(0, 3, (1,), np.int32),
    Box(-128, 127, (2, 2), np.int8),
    Box(0, 255, (), np.uint8),
    Box(2**32 - 5, 2**32 - 1, (2,), np.uint32),
    Box(-1.0, 1.0, (2,), np.float16),
    Box(-0.1, 0.1, (2,), jnp.bfloat16),
    Discrete(3, start=-1),
    MultiDiscrete([[2, 3], [1, 4]], [[0, 5], [2, -3]]),
    TupleSpace([Discrete(2), MultiDiscrete([3, 2], dtype=np.int8)]),
    DictSpace({"b": Box(-2, 5, (2,)), "a": Box(0, 9, (2, 2), np.int16)}),
]


@pytest.mark.parametrize("space", FIXED, ids=repr)
def test_in_a_program_it_is_the_same(space: Space) -> None:
    conversion = ActionConversion(space)
    actions = _drawn(conversion.agent_space, 50)
    played = jax.jit(jax.vmap(conversion.to_env))(actions)
    assert bool(space.contains(played).all())
    back = jax.jit(conversion.to_agent)(played)
    played = jax.tree.map(np.asarray, played)
    for ours, numpys in zip(jax.tree.leaves(played), leaf_values(space, conversion.to_env(actions)), strict=True):
        assert ours.dtype == numpys.dtype
        scale = np.maximum(1.0, np.abs(numpys.astype(np.float64)).max())
        np.testing.assert_allclose(ours.astype(np.float64) / scale, numpys.astype(np.float64) / scale, atol=1e-6)
    again = conversion.to_agent(played)
    assert np.isfinite(again).all()
    np.testing.assert_allclose(np.asarray(back), again, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", [Box(0, 3, (2,), np.int32), Box(-5, 5, (), np.int8), Box(-3.0, 9.0, (2, 2))])
def test_uniform_actions_of_agents_are_uniform_in_the_environment(space: Box) -> None:
    conversion = ActionConversion(space)
    keys = jax.random.split(jax.random.key(1), 4000)
    played = np.asarray(jax.jit(jax.vmap(lambda key: conversion.to_env(conversion.agent_space.sample(key))))(keys))
    low, high = (int(end.flat[0]) for end in (space.low, space.high))
    count = high - low + (space.dtype != np.float32)
    parts = np.floor((played.astype(np.float64) - low) / (high - low + (space.dtype != np.float32)) * count)
    frequency = np.bincount(parts.astype(int).ravel(), minlength=count) / parts.size
    np.testing.assert_allclose(frequency, 1 / count, atol=0.02)


@pytest.mark.parametrize("space", [Box(-2.0, 2.0, (3,)), Box([-5.0, 0.0], [5.0, 0.5])], ids=repr)
def test_bounded_boxes_cost_no_more_than_their_affine_map(space: Box) -> None:
    jaxpr = jax.make_jaxpr(ActionConversion(space).to_env)(jnp.zeros(space.shape))
    names = [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns]
    assert names == ["jit", "add", "div", "mul", "add"]  # the first one clips


@st.composite
def too_many_whole_numbers(draw: Any) -> Box:
    """Boxes with a dimension of more integers than float32 can tell apart, or beyond 32 bits."""
    dtype = np.dtype(draw(st.sampled_from(["int32", "uint32", "int64", "uint64"])))
    room, shape = np.iinfo(dtype), draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    low = draw(st.integers(room.min, room.max - 2**24))
    return Box(low, draw(st.integers(low + 2**24, room.max)), shape, dtype)


@given(space=st.one_of(too_many_whole_numbers(), st.tuples(BOXES, CHOICES).map(TupleSpace)))
def test_a_space_without_a_conversion_is_of_no_kind_that_an_agent_takes(space: Space) -> None:
    assert action_conversion(space) is None
    with pytest.raises(NoActionConversion) as error:
        ActionConversion(space)
    assert str(error.value) == refusal_of(space)
    assert kind_of(space) is ActionSpaces.OTHERS


@given(space=st.one_of(BOXES, CHOICES))
def test_the_space_of_agents_is_of_a_kind_that_an_agent_takes(space: Space) -> None:
    assert not refusal_of(space)
    assert kind_of(ActionConversion(space).agent_space) in ActionSpaces.DISCRETE_AND_BOXES


@pytest.mark.parametrize(
    ("space", "parts"),
    [
        (
            TupleSpace([Discrete(2), Box(0.0, 1.0, (1,))]),
            ("Discrete, MultiDiscrete, MultiBinary", "Boxes", "TupleSpace"),
        ),
        (MultiDiscrete([200, 200]), ("40,000 combinations", "16,384")),
        (Box(-np.inf, np.inf, (1,), np.int32), ("16,777,216", "4,294,967,296", "Box(0, 100")),
        (Box(0, 2**25, (1,), np.int64), ("16,777,216", "33,554,433", "Box(0, 100")),
        (Box(-(2**62), 2**62, (1,), np.int64), ("16,777,216", "Box(0, 100")),
        (Box(2**40, 2**40 + 5, (1,), np.int64), ("32 bits", "int32")),
        (Box(0.0, 1.0, (0,)), ("at least one number",)),
        (MultiDiscrete(np.zeros(0, int)), ("at least one choice",)),
        (DictSpace({}), ("Discrete, MultiDiscrete, MultiBinary", "Boxes", "DictSpace")),
    ],
    ids=repr,
)
def test_what_no_agent_can_do_is_refused(space: Space, parts: tuple[str, ...]) -> None:
    assert action_conversion(space) is None
    assert kind_of(space) is ActionSpaces.OTHERS
    with raises_naming(NoActionConversion, *parts):
        ActionConversion(space)


@pytest.mark.parametrize(("dtype", "half"), [(np.float64, jnp.float32), (np.int64, jnp.int32), (np.uint64, jnp.uint32)])
def test_jax_gives_the_half_of_64_bits_and_numpy_all(dtype: Any, half: Any) -> None:
    conversion = ActionConversion(Box(0, 3, (2,), dtype))
    ends = np.array([-1.0, 1.0], np.float32)
    for action, expected in ((ends, dtype), (jnp.asarray(ends), half)):
        played = conversion.to_env(action)
        assert played.dtype == expected
        np.testing.assert_array_equal(played, [0, 3])


def test_a_range_of_subnormal_numbers_has_finite_actions() -> None:
    conversion = ActionConversion(Box(0.0, 1e-40, (1,)))
    for action in (np.ones(1, np.float32), jnp.ones(1)):
        np.testing.assert_array_equal(conversion.to_agent(conversion.to_env(action)), [0.0])


def test_conversions_are_compared_by_value() -> None:
    one, other = (ActionConversion(Box(0, 3, (2,), np.int8)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != ActionConversion(Box(0, 4, (2,), np.int8))

"""Spaces: shapes, dtypes, bounds, samples, membership, value equality."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box, DictSpace, Discrete, MultiDiscrete, Space, TupleSpace
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming

KEYS = jax.random.split(jax.random.key(0), 2000)


def samples(space: Space) -> np.ndarray:
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(space.sample))(KEYS))


@pytest.mark.parametrize(
    "space",
    [
        Box(-1.0, 2.0, (3,)),
        Box([0.0, -5.0], [1.0, 5.0]),
        Box(-np.inf, np.inf, (2,)),
        Box([-np.inf, 3.0], [1.0, np.inf]),
        Box(-3e38, 3e38, (2,)),
        Box(0, 255, (4, 2), np.uint8),
        Box(-128, 127, (2,), np.int8),
        Box(-(2**31), 2**31 - 1, (2,), np.int32),
        Box(-np.inf, np.inf, (2,), np.int32),
        Box(0, 1, (2,), np.bool_),
        Box(-1, 1, (2,), jnp.bfloat16),
        Discrete(5),
        Discrete(4, start=-2),
        MultiDiscrete([[2, 3], [1, 4]], start=[[0, -3], [7, 1]]),
        MultiDiscrete([2**32, 2**31], start=[-(2**31), 0]),
        MultiDiscrete([3, 300], dtype=np.int64),
        DictSpace({"b": Discrete(2), "a": Box(0, 1, (2,))}),
        TupleSpace([Discrete(3), Box(0, 1)]),
    ],
    ids=repr,
)
def test_samples_are_elements(space: Space) -> None:
    elements = samples(space)
    for leaf, spec in zip(jax.tree.leaves(elements), jax.tree.leaves(space.spec), strict=True):
        assert leaf.shape == (len(KEYS), *spec.shape)
        assert leaf.dtype == spec.dtype
        assert np.isfinite(leaf.astype(np.float64)).all()
    inside = jax.jit(lambda x, key: (jax.vmap(space.contains)(x), space.contains(space.sample(key))))
    of_elements, of_a_legacy_key = inside(elements, jax.random.PRNGKey(0))
    assert np.all(of_elements)
    assert of_a_legacy_key
    assert space == eval_copy(space)


def eval_copy(space: Space) -> Space:
    """Build an equal space from the space's attributes."""
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(space.sizes.tolist(), space.start.tolist(), space.dtype)
    if isinstance(space, Box):
        return Box(space.low, space.high, space.shape, space.dtype)
    if isinstance(space, Discrete):
        return Discrete(space.n, space.start)
    if isinstance(space, DictSpace):
        return DictSpace(dict(space.spaces))
    return TupleSpace(list(space.spaces))


def test_sample_distributions() -> None:
    np.testing.assert_allclose(samples(Box(-1.0, 3.0)).mean(), 1.0, atol=0.1)
    normal = samples(Box(-np.inf, np.inf))
    np.testing.assert_allclose([normal.mean(), normal.std()], [0.0, 1.0], atol=0.1)
    np.testing.assert_allclose(samples(Box(2.0, np.inf)).mean(), 3.0, atol=0.1)
    np.testing.assert_allclose(samples(Box(-np.inf, 2.0)).mean(), 1.0, atol=0.1)
    pixels = samples(Box(0, 255, (8,), np.uint8))
    assert (pixels.min(), pixels.max()) == (0, 255)
    assert set(samples(Box(-1, 1, (), np.int8))) == {-1, 0, 1}
    assert set(samples(Discrete(3))) == {0, 1, 2}
    wide = samples(Box(-(2**31), 2**31 - 1, (), np.int32))
    assert wide.min() < -(2**30)
    assert wide.max() > 2**30


def test_a_range_of_all_numbers_is_sampled_with_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range of 2**32 numbers draws 32 random bits; other ranges of the same Box keep their samples."""
    mixed = Box([-(2**31), 0, -7], [2**31 - 1, 9, 2**31 - 1], dtype=np.int32)
    span = np.array([2**32 - 1, 10, 2**31 + 7], np.uint32)
    expected = jax.random.randint(KEYS[0], (3,), np.zeros(3, np.uint32), span, jnp.uint32).astype(jnp.int32)
    np.testing.assert_array_equal(mixed.sample(KEYS[0])[1:], (expected + jnp.array([0, 0, -7]))[1:])
    for bits in (0, 2**32 - 1):
        monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype, bits=bits: jnp.full(shape, bits, dtype))
        assert mixed.sample(KEYS[0])[0] == (2**31 - 1 if bits else -(2**31))
        assert Box(0, 2**32 - 1, (), np.uint32).sample(KEYS[0]).item() == bits
        assert MultiDiscrete([2**32], -(2**31)).sample(KEYS[0])[0] == bits - 2**31


FAR = [1e39, 1e300, np.finfo(np.float64).max, np.inf]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("high", [0.0, *FAR])
@pytest.mark.parametrize("far", FAR)
def test_a_bound_beyond_float32_is_none(far: float, high: float, dtype: Any) -> None:
    box = Box(-far, high, (2,), dtype)
    assert box == Box(-np.inf, high if high == 0 else np.inf, (2,), dtype)
    drawn = jax.jit(jax.vmap(box.sample))(KEYS[:50])
    assert np.isfinite(np.asarray(drawn, np.float32)).all()
    assert box.contains(drawn).all()
    assert box == eval_copy(box)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "named"),
    [
        (1e300, 2e300, np.float64, "low=1e+300 excludes every number of float32"),
        (-np.inf, [0.0, -1e39], np.float32, "excludes every number of float32"),
        (np.inf, np.inf, np.float32, "low=inf excludes every number of float32"),
        (1e5, 1e6, np.float16, "low=100000.0 excludes every number of float16"),
        (2**40, 2**40 + 5, np.int32, "low=1099511627776 excludes every number of int32"),
        (-9, -1, np.uint8, "high=-1 excludes every number of uint8"),
    ],
)
def test_a_box_without_a_number_of_its_dtype_is_refused(low: Any, high: Any, dtype: Any, named: str) -> None:
    with pytest.raises(ValueError) as error:
        Box(low, high, dtype=dtype)
    assert named in str(error.value)
    assert "scale or shift the numbers inside the environment" in str(error.value)


def test_64_bits_are_sampled_only_where_32_hold_them() -> None:
    assert Box(-3, 2**31 - 1, (2,), np.int64).sample(KEYS[0]).dtype == np.int32
    for low, high, dtype in ((-(2**62), 2**62, np.int64), (2**31, 2**31 + 4, np.int64), (0, 2**32, np.uint64)):
        with raises_naming(ValueError, "32 bits", "int32"):
            Box(low, high, (2,), dtype).sample(KEYS[0])


def test_contains() -> None:
    box = Box([0.0, -1.0], 1.0)
    assert box.shape == (2,)
    assert box.contains([0.0, 1.0])
    assert not box.contains([0.0, 1.1])
    assert not box.contains([0.0, jnp.nan])
    assert not box.contains([0.0, 0.0, 0.0])
    np.testing.assert_array_equal(box.contains(jnp.array([[0.5, 0.5], [-0.5, 0.5]])), [True, False])
    pixels = Box(0, 255, (2,), np.uint8)
    assert pixels.contains(jnp.array([0, 255]))
    assert not pixels.contains(jnp.array([0, 256]))
    assert not pixels.contains(jnp.array([0.0, 1.0]))
    assert not Discrete(3).contains(3)
    assert not Discrete(3).contains(-1)
    assert not Discrete(3).contains(1.0)
    np.testing.assert_array_equal(Discrete(3, start=-1).contains(jnp.arange(-2, 3)), [False, True, True, True, False])
    assert Discrete(2, start=2**31 - 2).contains(2**31 - 1)
    assert MultiDiscrete([2, 3], start=1).contains([2, 3])
    assert not MultiDiscrete([2, 3], start=1).contains([0, 3])
    both = DictSpace({"a": Discrete(2), "b": box})
    assert both.contains({"a": 1, "b": [0.0, 0.0]})
    assert not both.contains({"a": 2, "b": [0.0, 0.0]})
    assert not both.contains({"a": 1})
    pair = TupleSpace([Discrete(2), Discrete(2)])
    assert pair.contains((1, 1))
    assert not pair.contains((1, 2))
    assert not pair.contains((1,))


INTEGER_DTYPES = [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64]


@pytest.mark.parametrize("is_numpy", [True, False])
@pytest.mark.parametrize(
    ("space", "low", "high"),
    [
        (Discrete(3), 0, 2),
        (Discrete(300, -5), -5, 294),
        (Discrete(2**28, -(2**31)), -(2**31), -(2**31) + 2**28 - 1),
        (Discrete(5, 2**31 - 5), 2**31 - 5, 2**31 - 1),
        (MultiDiscrete([300], -5), -5, 294),
        (MultiDiscrete([2**32], -(2**31)), -(2**31), 2**31 - 1),
        (MultiDiscrete([200], dtype=np.uint8), 0, 199),
        (Box(-5, 300, (1,), np.int32), -5, 300),
        (Box(0, 200, (1,), np.uint8), 0, 200),
        (Box(0, 2**32 - 1, (1,), np.uint32), 0, 2**32 - 1),
        (Box(0, 2**64 - 1, (1,), np.uint64), 0, 2**64 - 1),
    ],
)
def test_integers_of_any_dtype_are_compared_exactly(space: Space, low: int, high: int, is_numpy: bool) -> None:
    numbers = {bound + step for bound in (low, high, 0, 2**7, 2**8, 2**31, 2**32) for step in (-1, 0, 1)}
    for dtype in INTEGER_DTYPES if is_numpy else INTEGER_DTYPES[:5]:
        room = np.iinfo(dtype)
        fitting = sorted(number for number in {*numbers, room.min, room.max} if room.min <= number <= room.max)
        x: Any = np.array(fitting, dtype).reshape(-1, *space.shape)
        expected = [low <= number <= high for number in fitting]
        np.testing.assert_array_equal(space.contains(x if is_numpy else jnp.asarray(x)), expected, str(np.dtype(dtype)))


def test_bfloat16_is_a_float_dtype() -> None:
    assert Box(-1, 1, (), jnp.bfloat16).contains(0.5)
    assert not Box(0, 1, (), np.int8).contains(jnp.bfloat16(0.5))


def test_value_equality() -> None:
    assert len({Box(0, 1, (2,)), Box(0, [1, 1]), Box(np.zeros(2), 1)}) == 1
    assert Box(0, 1, (2,)) != Box(0, 1, (3,))
    assert Box(0, 1, (2,)) != Box(0, 2, (2,))
    assert Box(0, 1, (2,)) != Box(0, 1, (2,), np.uint8)
    assert Discrete(2) != Discrete(3)
    assert Discrete(2, start=1) != Discrete(2)
    assert MultiDiscrete([2, 2]) != Box(0, 1, (2,), np.int32)  # labels, not quantities
    assert DictSpace({"a": Discrete(2), "b": Discrete(3)}) == DictSpace({"b": Discrete(3), "a": Discrete(2)})
    assert TupleSpace([Discrete(2)]) != TupleSpace([Discrete(2), Discrete(2)])
    assert Discrete(2) != "Discrete(2)"


def test_containers() -> None:
    space = DictSpace({"pos": Box(0, 1, (2,)), "id": TupleSpace([Discrete(4)])})
    assert space["pos"].shape == (2,)
    assert space["id"][0] == Discrete(4)
    assert space.shape == {"pos": (2,), "id": ((),)}
    assert space.dtype.pos == np.float32
    assert space["id"].dtype == (np.int32,)
    assert space["id"].shape == ((),)
    zeros = space.zeros((3,))
    assert isinstance(zeros, PyTreeDict)
    assert zeros.pos.shape == (3, 2)
    assert zeros.id[0].dtype == jnp.int32


def test_bounds_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Box(0, 1, (2,)).low[0] = 5


def test_bounds_are_numpy_arrays() -> None:
    box = Box(-jnp.ones(2), jnp.ones(2))
    assert type(box.low) is type(box.high) is np.ndarray
    assert box == Box(-1.0, 1.0, (2,))
    with raises_naming(ValueError, "Box", "traced array", "high"):
        jax.eval_shape(lambda high: Box(0.0, high).sample(jax.random.key(0)), jnp.ones(2))


def test_bad_arguments() -> None:
    with raises_naming(ValueError, "Box", "low <= high"):
        Box(1, 0)
    with raises_naming(ValueError, "broadcast", "(3,)"):
        Box(np.zeros(2), 1, (3,))
    with raises_naming(ValueError, "NaN"):
        Box(np.nan, 1)
    for dtype in ("U3", "complex64", "object", "f4,f4", "M8[s]"):
        with raises_naming(ValueError, "Box", "real dtype", f"got {dtype!r}"):
            Box(0, 1, dtype=dtype)
    with raises_naming(ValueError, "Discrete", "n=0"):
        Discrete(0)
    with raises_naming(ValueError, "limit of 268,435,456"):
        Discrete(2**31)
    with raises_naming(ValueError, "Discrete", "int32", 2**31):
        Discrete(2, start=2**31 - 1)
    with raises_naming(ValueError, "int32", "MultiDiscrete([8589934592]"):
        MultiDiscrete([2**33])
    for sizes, start, dtype in (
        ([2**33], 0, np.int64),
        ([2**63 - 1], 9, np.int64),
        ([3, 2], [1, 2**31 - 1], np.uint32),
    ):
        with raises_naming(ValueError, "MultiDiscrete", "int"):
            MultiDiscrete(sizes, start, dtype)
    with raises_naming(ValueError, "MultiDiscrete", "int32", "start near 0"):
        MultiDiscrete([2**33], dtype=np.int64)
    with raises_naming(ValueError, "at least one value", "[2, 0]"):
        MultiDiscrete([2, 0])


@pytest.mark.parametrize("number", [2.7, np.float32(2.5), np.nan, np.inf, True, np.bool_(True), "3"])
def test_fractions_are_refused_as_sizes(number: Any) -> None:
    for make in (
        lambda: Discrete(number),
        lambda: Discrete(3, number),
        lambda: MultiDiscrete([number]),
        lambda: MultiDiscrete([2, 3], number),
        lambda: Box(0, 1, (number,)),
    ):
        with raises_naming(ValueError, "integers", "got"):
            make()


@pytest.mark.parametrize("number", [3, 3.0, np.int64(3), np.float32(3), np.array(3), jnp.array(3)])
def test_integers_of_any_type_are_sizes(number: Any) -> None:
    assert Discrete(number, number) == Discrete(3, 3)
    assert MultiDiscrete([number], number) == MultiDiscrete([3], 3)
    assert Box(0, 1, (number,)) == Box(0, 1, (3,))


def test_is_bounded() -> None:
    assert Box(0, 1).is_bounded
    assert not Box(0, np.inf).is_bounded
    assert Box(0, np.inf, dtype=np.int32).is_bounded


@pytest.mark.parametrize("shape", [[10**12], [10**9, 10**9], [2**15, 2**14], [10**400]])
def test_shapes_that_fit_no_memory_are_refused_before_bounds_are_made(shape: list[int]) -> None:
    with raises_naming(ValueError, shape, "268,435,456"):
        Box(0, 1, shape)
    with raises_naming(ValueError, "268,435,456"):
        Discrete(shape[0] if len(shape) == 1 else 10**9)


def test_negative_sizes_are_refused() -> None:
    with raises_naming(ValueError, "at least 0", "[-1]"):
        Box(0, 1, [-1])
    with raises_naming(ValueError, "Discrete", "n=-1"):
        Discrete(-1)


@pytest.mark.parametrize("name", ["items", "pop", 1])
def test_names_that_a_dict_cannot_have_are_refused(name: Any) -> None:
    with raises_naming(ValueError, f"entry {name!r}", f"'{name}_'"):
        DictSpace({name: Box(0.0, 1.0, (1,))})

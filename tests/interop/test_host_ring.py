from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from evorl.interop.host_ring import DrawsAhead, HostRing
from evorl.types import PyTreeDict


def _ring(num_envs: int = 1) -> HostRing:
    spec = PyTreeDict(
        number=jax.ShapeDtypeStruct((), jnp.int32),
        parts=(jax.ShapeDtypeStruct((3,), jnp.bfloat16), jax.ShapeDtypeStruct((2, 1), jnp.bool_)),
    )
    return HostRing(4, num_envs, spec)


def _transitions(*numbers: int) -> PyTreeDict:
    number = np.array(numbers, np.int32)
    halves = np.repeat(number[:, None] / 2, 3, axis=1).astype(ml_dtypes.bfloat16)
    return PyTreeDict(number=number, parts=(halves, np.full((len(number), 2, 1), True)))


@pytest.mark.parametrize("chunks", [[3, 1], [2, 2, 2], [4, 3], [9], [1, 11, 1]])
def test_the_newest_rows_are_in_the_ring(chunks: list[int]) -> None:
    ring, total = _ring(), 0
    for chunk in chunks:
        leaves = ring.matching_leaves(_transitions(*range(total, total + chunk)))
        assert leaves is not None
        ring.add(leaves)
        total += chunk
    assert (ring.size, ring.cursor) == (4, total % 4)
    newest = np.arange(total - 4, total)
    batch = ring.take((newest % 4).astype(np.int32))
    np.testing.assert_array_equal(batch.number, newest)
    np.testing.assert_array_equal(batch.parts[0][:, 1], (newest / 2).astype(ml_dtypes.bfloat16))
    assert batch.parts[1].all()
    assert batch.indices.tolist() == (newest % 4).tolist()


def test_a_batch_is_a_copy() -> None:
    ring = _ring()
    ring.add(ring.matching_leaves(_transitions(1, 2)) or [])
    batch = ring.take(np.array([0], np.int32))
    batch.number[0] = 7
    assert ring.take(np.array([0], np.int32)).number[0] == 1


def test_entries_are_replaced_at_indices_of_several_environments() -> None:
    spec = PyTreeDict(a=jax.ShapeDtypeStruct((2,), jnp.float32))
    ring = HostRing(3, 2, spec)
    ring.add([np.zeros((3, 2, 2), np.float32)])
    ring.replace(np.array([3], np.int32), {"a": np.array([[1.0, 2.0]])})
    assert ring.state.data.a.tolist() == [[[0, 0], [0, 0]], [[0, 0], [1, 2]], [[0, 0], [0, 0]]]


def test_only_arrays_of_the_stored_kinds_are_taken_as_they_are() -> None:
    ring, fitting = _ring(), _transitions(1, 2)
    assert ring.matching_leaves(fitting) is not None
    others: dict[str, Any] = {
        "no array": fitting.replace(number=[1, 2]),
        "dtype": fitting.replace(number=np.arange(2.0)),
        "shape": fitting.replace(number=np.zeros((2, 1), np.int32)),
        "length": fitting.replace(number=np.zeros(3, np.int32)),
        "scalar": fitting.replace(number=np.int32(1)),
        "structure": PyTreeDict(number=fitting.number),
    }
    assert [name for name, other in others.items() if ring.matching_leaves(other) is not None] == []
    flat = HostRing(4, 1, PyTreeDict(a=jax.ShapeDtypeStruct((), jnp.int32)))
    assert flat.matching_leaves(PyTreeDict(b=np.zeros(1, np.int32))) is None
    assert flat.matching_leaves({"a": np.zeros(1, np.int32)}) is None


@pytest.mark.parametrize("span", [1, 2, 3, 1000, 2**16 - 1, 2**16, 2**16 + 1, 100_003, 2**31 - 1])
def test_numbers_drawn_ahead_are_those_of_jax(span: int) -> None:
    key = jax.random.key(3)
    draws = DrawsAhead(key)
    for call, num_batches, num in ((0, 1, 32), (1, 1, 32), (1, 3, 5), (5000, 1, 32), (2, 1, 70_000)):
        keys = jax.random.split(jax.random.fold_in(key, call), num_batches)
        expected = [jax.random.randint(batch_key, (num,), 0, span) for batch_key in keys]
        drawn = draws.integers(call, num_batches, num, span)
        np.testing.assert_array_equal(drawn, np.stack(expected))
        assert drawn.dtype == np.int32

"""Structures of states: described, compared, reduced to plain arrays and restored."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.runs.structure import LARGE, LeafSpec, describe_structure, explain_difference, pack, unpack
from evorl.types import PyTreeDict

STATE = PyTreeDict(
    key=jax.random.key(0), params=PyTreeDict(w=jnp.zeros((2, 3), jnp.bfloat16)), none=None, n=3, empty=jnp.zeros((0, 2))
)


def test_arrays_and_their_shapes_read_alike() -> None:
    specs = describe_structure(STATE)
    assert specs == describe_structure(jax.eval_shape(lambda: STATE))
    assert {spec.path: str(spec) for spec in specs} == {
        "empty": "float32[0, 2]",
        "key": "key<fry>[]",
        "n": "int32[]",
        "params/w": "bfloat16[2, 3]",
    }
    assert [spec.path for spec in specs if spec.is_key] == ["key"]
    assert [spec.path for spec in specs if spec.is_empty] == ["empty"]


def test_a_spec_survives_json() -> None:
    for spec in describe_structure(STATE):
        assert LeafSpec.from_json(spec.to_json()) == spec


def test_a_single_array_has_a_name_too() -> None:
    assert describe_structure(jnp.zeros(2))[0].path == "state"


def test_only_the_first_few_differences_are_named() -> None:
    message = explain_difference([], describe_structure({f"w{i}": jnp.zeros(1) for i in range(8)}))
    assert message == "8 missing: w0, w1, w2, w3, w4 and 3 more"
    assert explain_difference(describe_structure(STATE), describe_structure(STATE)) is None


def test_paths_that_read_alike_stay_apart() -> None:
    specs = describe_structure({"a/b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}})
    assert len({spec.path for spec in specs}) == 2


def test_small_leaves_are_packed_without_keys_and_nothing_empty() -> None:
    arrays, offsets = pack(STATE)
    assert set(arrays) == {"small"}
    assert offsets == {"key": 0, "n": 8, "params/w": 12}
    assert arrays["small"].nbytes == 8 + 4 + 12


def test_large_arrays_stay_on_their_devices() -> None:
    large = jnp.zeros(LARGE // 4)
    arrays, offsets = pack({"x": large})
    assert arrays["large/x"] is large
    assert offsets == {}


def test_leaves_come_back_from_packed_arrays() -> None:
    arrays, offsets = pack(STATE)
    for spec, leaf in zip(describe_structure(STATE), jax.tree.leaves(STATE), strict=True):
        restored = unpack(spec, leaf, arrays, offsets.get(spec.path))
        if spec.is_key:
            assert restored.dtype == leaf.dtype
            restored, leaf = jax.random.key_data(restored), jax.random.key_data(leaf)
        np.testing.assert_array_equal(restored, leaf)


def test_a_state_of_nothing_packs_to_nothing() -> None:
    assert pack({"empty": jnp.zeros((0, 2)), "none": None}) == ({}, {})

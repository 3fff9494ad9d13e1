from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.trees import (
    concatenate_trees,
    entries_of,
    finite_rows,
    flatten_leading_axes,
    merged,
    named_leaves,
    num_rows,
    split_leading_axis,
    stack_trees,
    tree_where,
    with_leaves,
    zeros_where,
)
from tests.support.errors import raises_naming
from tests.support.small_workflows import small


def test_tree_where_chooses_rows_of_any_rank_and_dtype() -> None:
    mask = jnp.array([True, False])
    ones = {"a": jnp.ones((2, 3)), "b": jnp.ones(2, jnp.uint8), "key": jax.random.split(jax.random.key(0), 2)}
    zeros = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(2, jnp.uint8), "key": jax.random.split(jax.random.key(1), 2)}
    result = tree_where(mask, ones, zeros)
    np.testing.assert_array_equal(result["a"], [[1, 1, 1], [0, 0, 0]])
    assert result["b"].dtype == jnp.uint8
    np.testing.assert_array_equal(jax.random.key_data(result["key"][0]), jax.random.key_data(ones["key"][0]))
    np.testing.assert_array_equal(jax.random.key_data(result["key"][1]), jax.random.key_data(zeros["key"][1]))


def test_tree_where_with_a_scalar_chooses_the_whole_tree() -> None:
    np.testing.assert_array_equal(tree_where(jnp.array(True), jnp.ones(3), jnp.zeros(3)), 1.0)
    assert tree_where(False, 1.0, 2.0) == 2.0


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_rows_are_chosen_at_any_rank(rank: int) -> None:
    mask, shape = jnp.array([False, True, True]), (3, 2, 4, 5)[:rank]
    a, b = jax.random.normal(jax.random.key(0), shape), jax.random.normal(jax.random.key(1), shape)
    m = mask.astype(jnp.float32).reshape(3, *[1] * (rank - 1))
    np.testing.assert_array_equal(tree_where(mask, b, a), (1 - m) * a + m * b)


def test_trees_are_joined_on_the_host_and_in_traces() -> None:
    tree = {"r": np.arange(100.0), "obs": np.ones((10, 3), np.uint8)}
    shapes = {name: jax.tree.map(np.shape, join([tree, tree])) for name, join in _JOINS.items()}
    assert shapes == {"stack": {"r": (2, 100), "obs": (2, 10, 3)}, "concatenate": {"r": (200,), "obs": (20, 3)}}
    for join in _JOINS.values():
        joined = join([tree, tree])
        assert all(type(leaf) is np.ndarray for leaf in joined.values())
        assert joined["obs"].dtype == np.uint8
        traced = jax.jit(lambda tree, join=join: join([tree, tree]))(tree)
        jax.tree.map(np.testing.assert_array_equal, traced, joined)
    np.testing.assert_array_equal(concatenate_trees([{"a": np.eye(2)}, {"a": np.eye(2)}], axis=1)["a"][1], [0, 1, 0, 1])


_JOINS = {"stack": stack_trees, "concatenate": concatenate_trees}


def test_dicts_are_merged_unless_a_name_stands_twice() -> None:
    assert merged({"a": 1}, {"b": {"c": 2}}) == {"a": 1, "b": {"c": 2}}
    assert merged({"a": 1}, {"b": {"c": 2}}).b.c == 2
    with raises_naming(ValueError, "a, b", "rename"):
        merged({"b": 1, "a": 1}, {"a": 1, "b": 2, "c": 3})


def test_rows_become_zeros() -> None:
    tree = {"a": jnp.ones((2, 3, 4)), "count": jnp.ones((2, 3), jnp.int32)}
    where = jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    zeroed = zeros_where(where, tree)
    np.testing.assert_array_equal(zeroed["count"], 1 - where.astype(jnp.int32))
    np.testing.assert_array_equal(zeroed["a"], jnp.broadcast_to(1.0 - where[..., None], (2, 3, 4)))
    assert zeroed["count"].dtype == jnp.int32


def test_axes_are_joined_and_split() -> None:
    tree = {"a": jnp.arange(24).reshape(2, 3, 4), "b": jnp.arange(6).reshape(2, 3)}
    flat = flatten_leading_axes(tree)
    assert jax.tree.map(jnp.shape, flat) == {"a": (6, 4), "b": (6,)}
    assert num_rows(flat) == 6
    for sizes in ((2, 3), (2, -1), (-1, 3)):
        jax.tree.map(np.testing.assert_array_equal, split_leading_axis(flat, *sizes), tree)


def test_impossible_requests_are_refused_in_words() -> None:
    with raises_naming(ValueError, "6 rows", "(4, -1)"):
        split_leading_axis(jnp.zeros(6), 4, -1)
    with raises_naming(ValueError, "6 rows", "(2, 2)"):
        split_leading_axis(jnp.zeros(6), 2, 2)
    with raises_naming(ValueError, "leaves"):
        num_rows({})


def test_leaves_by_their_names() -> None:
    workflow = small("ppo")
    leaves = named_leaves(workflow)
    assert leaves["agent.clip_epsilon"] == workflow.agent.clip_epsilon
    assert leaves["discount"] == 0.99
    assert "num_envs" not in leaves
    other = with_leaves(workflow, {"agent.clip_epsilon": 0.5, "discount": 0.9, "nothing": 1.0})
    assert (other.agent.clip_epsilon, other.discount) == (0.5, 0.9)
    assert jax.tree.structure(other) == jax.tree.structure(workflow)
    assert named_leaves(other) == leaves | {"agent.clip_epsilon": 0.5, "discount": 0.9}
    assert named_leaves({"a": [1, {"b": 2}]}) == {"a.0": 1, "a.1.b": 2}


def test_entries_by_their_names() -> None:
    tree = {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4, "ab": 5}
    assert entries_of(tree, ["a.b.c", "f", "a.e"]) == {"a": {"b": {"c": 1}, "e": 3}, "f": 4}
    assert entries_of(tree, ("a", "ab")) == {"a": tree["a"], "ab": 5}
    assert entries_of(tree, []) == {}


def test_rows_of_finite_numbers() -> None:
    tree = {"a": jnp.zeros((2, 3, 2)).at[0, 1, 1].set(jnp.nan), "b": jnp.zeros((2, 3)).at[1, 2].set(-jnp.inf)}
    tree["whole numbers"] = jnp.ones((2, 3, 1, 4), jnp.uint8)
    np.testing.assert_array_equal(finite_rows(tree, 2), [[True, False, True], [True, True, False]])
    np.testing.assert_array_equal(finite_rows(tree["b"]), [True, False])

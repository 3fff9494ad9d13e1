"""Containers: access, tree structure, immutability, static fields and data fields."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.types import (
    Entry,
    PyTreeData,
    PyTreeDict,
    PyTreeNode,
    State,
    check_entries,
    declared_entries,
    is_entry_name,
    pytree_field,
)
from tests.support.errors import raises_naming


def _double(x: float) -> float:
    return 2 * x


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Bar(PyTreeData):
    a: jax.Array
    b: int = pytree_field(static=True, default=1)


class Part(PyTreeNode):
    size: int
    rate: float = 0.5
    name: str | None = None
    mode: Mode = Mode.FAST
    sizes: tuple[int, ...] = (1, 2)
    fn: Callable[[float], float] = _double
    weights: jax.Array | None = None
    derived: int = pytree_field(static=True, init=False)

    def __post_init__(self) -> None:
        self.derived = self.size * 10


class SubPart(Part):
    extra: float = 1.0


# PyTreeDict


def test_dict_attribute_and_key_access_agree() -> None:
    d = PyTreeDict({"a": 1}, b=2)
    d.c = 3
    assert (d["a"], d.b, d["c"]) == (1, 2, 3)
    d.update(a=10)
    assert d.a == 10
    del d.a
    assert "a" not in d
    assert not hasattr(d, "a")
    assert d.pop("b") == 2
    with raises_naming(AttributeError, "'b'", "available: c"):
        _ = d.b
    with raises_naming(AttributeError, "'b'", "delete"):
        del d.b
    assert d.setdefault("e", {"f": 1}).f == 1
    d |= {"g": {"h": 2}}
    assert (d | {"i": {"j": 3}}).i.j == 3
    assert d.g.h == 2


def test_dict_converts_nested_mappings_everywhere() -> None:
    d = PyTreeDict(a={"b": {"c": 1}}, items_list=[{"x": 1}], pair=({"y": 2},))
    assert d.a.b.c == 1
    assert d.items_list[0].x == 1
    assert d.pair[0].y == 2


@pytest.mark.parametrize("key", [*dir(PyTreeDict), 3])
def test_dict_refuses_keys_that_shadow_methods(key) -> None:
    assert not is_entry_name(key)
    with raises_naming(AttributeError, repr(key), "attribute of PyTreeDict" if isinstance(key, str) else "strings"):
        PyTreeDict()[key] = 1


def test_dict_structure_does_not_depend_on_order() -> None:
    first, second = PyTreeDict(a=1, b={"x": 2, "y": 3}), PyTreeDict(b={"y": 3, "x": 2}, a=1)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert jax.tree.leaves(first) == [1, 2, 3]
    doubled = jax.tree.map(lambda x: 2 * x, first)
    assert type(doubled) is PyTreeDict
    assert doubled.b.y == 6
    assert jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(first)[1][0]) == "['b']['x']"


def test_dict_replace_and_copies() -> None:
    d = PyTreeDict(a=1, b={"c": 2})
    assert d.replace(a=5).a == 5
    assert d.a == 1
    with raises_naming(AttributeError, "replace z", "available: a, b"):
        d.replace(z=1)
    for other in (copy.copy(d), d.copy(), copy.deepcopy(d)):
        other.a = 7
        assert type(other) is PyTreeDict
        assert d.a == 1


def test_state_stays_a_state_through_jit() -> None:
    result = jax.jit(lambda s: s.replace(n=s.n + 1))(State(n=jnp.array(1), m={"k": jnp.array(2)}))
    assert type(result) is State
    assert int(result.n) == 2
    assert type(result.m) is PyTreeDict


# PyTreeData


def test_data_is_frozen_and_replaceable() -> None:
    bar = Bar(a=jnp.ones((3, 4)), b=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bar.a = jnp.zeros((3, 4))  # pyright: ignore[reportAttributeAccessIssue]
    new_bar = bar.replace(a=jnp.zeros((3, 4)))
    assert new_bar.b == 5
    assert new_bar.a.sum() == 0
    assert bar.a.sum() == 12
    with raises_naming(TypeError, "nonsense"):
        bar.replace(nonsense=1)


def test_static_fields_of_data_are_structure() -> None:
    assert jax.tree.leaves(Bar(a=1.0, b=2)) == [1.0]
    assert jax.tree.structure(Bar(a=1.0, b=2)) != jax.tree.structure(Bar(a=1.0, b=3))
    assert jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(Bar(a=1.0))[0][0]) == ".a"


# PyTreeNode


def test_node_fields_are_static_by_annotation() -> None:
    node = Part(size=3, weights=jnp.ones(2))
    assert len(jax.tree.leaves(node)) == 2  # rate and weights
    assert node.derived == 30
    assert len(jax.tree.leaves(SubPart(size=3))) == 2  # rate and extra
    assert jax.tree.structure(Part(size=3)) != jax.tree.structure(Part(size=4))


def test_an_annotation_that_cannot_be_evaluated_is_an_error_where_it_would_decide() -> None:
    with raises_naming(TypeError, "Undecided.sizes", "NotImported", "static="):

        class Undecided(PyTreeNode):
            sizes: tuple[NotImported, ...]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    class Declared(PyTreeNode):
        sizes: NotImported = pytree_field(static=True)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        shared: ClassVar[NotImported]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    assert jax.tree.leaves(Declared(sizes=(1, 2))) == []


def test_node_is_immutable_after_construction() -> None:
    node = Part(size=3)
    with raises_naming(dataclasses.FrozenInstanceError, "replace"):
        node.size = 4
    with raises_naming(dataclasses.FrozenInstanceError, "size", "deleted"):
        del node.size
    assert node.replace(size=4).derived == 40
    assert node.derived == 30


def test_changed_numbers_do_not_recompile_and_equal_structure_shares_a_program() -> None:
    traces = []

    @jax.jit
    def use(node: Part) -> jax.Array:
        traces.append(node.size)
        return jnp.asarray(node.fn(node.rate) * node.size)

    assert use(Part(size=3, rate=0.5)) == 3.0
    assert use(Part(size=3, rate=1.0)) == 6.0
    assert use(Part(size=3, sizes=[1, 2])) == 3.0  # pyright: ignore[reportArgumentType]
    assert traces == [3]
    assert use(Part(size=4)) == 4.0
    assert traces == [3, 4]


def test_node_can_be_mapped_over_batched_numbers() -> None:
    nodes = Part(size=2, rate=jnp.array([1.0, 2.0]))  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(jax.vmap(lambda node: node.rate * node.size)(nodes), [2.0, 4.0])


def test_node_refuses_what_it_cannot_hold() -> None:
    with raises_naming(TypeError, "Part.weights", "function", "static=True"):
        Part(size=3, weights=_double)  # pyright: ignore[reportArgumentType]
    with raises_naming(TypeError, "Part.name", "hashable", "got dict"):
        Part(size=3, name={})  # pyright: ignore[reportArgumentType]


def test_lists_in_static_fields_become_tuples() -> None:
    assert Part(size=1, sizes=[4, 5]).sizes == (4, 5)  # pyright: ignore[reportArgumentType]


class Declared(State):
    """A state with a row per environment, and an entry that may be absent."""

    rows: Annotated[jax.Array, Entry(axis=1)]
    count: jax.Array
    extra: Annotated[jax.Array, Entry(optional=True)]


class DeclaredFurther(Declared):
    more: jax.Array


def test_a_state_declares_its_entries() -> None:
    expected = {"rows": Entry(axis=1), "count": Entry(), "extra": Entry(optional=True)}
    assert declared_entries(Declared) == expected
    assert declared_entries(DeclaredFurther) == expected | {"more": Entry()}
    assert declared_entries(State) == {}


def test_a_state_of_a_class_stays_one() -> None:
    """A state keeps its class through updates and JAX transformations, and its leaves keep their paths."""
    state = Declared(rows=jnp.ones((2, 3)), count=jnp.zeros(()))
    others = [state.replace(count=jnp.ones(())), state | {"extra": jnp.ones(())}, copy.deepcopy(state)]
    others.append(jax.jit(lambda state: state)(state))
    assert [type(x) for x in others] == [Declared] * 4
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    assert paths == [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(State(state))]


def test_missing_and_undeclared_entries_are_errors() -> None:
    state = Declared(rows=jnp.ones((2, 3)), count=jnp.zeros(()))
    assert check_entries(state) is state
    assert check_entries(state | {"extra": jnp.ones(())}).extra == 1.0
    with raises_naming(TypeError, "DeclaredFurther", "lacks more", "count, extra, more, rows"):
        check_entries(DeclaredFurther(state))
    with raises_naming(TypeError, "Declared", "counts", "count, extra, rows"):
        check_entries(state | {"counts": jnp.ones(())})
    assert check_entries(State(anything=1)).anything == 1

"""Every kind of crossover and mutation by name, with the stated probability per pair and individual."""

from __future__ import annotations

import typing

import jax
import numpy as np
import pytest

from evorl.ec.operators import crossover, mutation
from evorl.ec.operators.variation import Crossover, Mutation
from evorl.types import PyTreeNode
from tests.support.key_record import KeyRecord
from tests.support.populations import SIZE, population

ROWS = 2000


def kinds(cls: type[PyTreeNode]) -> tuple[str, ...]:
    return typing.get_args(typing.get_type_hints(cls)["kind"])


def changed_rows(before: typing.Any, after: typing.Any) -> np.ndarray:
    pairs = zip(*(map(np.asarray, jax.tree.leaves(tree)) for tree in (before, after)), strict=True)
    rows = [(a != b).reshape(len(a), -1).any(axis=1) for a, b in pairs]
    return np.stack(rows).any(axis=0)


@pytest.mark.parametrize("kind", kinds(Crossover))
def test_stated_share_of_pairs_is_crossed(kind: str) -> None:
    first, second = population(0, ROWS), population(1, ROWS)
    children = jax.jit(Crossover.children)(Crossover(kind=kind, probability=0.3), jax.random.key(0), first, second)
    crossed = changed_rows(first, children[0])
    np.testing.assert_array_equal(crossed, changed_rows(second, children[1]))
    assert abs(crossed.mean() - 0.3) < 5 * 0.5 / np.sqrt(ROWS)


@pytest.mark.parametrize("kind", kinds(Mutation))
def test_stated_share_of_individuals_is_changed(kind: str) -> None:
    before = population(0, ROWS)
    mutation = Mutation(kind=kind, probability=0.3, share=0.5)
    after = jax.jit(Mutation.mutants)(mutation, jax.random.key(0), before)
    assert abs(changed_rows(before, after).mean() - 0.3) < 5 * 0.5 / np.sqrt(ROWS)


def test_kinds_are_the_functions_with_the_fields_as_settings() -> None:
    first, second, key = population(0), population(1), jax.random.key(0)
    drawn = jax.random.split(key)[1]
    crossings = {
        "uniform": crossover.uniform_crossover(drawn, first, second, 0.2),
        "units": crossover.uniform_crossover(drawn, first, second, 0.2, whole_units=True),
        "one_point": crossover.one_point_crossover(drawn, first, second),
        "simulated_binary": crossover.simulated_binary_crossover(drawn, first, second, 3.0, 0.2),
    }
    for kind in kinds(Crossover):
        children = Crossover(kind=kind, probability=1.0, share=0.2, eta=3.0).children(key, first, second)
        jax.tree.map(np.testing.assert_array_equal, children, crossings[kind])
    mutations = {
        "gaussian": mutation.gaussian_mutation(drawn, first, 0.7, 0.3),
        "relative": mutation.gaussian_mutation(drawn, first, 0.7, 0.3, relative=True),
        "erl": mutation.erl_mutation(
            drawn, first, 0.7, 0.3, super_scale=5.0, reset_scale=2.0, super_probability=0.2, reset_probability=0.1
        ),
        "polynomial": mutation.polynomial_mutation(drawn, first, 0.7, 0.3, eta=4.0),
    }
    settings = {"share": 0.7, "scale": 0.3, "super_scale": 5.0, "reset_scale": 2.0, "eta": 4.0}
    settings |= {"super_probability": 0.2, "reset_probability": 0.1}
    for kind in kinds(Mutation):
        mutants = Mutation(kind=kind, **settings).mutants(key, first)
        jax.tree.map(np.testing.assert_array_equal, mutants, mutations[kind])


@pytest.mark.parametrize("node", [Crossover(kind=kind) for kind in kinds(Crossover)] + [Mutation(kind="erl")])
def test_no_key_is_used_twice(node: Crossover | Mutation) -> None:
    record = KeyRecord()
    if isinstance(node, Crossover):
        record.run(node.children, jax.random.key(0), population(0), population(1))
    else:
        record.run(node.mutants, jax.random.key(0), population(0))
    assert len(record.consumed) > SIZE
    assert not record.misused()


def test_numbers_are_leaves() -> None:
    mutation = Mutation(kind="gaussian")
    batch = mutation.replace(scale=np.array([0.0, 1.0], np.float32))
    axes = jax.tree.map(lambda _: None, mutation).replace(scale=0)
    before = population(0)
    after = jax.jit(jax.vmap(Mutation.mutants, in_axes=(axes, None, None)))(batch, jax.random.key(0), before)
    same, other = np.asarray(after["kernel"])
    kernel = np.asarray(before["kernel"])
    np.testing.assert_array_equal(same, kernel)
    assert (other != kernel).all()

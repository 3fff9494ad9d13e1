"""Inlined programs: calls, random numbers as arguments, and logits of discrete choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.distributions import Categorical, Normal
from evorl.export.inlined_program import NORMAL, RANDOM, UNIFORM, Draw, Opened, computed, walk
from tests.support.errors import raises_naming

ROW = jax.ShapeDtypeStruct((3,), np.float32)


def test_draws_become_arguments() -> None:
    def fn(x: jax.Array) -> list[jax.Array]:
        first, second, unused = jax.random.split(jax.random.key(0), 3)
        jax.random.normal(unused, (100,))
        return [Normal(x, jnp.float32(2.0)).sample(first), jax.random.uniform(second, (2,), minval=1.0, maxval=5.0)]

    opened = Opened(fn, [ROW])
    assert opened.draws == [Draw(NORMAL, (3,), np.float32), Draw(UNIFORM, (2,), np.float32)]
    x = jnp.arange(3.0)
    (normal, uniform), _ = opened([x], [jnp.ones(3), jnp.asarray([0.0, 0.5])])
    np.testing.assert_allclose(normal, x + 2.0)
    np.testing.assert_allclose(uniform, [1.0, 3.0])


def test_drawn_choices_are_those_of_their_probabilities() -> None:
    opened = Opened(lambda x: [Categorical(x).sample(jax.random.key(1))], [ROW])
    assert [draw.kind for draw in opened.draws] == [UNIFORM]
    logits = jnp.log(jnp.asarray([0.2, 0.5, 0.3]))
    noise = np.random.default_rng(0).random((20_000, 3), np.float32)
    chosen = jax.jit(jax.vmap(lambda u: opened([logits], [u])[0][0]))(noise)
    np.testing.assert_allclose(np.bincount(chosen) / len(noise), [0.2, 0.5, 0.3], atol=0.02)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32])
def test_drawn_integers_have_equal_chances(dtype: Any) -> None:
    low = 0 if dtype == np.uint32 else -1
    opened = Opened(lambda x: [jax.random.randint(jax.random.key(0), (4,), low, low + 3, dtype)], [ROW])
    assert opened.draws == [Draw(UNIFORM, (4,), np.float32)]
    (chosen,), _ = opened([jnp.zeros(3)], [jnp.asarray([0.0, 0.34, 0.99999994, 1.0], jnp.float32)])
    assert chosen.dtype == dtype
    np.testing.assert_array_equal(chosen, [low, low + 1, low + 2, low + 2])


KEY = jax.random.key(3)


@pytest.mark.parametrize(
    "sample",
    [
        lambda x: x + jax.random.bits(KEY, (3,)),
        lambda x: x + jax.random.permutation(KEY, 3),
        lambda x: jax.random.gamma(KEY, x),
        lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x + jax.random.uniform(jax.random.fold_in(KEY, i)), x),
        lambda x: x + jax.random.key_data(KEY).sum(),
    ],
    ids=["bits", "permutation", "gamma", "loop", "data"],
)
def test_a_result_of_other_random_numbers_is_known(sample: Callable[[jax.Array], jax.Array]) -> None:
    greedy_and_sampled = jax.jit(lambda x: (x * 2, sample(x)))
    origins = Opened(lambda x, y: [*greedy_and_sampled(x), y + jax.random.uniform(KEY, (3,), maxval=x)], [ROW, ROW])
    assert origins.origins() == [{0}, {0, RANDOM}, {0, 1}]


def test_a_choice_tells_what_it_was_chosen_from() -> None:
    def fn(x: jax.Array) -> list[jax.Array]:
        return [jnp.argmax(jax.nn.relu(x[None]), axis=-1).astype(jnp.uint32)[0], x]

    _, chosen_from = Opened(fn, [ROW])([jnp.asarray([-1.0, 2.0, 1.0])], [])
    np.testing.assert_array_equal(chosen_from[0], [[0.0, 2.0, 1.0]])
    assert chosen_from[1] is None


def test_what_results_depend_on() -> None:
    def fn(x: jax.Array, y: jax.Array, z: jax.Array) -> list[jax.Array]:
        return [jax.nn.relu(x) + z, jax.jit(jnp.tanh)(y), jnp.zeros(2)]

    assert Opened(fn, [ROW, ROW, ROW]).origins() == [{0, 2}, {1}, frozenset()]


def test_only_calls_are_followed() -> None:
    closed = jax.make_jaxpr(lambda x: jnp.tanh(x) + 1.0)(ROW)
    (result,) = walk(closed.jaxpr, closed.consts, [jnp.zeros(3)], computed)
    np.testing.assert_array_equal(result, np.ones(3))
    with raises_naming(TypeError, "tanh", "call"):
        walk(closed.jaxpr, closed.consts, [jnp.zeros(3)], lambda eqn, inputs: None)

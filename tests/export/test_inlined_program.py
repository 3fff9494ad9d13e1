"""Inlined programs: calls, random numbers as arguments, and logits of discrete choices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.distributions import Categorical, Normal
from evorl.export.inlined_program import NORMAL, UNIFORM, Draw, Opened, computed, walk
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

"""The record of keys detects each misuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.errors import raises_naming
from tests.support.key_record import MOST_ROUNDS, KeyRecord


def test_the_record_sees_misuse() -> None:
    record = KeyRecord()
    record.run(lambda key: jax.random.normal(key) + jax.random.uniform(key), jax.random.key(0))
    assert record.misused()

    record = KeyRecord()
    record.run(lambda key: jax.lax.map(lambda i: jax.random.normal(key) * i, jnp.arange(2)), jax.random.key(0))
    assert record.misused()

    record = KeyRecord()
    record.run(lambda key: (jax.random.fold_in(key, 1), jax.random.split(key)), jax.random.key(0))
    assert record.misused()

    record = KeyRecord()
    record.run(lambda key: [jax.random.normal(k) for k in jax.random.split(key)], jax.random.key(0))
    assert record.misused() == []


@pytest.mark.parametrize("taken", [0, 1])
def test_of_branches_only_the_one_that_is_taken_uses_keys(taken: int) -> None:
    record = KeyRecord()
    record.run(
        lambda key, number: jax.lax.switch(number, [jax.random.normal, lambda key: jax.random.uniform(key, 2)[0]], key),
        jax.random.key(0),
        jnp.asarray(taken),
    )
    assert sum(record.consumed.values()) == 1
    assert record.misused() == []


def draw_in_rounds(key: jax.Array, num_rounds: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, num_rounds, lambda i, total: total + jax.random.normal(jax.random.fold_in(key, i)), 0.0)


@pytest.mark.parametrize("num_rounds", [0, 3])
def test_every_round_of_a_loop_is_seen(num_rounds: int) -> None:
    record = KeyRecord()
    record.run(draw_in_rounds, jax.random.key(0), jnp.asarray(num_rounds))
    assert sorted(number for _, number in record.folded) == list(range(num_rounds))
    assert sum(record.consumed.values()) == num_rounds
    assert record.misused() == []


def test_rounds_there_is_no_room_for_are_told() -> None:
    with raises_naming(ValueError, "loop", f"{MOST_ROUNDS} rounds"):
        KeyRecord().run(draw_in_rounds, jax.random.key(0), jnp.asarray(MOST_ROUNDS + 1))


def test_what_tells_whether_a_loop_goes_on_is_seen() -> None:
    """Keys in a loop's condition are recorded, which is evaluated once more than the body."""

    def wait(key: jax.Array) -> jax.Array:
        return jax.lax.while_loop(
            lambda i: (i < 3) & (jax.random.bits(jax.random.fold_in(key, i)) >= 0), lambda i: i + 1, 0
        )

    record = KeyRecord()
    assert record.run(wait, jax.random.key(0)) == 3
    assert sorted(number for _, number in record.folded) == [0, 1, 2, 3]
    assert sum(record.consumed.values()) == 4


def test_loops_in_loops_are_seen() -> None:
    def nested(key: jax.Array, num_rounds: jax.Array) -> jax.Array:
        return jax.lax.map(lambda i: draw_in_rounds(jax.random.fold_in(key, i), num_rounds), jnp.arange(3))

    record = KeyRecord()
    record.run(nested, jax.random.key(0), jnp.asarray(2))
    assert len(record.folded) == 3 + 3 * 2
    assert len(record.consumed) == 3 * 2
    assert record.misused() == []


def test_members_of_a_batch_of_loops_stop_on_their_own() -> None:
    def doubled(key: jax.Array, limits: jax.Array) -> jax.Array:
        starts = jnp.ones((3, 2)) + jax.random.uniform(key)
        one = jax.vmap(lambda x, limit: jax.lax.while_loop(lambda x: (x < limit).all(), lambda x: 2.0 * x, x))
        return one(starts, limits)

    record, args = KeyRecord(), (jax.random.key(0), jnp.array([0.0, 5.0, 50.0]))
    np.testing.assert_array_equal(record.run(doubled, *args), doubled(*args))
    assert sum(record.consumed.values()) == 1


def test_a_batch_of_loops_that_use_keys_is_refused() -> None:
    with raises_naming(NotImplementedError, "while loop", "vmap"):
        KeyRecord().run(jax.vmap(draw_in_rounds, (None, 0)), jax.random.key(0), jnp.arange(3))


def test_keys_of_another_record_may_be_used_again() -> None:
    key, record, again = jax.random.key(0), KeyRecord(), KeyRecord()
    for _ in range(2):
        record.run(jax.random.uniform, key)
    assert record.misused(but_for=again)
    again.run(jax.random.uniform, key)
    assert record.misused(but_for=again) == []

"""The record of keys sees each misuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.support.key_record import KeyRecord


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


def test_keys_of_another_record_may_be_used_again() -> None:
    key, record, again = jax.random.key(0), KeyRecord(), KeyRecord()
    for _ in range(2):
        record.run(jax.random.uniform, key)
    assert record.misused(but_for=again)
    again.run(jax.random.uniform, key)
    assert record.misused(but_for=again) == []

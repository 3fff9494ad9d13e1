from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.metrics import EvaluationMetrics, WideCounter, episode_statistics
from tests.support.errors import raises_naming


@pytest.mark.parametrize("start", [0, 5, 2**32 - 3, 2**40 + 2**32 - 1])
def test_counter_carries_between_its_words(start: int) -> None:
    add = jax.jit(lambda counter, n: counter.add(n))
    counter = WideCounter.create(start)
    assert int(counter) == start
    total = start
    for amount in (1, 2, 2**31, 2**31, 2**32 - 1):
        counter, total = add(counter, jnp.uint32(amount)), total + amount
        assert int(counter) == total
    assert int(counter.add(2**33 + 7)) == total + 2**33 + 7
    assert int(counter.add(0)) == total
    np.testing.assert_allclose(counter.as_float(), total, rtol=1e-6)


def test_counter_times_a_number_is_exact() -> None:
    for value, factor in itertools.product((0, 1, 2**16 - 1, 2**32 - 1, 2**32 + 77), (0, 1, 3, 2**16, 2**20 + 5)):
        assert int(WideCounter.create(value).times(factor)) == value * factor


def test_counter_in_a_scan_and_over_seeds() -> None:
    def count(counter: WideCounter) -> WideCounter:
        return jax.lax.fori_loop(0, 10, lambda _, c: c.add(2**30), counter)

    counters = jax.vmap(lambda _: count(WideCounter.create(0)))(jnp.arange(3))
    assert int(counters) == 10 * 2**30
    assert int(jax.device_get(counters)) == 10 * 2**30


@pytest.mark.parametrize("value", [-1, 2**64])
def test_counter_refuses_what_it_cannot_hold(value: int) -> None:
    with raises_naming(ValueError, "from 0", value):
        WideCounter.create(value)


def test_the_sum_of_a_batch_of_counters() -> None:
    counters = jax.vmap(WideCounter.create(2**32 - 1).add)(jnp.arange(3))
    assert counters.total() == 3 * (2**32 - 1) + 3
    assert WideCounter.create(2**40).total() == 2**40


def test_episode_statistics_count_ended_episodes_once() -> None:
    dones = jnp.array([[0, 1], [1, 0]])
    statistics = episode_statistics(dones, jnp.array([[9.0, 2.0], [4.0, 9.0]]), jnp.array([[9, 5], [7, 9]]))
    assert statistics.count == 2
    assert (statistics.mean_return, statistics.mean_length) == (3.0, 6.0)
    assert (statistics.return_min, statistics.return_max) == (2.0, 4.0)


def test_statistics_without_episodes_are_nan_and_merge_away() -> None:
    none = episode_statistics(jnp.zeros(3), jnp.ones(3), jnp.ones(3))
    assert jnp.isnan(none.mean_return)
    assert jnp.isnan(none.mean_length)
    some = episode_statistics(jnp.ones(3), jnp.arange(3.0), jnp.ones(3))
    merged = none.merge(some).merge(some)
    assert (merged.count, merged.mean_return, merged.return_max) == (6, 1.0, 2.0)


def test_statistics_over_an_axis() -> None:
    dones, returns = jnp.array([[1, 1], [0, 0], [1, 0]]), jnp.array([[1.0, 2.0], [8.0, 8.0], [6.0, 9.0]])
    rows = jax.vmap(episode_statistics)(dones, returns, jnp.full((3, 2), 4))
    together = episode_statistics(dones, returns, jnp.full((3, 2), 4))
    assert jax.tree.leaves(rows.over(axis=0)) == jax.tree.leaves(together)
    some = rows.over(axis=0, where=jnp.array([True, True, False]))
    assert (some.count, some.mean_return, some.return_min, some.return_max) == (2, 1.5, 1.0, 2.0)
    assert jnp.isnan(rows.over(axis=0, where=jnp.zeros(3, bool)).mean_return)


def test_evaluation_summary() -> None:
    metrics = EvaluationMetrics(episode_returns=jnp.array([1.0, 2.0, 6.0]), episode_lengths=jnp.array([10, 20, 30]))
    summary = metrics.summary()
    assert (summary.episode_return, summary.episode_return_median, summary.episode_length) == (3.0, 2.0, 20.0)
    assert (summary.episode_return_min, summary.episode_return_max) == (1.0, 6.0)
    np.testing.assert_allclose(summary.episode_return_std, np.std([1, 2, 6]), rtol=1e-6)

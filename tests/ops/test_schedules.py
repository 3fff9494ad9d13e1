from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.schedules import ExponentialScheduleSpec, Schedule, value_at, whole_updates


@pytest.mark.parametrize(
    ("schedule", "middle"),
    [
        (Schedule(10.0, 0.1), 5.05),
        (Schedule(10.0, 0.1, kind="polynomial"), 2.575),
        (Schedule(10.0, 0.1, kind="polynomial", power=3.0), 0.1 + 9.9 / 8),
        (Schedule(10.0, 0.1, kind="exponential"), 1.0),
        (Schedule(10.0, 0.1, kind="cosine"), 5.05),
    ],
)
def test_schedules_run_forwards_and_stop_at_their_ends(schedule: Schedule, middle: float) -> None:
    values = jax.jit(value_at)(schedule, jnp.array([-1.0, 0.0, 0.5, 1.0, 2.0]))
    np.testing.assert_allclose(values, [10.0, 10.0, middle, 0.1, 0.1], rtol=1e-5)


def test_the_end_is_reached_after_its_share_of_the_training() -> None:
    values = value_at(Schedule(1.0, 0.0, share=0.2), jnp.array([0.0, 0.1, 0.2, 0.9]))
    np.testing.assert_allclose(values, [1.0, 0.5, 0.0, 0.0], atol=1e-7)


def test_a_cosine_is_slow_at_both_ends() -> None:
    values = value_at(Schedule(3e-4, 1.5e-4, kind="cosine"), jnp.array([0.0, 1 / 3, 2 / 3, 1.0]))
    np.testing.assert_allclose(values, 1.5e-4 * np.array([2.0, 1.75, 1.25, 1.0]), rtol=1e-5)


def test_a_number_is_always_itself() -> None:
    assert value_at(0.3, 0.7) == 0.3
    assert len(jax.make_jaxpr(value_at)(0.3, 0.7).eqns) == 0


def test_the_ends_are_data() -> None:
    traces = []

    @jax.jit
    def middle(schedule: Schedule) -> jax.Array:
        traces.append(schedule)
        return jnp.asarray(value_at(schedule, 0.5))

    assert [float(middle(Schedule(start, 1.0, share))) for start, share in ((3.0, 1.0), (5.0, 1.0), (7.0, 0.5))] == [
        2.0,
        3.0,
        1.0,
    ]
    assert len(traces) == 1
    batch = Schedule(jnp.array([1.0, 3.0]), jnp.zeros(2), jnp.ones(2), power=jnp.ones(2))  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(jax.vmap(lambda schedule: value_at(schedule, 0.5))(batch), [0.5, 1.5])


def test_exponential_spec_decays_to_its_final_value() -> None:
    spec = ExponentialScheduleSpec(init=1.0, final=0.3, decay=0.5)
    np.testing.assert_allclose(spec.value_at(jnp.arange(4)), [1.0, 0.5, 0.3, 0.3], rtol=1e-6)


def test_exponential_spec_may_grow_and_be_a_batch() -> None:
    growing = ExponentialScheduleSpec(init=1.0, final=3.0, decay=2.0)
    np.testing.assert_allclose(growing.value_at(jnp.arange(3)), [1.0, 2.0, 3.0])
    batch = ExponentialScheduleSpec(init=jnp.array([1.0, 2.0]), final=jnp.zeros(2), decay=jnp.array([0.5, 0.1]))
    np.testing.assert_allclose(jax.vmap(lambda spec: spec.value_at(1))(batch), [0.5, 0.2], rtol=1e-6)


@pytest.mark.parametrize(
    ("rate", "events"),
    [
        (Fraction(1, 4), 1),
        (Fraction(13, 10), 7),
        (Fraction(3333, 10_000) / 128, 1000),
        (Fraction(9999, 10_000) / 5, 4096),
        (Fraction(333_333, 10_000), 1),
        (Fraction(1, 10_000) / 1_000_003, 10**9),
        (Fraction(0), 5),
    ],
)
def test_updates_follow_any_rate(rate: Fraction, events: int) -> None:
    """No call makes a negative number of updates, and rounded rates differ by less than 0.01 %."""
    calls = 1500 if events <= 4096 else 4
    before = jnp.arange(calls, dtype=jnp.uint32) * jnp.uint32(events)
    updates = np.asarray(jax.jit(jax.vmap(lambda x: whole_updates(rate, x, events)))(before))
    assert updates.min() >= 0
    totals, expected = np.cumsum(updates), np.arange(1, calls + 1) * float(rate * events)
    assert (np.abs(totals - expected) <= 1.0 + 1e-4 * expected).all()
    if rate.denominator < 10_000:
        np.testing.assert_array_equal(totals, [int(n * events * rate) for n in range(1, calls + 1)])

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.schedules import (
    ExponentialScheduleSpec,
    exponential_schedule,
    linear_schedule,
    polynomial_schedule,
)


@pytest.mark.parametrize(
    ("schedule", "middle"),
    [(linear_schedule, 5.05), (lambda p, s, e: polynomial_schedule(p, s, e, 2.0), 2.575), (exponential_schedule, 1.0)],
)
def test_schedules_run_forwards_and_stop_at_their_ends(schedule, middle: float) -> None:
    progress = jnp.array([-1.0, 0.0, 0.5, 1.0, 2.0])
    result = jax.jit(schedule)(progress, 10.0, 0.1)
    np.testing.assert_allclose(result, [10.0, 10.0, middle, 0.1, 0.1], rtol=1e-5)


def test_exponential_spec_decays_to_its_final_value() -> None:
    spec = ExponentialScheduleSpec(init=1.0, final=0.3, decay=0.5)
    np.testing.assert_allclose(spec.value_at(jnp.arange(4)), [1.0, 0.5, 0.3, 0.3], rtol=1e-6)
    value = jnp.asarray(spec.init)
    for expected in (0.5, 0.3, 0.3):
        value = jax.jit(lambda spec, value: spec.next_value(value))(spec, value)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_exponential_spec_may_grow_and_be_a_batch() -> None:
    growing = ExponentialScheduleSpec(init=1.0, final=3.0, decay=2.0)
    np.testing.assert_allclose(growing.value_at(jnp.arange(3)), [1.0, 2.0, 3.0])
    batch = ExponentialScheduleSpec(init=jnp.array([1.0, 2.0]), final=jnp.zeros(2), decay=jnp.array([0.5, 0.1]))
    np.testing.assert_allclose(jax.vmap(lambda spec: spec.value_at(1))(batch), [0.5, 0.2], rtol=1e-6)

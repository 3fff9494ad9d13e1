from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.value_rescaling import rescale, undo_rescale

VALUES = jnp.array([-1e6, -500.0, -1.0, -1e-3, 0.0, 1e-9, 1e-6, 1e-4, 0.5, 3.0, 99.0, 1e5])


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 1.0])
def test_the_inverse_undoes_it(epsilon: float) -> None:
    back = jax.jit(undo_rescale)(jax.jit(rescale)(VALUES, epsilon), epsilon)
    np.testing.assert_allclose(back, VALUES, rtol=1e-4)


def test_known_values() -> None:
    np.testing.assert_allclose(rescale(jnp.array([3.0, -8.0, 0.0]), 1e-3), [1.003, -2.008, 0.0], rtol=1e-5)
    by_formula = [
        np.sign(y) * (((np.sqrt(1 + 4e-3 * (abs(y) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1) for y in (-20.0, -1.0, 0.3, 7.0)
    ]
    np.testing.assert_allclose(undo_rescale(jnp.array([-20.0, -1.0, 0.3, 7.0]), 1e-3), by_formula, rtol=1e-4)

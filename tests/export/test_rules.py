"""Each rule's graph operations, evaluated in NumPy, compute the result of JAX; see test_onnx_file and test_javascript
for the other languages.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from evorl.export.artifacts import policy_graph
from evorl.export.graph import NoRule
from tests.support.array_functions import FUNCTIONS, rows_of
from tests.support.errors import raises_naming
from tests.support.portable import numpy_step, portable_function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_computes_the_same(name: str) -> None:
    fn, shape = FUNCTIONS[name]
    rows = rows_of(name, 7)
    expected = np.asarray(jax.jit(jax.vmap(fn))(rows))
    actual = numpy_step(portable_function(fn, shape))({"obs": rows})["action"]
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("fn", "parts"),
    [
        (lambda x: jnp.sort(x), ("uses sort",)),
        (lambda x: x[jnp.argmax(x)][None], ("computed",)),
        (lambda x: lax.while_loop(lambda y: y[0] < 9, lambda y: y + 1.0, x), ("uses while",)),
        (lambda x: lax.fori_loop(0, 100, lambda i, y: jnp.tanh(y), x), ("loop of 100", "more than 64")),
        (lambda x: lax.cumsum(x, reverse=True), ("cumulative sum",)),
    ],
)
def test_what_has_no_rule_is_told(fn: Callable[[jax.Array], jax.Array], parts: tuple[str, ...]) -> None:
    with raises_naming(NoRule, *parts):
        policy_graph(portable_function(fn, (4,)))

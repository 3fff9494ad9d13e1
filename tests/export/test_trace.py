"""Tracing of JAX functions to graphs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from evorl.export.graph import NoRule
from evorl.export.trace import traced_graph
from tests.support.errors import raises_naming


def test_what_is_known_is_computed_beforehand() -> None:
    weights = jnp.arange(6.0).reshape(2, 3)

    def fn(x: jax.Array) -> list[jax.Array]:
        scale = jnp.exp(jnp.sum(weights, axis=0)) + jax.random.normal(jax.random.key(0), (3,))
        return [jax.nn.relu(x @ weights) * scale]

    (rows,) = export.symbolic_shape("rows")
    graph = traced_graph(fn, [jax.ShapeDtypeStruct((rows, 2), np.float32)], rows)
    assert [node.op for node in graph.nodes] == ["matmul", "max", "mul"]
    assert graph.outputs[0].shape == (None, 3)
    assert graph.inputs[0].shape == (None, 2)


def test_shapes_of_single_rows_are_numbers() -> None:
    graph = traced_graph(lambda x: [x[None] + 1.0, jnp.ones(2)], [jax.ShapeDtypeStruct((2,), np.float32)], None)
    assert graph.outputs[0].shape == (1, 2)
    np.testing.assert_array_equal(graph.outputs[1], np.ones(2))


def test_rows_stand_alone() -> None:
    (rows,) = export.symbolic_shape("rows")
    spec = jax.ShapeDtypeStruct((rows, 2), np.float32)
    with raises_naming(NoRule, "2*rows", "format=jax"):
        traced_graph(lambda x: [x.reshape(-1) * 2.0], [spec], rows)
    with raises_naming(NoRule, "size of the batch"):
        traced_graph(lambda x: [x[:, 0] + jnp.arange(rows)], [spec], rows)

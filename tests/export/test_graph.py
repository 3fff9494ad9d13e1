"""Graphs: unused operations are omitted, and constants are folded."""

from __future__ import annotations

import numpy as np

from evorl.export.graph import Graph, Value

FLOAT = np.dtype(np.float32)


def test_what_no_output_needs_is_left_out() -> None:
    graph = Graph()
    x = Value((None, 3), FLOAT)
    used = graph.add("tanh", [x], x.shape, FLOAT)
    graph.add("exp", [used], x.shape, FLOAT)
    graph.outputs = [graph.add("neg", [used], x.shape, FLOAT)]
    graph.prune()
    assert [node.op for node in graph.nodes] == ["tanh", "neg"]


def test_what_changes_nothing_is_no_operation() -> None:
    graph = Graph()
    x = Value((None, 3, 4), FLOAT)
    assert graph.reshape(x, (None, 3, 4)) is x
    assert graph.transpose(x, [0, 1, 2]) is x
    assert graph.slice(x, [0, 0, 0], [None, None, 4]) is x
    assert graph.concat([x], 1) is x
    constant = np.arange(6.0)
    np.testing.assert_array_equal(graph.transpose(graph.reshape(constant, (2, 3)), [1, 0]), constant.reshape(2, 3).T)
    assert graph.nodes == []


def test_shapes_follow() -> None:
    graph = Graph()
    x = Value((None, 3, 5), FLOAT)
    assert graph.transpose(x, [2, 0, 1]).shape == (5, None, 3)
    assert graph.slice(x, [0, 1, 0], [None, None, 5], [1, 1, 2]).shape == (None, 2, 3)
    assert graph.concat([x, x, x], 2).shape == (None, 3, 15)

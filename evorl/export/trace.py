"""Traces functions of arrays into graphs of plain operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from evorl.export.graph import Graph, NoRule, Shape, Value, as_operand
from evorl.export.inlined_program import called_by, computed, walk
from evorl.export.rules import RULES, rule_of_loop


def traced_graph(fn: Callable[..., Sequence[jax.Array]], specs: Sequence[jax.ShapeDtypeStruct], rows: Any) -> Graph:
    """Trace a function of arrays into a graph.

    Args:
        fn: function from arrays to a sequence of arrays.
        specs: shapes and dtypes of the arguments; shapes may contain ``rows``.
        rows: symbolic dimension of the batch size; ``None`` if all shapes are numbers.

    Raises:
        NoRule: an operation of the function is not supported, or merges the batch axis with another axis.
    """

    def dims(shape: Sequence[Any]) -> Shape:
        known = [dim if isinstance(dim, int) else None for dim in map(_as_int, shape)]
        others = [dim for dim in shape if _as_int(dim) is None and str(dim) != str(rows)]
        if others:
            raise NoRule(f"only format=jax supports merging the batch axis with another (length {others[0]}).")
        return tuple(known)

    closed = jax.make_jaxpr(fn)(*specs)
    graph = Graph()
    graph.inputs = [Value(dims(var.aval.shape), np.dtype(var.aval.dtype)) for var in closed.jaxpr.invars]

    def apply(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any] | None:
        if called_by(eqn) is not None:
            return None
        sizes = [dim for var in eqn.outvars for dim in getattr(var.aval, "shape", ())]
        if not any(isinstance(x, Value) for x in inputs) and None not in map(_as_int, sizes):
            return computed(eqn, inputs)
        name = eqn.primitive.name
        if name == "scan":
            return rule_of_loop(graph, eqn, inputs, apply)
        if name not in RULES:
            raise NoRule(f"the policy uses {name}, which only format=jax supports.")
        return RULES[name](graph, eqn, [as_operand(x) for x in inputs], dims)

    outputs = walk(closed.jaxpr, closed.consts, graph.inputs, apply)
    graph.outputs = [as_operand(x) for x in outputs]
    graph.prune()
    return graph


def _as_int(dim: Any) -> int | None:
    return int(dim) if isinstance(dim, int | np.integer) else None

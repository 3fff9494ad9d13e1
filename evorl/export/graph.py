"""A function of arrays as a list of plain operations (``OPS``), which the ONNX, NumPy and HTML exports translate.

Results that depend only on constants are computed during the export.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.extend.core import JaxprEqn

Shape: TypeAlias = tuple[Any, ...]  # integers; None is the batch size, known when the function is called

UNARY = tuple("neg sign floor ceil round exp log log1p expm1 tanh sin cos sqrt rsqrt abs logistic erf not".split())
UNARY += ("is_finite", "square")
BINARY = tuple("add sub mul div rem pow max min and or xor eq ne lt le gt ge".split())
REDUCTIONS = {f"reduce_{name}": name for name in ("sum", "max", "min", "prod", "and", "or")}
# Other operations and their parameters: ``where``, ``cast``, ``reshape``, ``transpose(permutation)``, ``broadcast``,
# ``concat(axis)``, ``slice(starts, stops, steps)``, ``pad(before, after, value)``, ``take(axis)`` (its second input has
# constant indices), ``matmul``, ``reduce(kind, axes)``, ``argmax(axis)``, ``argmin(axis)``, ``cumsum(axis)``.
OPS = (*UNARY, *BINARY, *"where cast reshape transpose broadcast concat slice pad take matmul".split())
OPS += ("reduce", "argmax", "argmin", "cumsum")


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """An array whose value is known only when the function is called.

    Attributes:
        shape: sizes of the axes; ``None`` for the batch size.
        dtype: NumPy dtype.
    """

    shape: Shape
    dtype: np.dtype


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One operation of a graph.

    Attributes:
        op: one of ``OPS``.
        inputs: operands, each a ``Value`` or a constant NumPy array.
        output: the result.
        params: parameters of the operation by name, listed in the comment above ``OPS``.
    """

    op: str
    inputs: tuple[Any, ...]
    output: Value
    params: dict[str, Any]


class NoRule(ValueError):
    """Raised for an operation that cannot be exported in a format; the message describes the operation."""


class Graph:
    """Operations in execution order.

    Attributes:
        nodes: the operations.
        inputs: arguments of the function.
        outputs: results of the function, each a ``Value`` or a constant NumPy array.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Any] = []

    def add(self, op: str, inputs: Sequence[Any], shape: Shape, dtype: Any, **params: Any) -> Value:
        """Append an operation, whose result has ``shape`` and ``dtype``, and return the result."""
        output = Value(tuple(shape), np.dtype(dtype))
        self.nodes.append(Node(op, tuple(inputs), output, params))
        return output

    def reshape(self, x: Any, shape: Shape) -> Any:
        """Return ``x`` with another shape: a constant is reshaped now, a ``Value`` by an operation if necessary."""
        if isinstance(x, np.ndarray):
            return x.reshape(shape)
        return x if x.shape == tuple(shape) else self.add("reshape", [x], shape, x.dtype)

    def transpose(self, x: Any, permutation: Sequence[int]) -> Any:
        """Return ``x`` with permuted axes: a constant is transposed now, a ``Value`` by an operation if necessary."""
        if isinstance(x, np.ndarray):
            return x.transpose(permutation)
        if tuple(permutation) == tuple(range(len(permutation))):
            return x
        shape = tuple(x.shape[i] for i in permutation)
        return self.add("transpose", [x], shape, x.dtype, permutation=tuple(permutation))

    def slice(self, x: Any, starts: Sequence[int], stops: Sequence[Any], steps: Sequence[int] | None = None) -> Any:
        """Return ``x[start:stop:step, ...]``; a stop of ``None`` is the end of the axis, and steps default to 1."""
        steps = [1] * len(x.shape) if steps is None else list(steps)
        stops = [size if stop is None else stop for stop, size in zip(stops, x.shape, strict=True)]
        shape = tuple(
            None if size is None else max(0, -(-(stop - start) // step))
            for start, stop, step, size in zip(starts, stops, steps, x.shape, strict=True)
        )
        if shape == x.shape:
            return x
        return self.add("slice", [x], shape, x.dtype, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        """Concatenate ``parts`` along an axis of known length."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.add("concat", parts, tuple(shape), parts[0].dtype, axis=axis)

    def prune(self) -> None:
        """Remove operations on which no output depends."""
        needed, nodes = {id(x) for x in self.outputs}, []
        for node in reversed(self.nodes):
            if id(node.output) in needed:
                nodes.append(node)
                needed.update(id(x) for x in node.inputs)
        self.nodes = nodes[::-1]


Dims: TypeAlias = Callable[[Any], Shape]  # converts a JAX shape, with a symbolic batch size, to a ``Shape``
Rule: TypeAlias = Callable[[Graph, JaxprEqn, list[Any], Dims], Sequence[Any]]  # adds operations, returns outputs


def as_operand(x: Any) -> Any:
    """Return a ``Value`` unchanged, and a constant as a NumPy array."""
    return x if isinstance(x, Value) else np.asarray(x)


def output_of(eqn: JaxprEqn, dims: Dims) -> tuple[Shape, np.dtype]:
    """Return the shape and dtype of an operation's first output."""
    aval: Any = eqn.outvars[0].aval
    return dims(aval.shape), np.dtype(aval.dtype)

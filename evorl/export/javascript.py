"""Writes graphs without a batch axis as JavaScript functions that need only the functions in ``RUNTIME``."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

from evorl.export.graph import Graph, Node, NoRule, Value

_INFIX = {"add": "+", "sub": "-", "mul": "*", "eq": "===", "ne": "!==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFIX |= {"and": "&", "or": "|", "xor": "^", "rem": "%"}
_CALLS = {"max": "Math.max(x, y)", "min": "Math.min(x, y)", "pow": "Math.pow(x, y)"}
_OF_ONE = {"neg": "-x", "square": "x * x", "rsqrt": "1 / Math.sqrt(x)", "logistic": "1 / (1 + Math.exp(-x))"}
_OF_ONE |= {name: f"Math.{name}(x)" for name in "sign floor ceil exp log log1p expm1 tanh sin cos sqrt abs".split()}
_OF_ONE |= {"is_finite": "Number.isFinite(x)", "erf": "erf(x)", "round": "halfToEven(x)"}
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32)}
_WRAPPING = tuple("add sub mul neg square and or xor not cast reduce".split())  # may exceed the range of integers
_REDUCE = {
    "sum": "x + y",
    "prod": "x * y",
    "max": "Math.max(x, y)",
    "min": "Math.min(x, y)",
    "and": "x & y",
    "or": "x | y",
}

RUNTIME = resources.files("evorl.export").joinpath("runtime.js").read_text(encoding="utf-8")


def function_text(name: str, graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Return ``const <name> = ...;``: a JavaScript function from flat inputs to flat outputs, each by name.

    No shape of ``graph`` has a batch axis.

    Raises:
        NoRule: an operation of the graph has no JavaScript form.
    """
    writer = _Writer()
    for number, value in enumerate(graph.inputs):
        writer.names[id(value)] = f"given.{inputs[number]}"
    lines = [writer.line(node) for node in graph.nodes]
    results = ", ".join(f"{key}: {writer.read(x)}" for key, x in zip(outputs, graph.outputs, strict=True))
    constants = "\n".join(f"  {line}" for line in writer.constants)
    body = "\n".join(f"    {line}" for line in lines)
    computed = f"  return given => {{\n{body}\n    return {{{results}}};\n  }};"
    return f"const {name} = (() => {{\n{constants}\n{computed}\n}})();\n"


class _Writer:
    """Writes operations as lines of JavaScript, and collects the constants, which are computed only once."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.constants: list[str] = []
        self._constants_by_id: dict[int, str] = {}

    def read(self, x: Any) -> str:
        """Return the JavaScript expression of a value or a constant."""
        if isinstance(x, Value):
            return self.names[id(x)]
        if id(x) not in self._constants_by_id:
            self._constants_by_id[id(x)] = self._constant(_array(x))
        return self._constants_by_id[id(x)]

    def _constant(self, text: str) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(f"const {name} = {text};")
        return name

    def line(self, node: Node) -> str:
        """Return the line that computes an operation."""
        operands = [self.read(x) for x in node.inputs]
        if node.op in (*_INFIX, *_CALLS, "div", "where"):
            pairs = zip(operands, node.inputs, strict=True)
            operands = [self._alike(name, x.shape, node.output.shape) for name, x in pairs]
        expression = self._expression(node, operands)
        if node.op in _WRAPPING and {x.dtype.name for x in (node.output, *node.inputs)} <= _INTEGERS:
            expression = f"wrap({node.output.dtype.name.capitalize()}Array, {expression})"
        name = self.names[id(node.output)] = f"v{len(self.names)}"
        return f"const {name} = {expression};"

    def _expression(self, node: Node, operands: list[str]) -> str:
        op, first = node.op, operands[0]
        if node.output.dtype.name in _INTEGERS and op in ("mul", "square"):  # exact, unlike floats beyond 2^53
            return f"zip(Math.imul, {first}, {operands[-1]})"
        if op in _INFIX or op in _CALLS:
            return f"zip((x, y) => {_CALLS.get(op) or f'x {_INFIX[op]} y'}, {', '.join(operands)})"
        if op == "div":
            whole = node.output.dtype.kind in "iu"
            return f"zip((x, y) => {'Math.trunc(x / y)' if whole else 'x / y'}, {', '.join(operands)})"
        if op == "not":
            return f"map(x => {'1 - x' if node.output.dtype == np.bool_ else '~x'}, {first})"
        if op in _OF_ONE:
            return f"map(x => {_OF_ONE[op]}, {first})"
        if op == "where":
            return f"where({', '.join(operands)}, {_size(node.output.shape)})"
        if op == "cast":
            kind = node.output.dtype.kind
            return f"map(x => {'x !== 0' if kind == 'b' else 'Math.trunc(x)'}, {first})" if kind in "biu" else first
        if op == "reshape":
            return first
        return self._axes_expression(node, operands)

    def _axes_expression(self, node: Node, operands: list[str]) -> str:
        op, params, first, x = node.op, node.params, operands[0], node.inputs[0]
        shape, steps = node.output.shape, _strides(x.shape)
        if op == "broadcast":
            strides = [0 if n == 1 else step for n, step in zip(x.shape, steps, strict=True)]
            return self._view(first, x.shape, shape, strides)
        if op == "transpose":
            return self._view(first, x.shape, shape, [steps[i] for i in params["permutation"]])
        if op == "slice":
            offset = sum(start * step for start, step in zip(params["starts"], steps, strict=True))
            strides = [n * step for n, step in zip(params["steps"], steps, strict=True)]
            return self._view(first, x.shape, shape, strides, offset)
        if op == "take":
            index = np.arange(_size(x.shape)).reshape(x.shape).take(node.inputs[1], params["axis"])
            return f"{self._constant(f'view({index.ravel().tolist()})')}({first})"
        if op == "pad":
            into = _strides(shape)
            offset = sum(before * step for before, step in zip(params["before"], into, strict=True))
            places = f"order({list(x.shape)}, {list(into)}, {offset}), {_size(shape)}, {number_text(params['value'])}"
            return f"{self._constant(f'put({places})')}({first})"
        if op == "concat":
            sizes = [str(_size(part.shape[params["axis"] :])) for part in node.inputs]
            return f"concat([{', '.join(sizes)}], {', '.join(operands)})"
        if op == "matmul":
            left, right = node.inputs
            batch = 1 if len(right.shape) == 2 else _size(right.shape[:-2])
            rows = _size(left.shape[:-1]) // batch
            return f"matmul({first}, {operands[1]}, {batch}, {rows}, {left.shape[-1]}, {right.shape[-1]})"
        if op in ("reduce", "argmax", "argmin"):
            axes = params["axes"] if op == "reduce" else (params["axis"],)
            size = _size([x.shape[i] for i in axes])
            turned = [*(i for i in range(len(x.shape)) if i not in axes), *axes]
            first = self._view(first, x.shape, [x.shape[i] for i in turned], [steps[i] for i in turned])
            if op == "reduce":
                return f"reduce((x, y) => {_REDUCE[params['kind']]}, {first}, {size})"
            return f"best((x, y) => {'x > y' if op == 'argmax' else 'x < y'} || x !== x && y === y, {first}, {size})"
        raise NoRule(f"the policy uses {op}, which format=html does not support, unlike format=onnx, numpy or jax.")

    def _alike(self, name: str, shape: Sequence[Any], target: Sequence[Any]) -> str:
        """Return an operand's expression, broadcast to ``target`` unless it is a single number or has that size."""
        if _size(shape) in (1, _size(target)):
            return name
        steps = _strides(shape)
        return self._view(name, shape, target, [0 if n == 1 else step for n, step in zip(shape, steps, strict=True)])

    def _view(self, x: str, of: Sequence[Any], shape: Sequence[Any], strides: Sequence[int], offset: int = 0) -> str:
        """Return an expression that views ``x``, of shape ``of``, with ``shape``, ``strides`` and ``offset``."""
        if tuple(strides) == _strides(shape) and _size(of) == _size(shape):
            return x
        return f"{self._constant(f'view(order({list(shape)}, {list(strides)}, {offset}))')}({x})"


def _size(shape: Sequence[Any]) -> int:
    return math.prod(shape)


def _strides(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_size(shape[i + 1 :]) for i in range(len(shape)))


def number_text(x: np.ndarray | np.float64) -> str:
    """Return an array of one number as a JavaScript number; bools become 0 or 1."""
    value = x.item()
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return json.dumps(value if not isinstance(value, bool) else int(value))


def _array(x: np.ndarray) -> str:
    if x.size <= 16:
        return f"Float64Array.of({', '.join(number_text(n) for n in x.reshape(-1))})"
    exact = x.astype(np.float32 if x.dtype.kind == "f" else np.uint32 if x.dtype == np.uint32 else np.int32)
    text = base64.b64encode(np.ascontiguousarray(exact).tobytes()).decode()
    return f'numbers("{text}", {exact.dtype.name.capitalize()}Array)'

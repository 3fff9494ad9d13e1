"""Writes and runs policies as ONNX models; the only module that imports ``onnx`` and ``onnxruntime``.

The page "Export a policy" of the documentation compares this module with jax2onnx.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evorl.export.graph import Graph, Node, NoRule, Value
from evorl.export.portable_policy import Port, PortablePolicy

OPSET, IR_VERSION = 18, 8  # from 2022, for wide support by runtimes
_SAME = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "max": "Max",
    "min": "Min",
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "where": "Where",
    "neg": "Neg",
    "sign": "Sign",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "sin": "Sin",
    "cos": "Cos",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "logistic": "Sigmoid",
    "erf": "Erf",
    "matmul": "MatMul",
}
_OF_BOOLS = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
_OF_INTEGERS = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor", "not": "BitwiseNot"}
_REDUCE = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}
_REDUCE |= {"and": "ReduceMin", "or": "ReduceMax"}


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"ONNX models need the package {name.partition('.')[0]}, in the extra onnx: pip install onnx onnxruntime."
        ) from error


def onnx_bytes(policy: PortablePolicy, graph: Graph, about: Mapping[str, Any], title: str) -> bytes:
    """Return the serialized ONNX model of a policy, with ``about`` as JSON metadata and ``title`` as its description.

    Raises:
        NoRule: ONNX has no operator for an operation of the graph.
        ImportError: ``onnx`` is not installed.
    """
    onnx = _imported("onnx")
    for part in ("checker", "helper", "numpy_helper"):
        _imported(f"onnx.{part}")
    writer = _Writer(onnx, policy.inputs[0].name)
    for port, value in zip(policy.inputs, graph.inputs, strict=True):
        writer.names[id(value)] = port.name
    for node in graph.nodes:
        writer.write(node)
    for port, x in zip(policy.outputs, graph.outputs, strict=True):
        writer.add("Identity", [writer.read(x)], port.name)

    def described(ports: tuple[Port, ...]) -> list[Any]:
        make, kind = onnx.helper.make_tensor_value_info, onnx.helper.np_dtype_to_tensor_dtype
        return [make(port.name, kind(port.dtype), ["rows", *port.shape]) for port in ports]

    graph_proto = onnx.helper.make_graph(
        writer.nodes, "policy", described(policy.inputs), described(policy.outputs), writer.constants
    )
    model = onnx.helper.make_model(
        graph_proto,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="evorl",
        producer_version=about["versions"]["evorl"],
        doc_string=title,
    )
    onnx.helper.set_model_props(model, {"evorl": json.dumps(about)})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


class OnnxSession:
    """A model loaded by onnxruntime; a call maps inputs ``[B, ...]`` by name to outputs ``[B, ...]`` by name.

    Args:
        path: the file of the model.

    Raises:
        ImportError: ``onnxruntime`` is not installed. For an invalid file, onnxruntime raises its own errors.

    Attributes:
        about: JSON text of the metadata that ``evorl export`` stored; empty for other models.
    """

    def __init__(self, path: Path) -> None:
        onnxruntime = _imported("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._names = [output.name for output in self._session.get_outputs()]
        self.about = self._session.get_modelmeta().custom_metadata_map.get("evorl", "")
        self._inputs = {operands.name for operands in self._session.get_inputs()}

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Run one step; inputs that the model does not have are ignored."""
        operands = {name: np.asarray(x) for name, x in inputs.items() if name in self._inputs}
        return dict(zip(self._names, self._session.run(self._names, operands), strict=True))


class _Writer:
    """Writes operations as the nodes and constants of an ONNX model."""

    def __init__(self, onnx: Any, first_input: str) -> None:
        self.onnx = onnx
        self.names: dict[int, str] = {}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._first_input = first_input
        self._num_rows: str | None = None
        self._constants_by_id: dict[int, tuple[str, np.ndarray]] = {}  # keeps arrays alive, so that no id is reused

    def read(self, x: Any) -> str:
        """Return the name of a value or of a constant; a new constant is added to the model."""
        if isinstance(x, Value):
            return self.names[id(x)]
        if id(x) not in self._constants_by_id:
            self._constants_by_id[id(x)] = f"constant_{len(self.constants)}", x
            array = np.ascontiguousarray(x).reshape(x.shape)
            self.constants.append(self.onnx.numpy_helper.from_array(array, self._constants_by_id[id(x)][0]))
        return self._constants_by_id[id(x)][0]

    def integers(self, *numbers: int) -> str:
        """Return the name of an int64 constant ``[N]``."""
        return self.read(np.asarray(numbers, np.int64))

    def add(self, op: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Append a node and return the name of its output."""
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, inputs, [output], **attributes))
        return output

    def write(self, node: Node) -> None:
        """Append the nodes of an operation."""
        operands = [self.read(x) for x in node.inputs]
        is_bool = node.inputs[0].dtype == np.bool_
        names = {**_SAME, **(_OF_BOOLS if is_bool else _OF_INTEGERS)}
        if node.op in names:
            result = self.add(names[node.op], operands)
        elif node.op in ("reshape", "broadcast", "cast"):
            result = self._shaped(node, operands[0])
        else:
            result = self._composed(node, operands) or self._of_axes(node, operands)
        self.names[id(node.output)] = result

    def _composed(self, node: Node, operands: list[str]) -> str | None:
        """Append an operation composed of other ONNX operators and return its output; ``None`` for other operations."""
        one = np.asarray(1, node.inputs[0].dtype)
        if node.op == "square":
            return self.add("Mul", [operands[0], operands[0]])
        if node.op == "rsqrt":
            return self.add("Reciprocal", [self.add("Sqrt", operands)])
        if node.op == "log1p":
            return self.add("Log", [self.add("Add", [operands[0], self.read(one)])])
        if node.op == "expm1":
            return self.add("Sub", [self.add("Exp", operands), self.read(one)])
        if node.op == "ne":
            return self.add("Not", [self.add("Equal", operands)])
        if node.op == "rem":
            return self.add("Mod", operands, fmod=1)
        if node.op == "is_finite":
            return self.add("Not", [self.add("Or", [self.add("IsInf", operands), self.add("IsNaN", operands)])])
        return None

    def _shaped(self, node: Node, x: str) -> str:
        shape, dtype = node.output.shape, node.output.dtype
        if node.op == "cast":
            return self.add("Cast", [x], to=self._kind(dtype))
        if node.op == "reshape":
            return self.add("Reshape", [x, self.integers(*(-1 if n is None else n for n in shape))])
        if None not in shape or node.inputs[0].shape[shape.index(None)] is None:
            return self.add("Expand", [x, self.integers(*(1 if n is None else n for n in shape))])
        if self._num_rows is None:
            self._num_rows = self.add("Shape", [self._first_input], start=0, end=1)
        sizes = [self._num_rows if n is None else self.integers(n) for n in shape]
        return self.add("Expand", [x, self.add("Concat", sizes, axis=0)])

    def _of_axes(self, node: Node, operands: list[str]) -> str:
        op, params, x = node.op, node.params, operands[0]
        if op == "transpose":
            return self.add("Transpose", [x], perm=params["permutation"])
        if op == "concat":
            return self.add("Concat", operands, axis=params["axis"])
        if op == "slice":
            cut = [i for i, stop in enumerate(params["stops"]) if stop is not None]
            edges = [self.integers(*(params[name][i] for i in cut)) for name in ("starts", "stops")]
            return self.add(
                "Slice", [x, *edges, self.integers(*cut), self.integers(*(params["steps"][i] for i in cut))]
            )
        if op == "pad":
            edges = self.integers(*params["before"], *params["after"])
            return self.add("Pad", [x, edges, self.read(params["value"])])
        if op == "take":
            return self.add("Gather", [x, self.read(np.asarray(node.inputs[1], np.int64))], axis=params["axis"])
        if op == "reduce":
            return self._reduced(node, x)
        if op in ("argmax", "argmin"):
            if node.inputs[0].dtype.kind == "f":  # as in JAX, NaN is the extremum: a masked action is never chosen
                extremum = self.read(np.asarray(np.inf if op == "argmax" else -np.inf, node.inputs[0].dtype))
                x = self.add("Where", [self.add("IsNaN", [x]), extremum, x])
            index = self.add("ArgMax" if op == "argmax" else "ArgMin", [x], axis=params["axis"], keepdims=0)
            return self.add("Cast", [index], to=self._kind(node.output.dtype))
        if op == "cumsum":
            return self.add("CumSum", [x, self.read(np.asarray(params["axis"], np.int64))])
        raise NoRule(f"the policy uses {op}, which ONNX does not support, unlike format=numpy and format=jax.")

    def _reduced(self, node: Node, x: str) -> str:
        params, is_whole = node.params, node.inputs[0].dtype.kind in "biu"
        if is_whole:  # onnxruntime saturates sums and products of int32, and reduces no narrow integers
            x = self.add("Cast", [x], to=self._kind(np.dtype(np.int64)))
        x = self.add(_REDUCE[params["kind"]], [x, self.integers(*params["axes"])], keepdims=0)
        return self.add("Cast", [x], to=self._kind(node.output.dtype)) if is_whole else x

    def _kind(self, dtype: np.dtype) -> int:
        return self.onnx.helper.np_dtype_to_tensor_dtype(dtype)

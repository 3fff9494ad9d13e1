"""Writes a policy as a single Python file that needs only NumPy."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from evorl.export.graph import Graph, Node, Value
from evorl.export.portable_policy import ACTION, SCORES, PortablePolicy
from evorl.ops.terminal_text import escaped

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPERATORS |= {"and": "&", "or": "|", "xor": "^"}
_FUNCTIONS = {"max": "maximum", "min": "minimum", "rem": "fmod", "pow": "power", "neg": "negative", "not": "invert"}
_FUNCTIONS |= {name: name for name in "sign floor ceil exp log log1p expm1 tanh sin cos sqrt abs square".split()}
_FUNCTIONS |= {"is_finite": "isfinite", "round": "rint"}
_OF_AXES = {"sum": "sum", "max": "max", "min": "min", "prod": "prod", "and": "all", "or": "any"}

# Template of the file; each ``@NAME@`` is replaced.
_FRAME = '''"""@TITLE@

Written by evorl @VERSION@. It requires only NumPy, neither JAX nor evorl.

    policy = Policy()
    action = policy(obs)   # obs: one observation or a batch; action: in the action space of the environment
    policy.reset()         # at the start of an episode

``step`` is the pure function behind ``Policy``. Its arguments and results are arrays with a leading batch axis of any
length; ``ABOUT`` describes them.
"""

import base64
import hashlib
import json
import math

import numpy as np

ABOUT = json.loads(r"""
@ABOUT@
""")


def step(@ARGUMENTS@):
    """Return the outputs by name: the action, its scores if the policy has them, and the memory for the next step."""
    rows = len(@FIRST@)
    with np.errstate(all="ignore"):
@BODY@
    return {@RESULTS@}


class Policy:
    """Function from observations to actions that keeps the policy's memory of the episode until ``reset``.

    Observations with several entries are dicts or tuples, as in the environment. ``seed`` is used for sampled actions.
    """

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        """Clear the memory before an episode starts; with a batch, the memory of all its environments."""
        self.memory = None

    def __call__(self, obs):
        leaves = _leaves(ABOUT["observation_space"], obs)
        with np.errstate(invalid="ignore"):
            arrays = {port["name"]: x.astype(port["dtype"]) for port, (_, x) in zip(OBSERVATIONS, leaves)}
        first = OBSERVATIONS[0]
        is_single = arrays[first["name"]].ndim == len(first["shape"]) - 1
        if is_single:
            arrays = {name: x[None] for name, x in arrays.items()}
        rows = arrays[first["name"]].shape[:1]
        shapes = {port["name"]: (*rows, *port["shape"][1:]) for port in INPUTS}
        memory = self.memory or {port["name"]: np.zeros(shapes[port["name"]], port["dtype"]) for port in MEMORY}
        for name, x in {**arrays, **memory}.items():
            if x.shape != shapes[name]:
                hint = "pass one observation or a batch, and call reset() before a batch of another size."
                raise ValueError(f"{name} has the shape {x.shape}, expected {shapes[name]}: {hint}")
        for port, (space, x) in zip(OBSERVATIONS, leaves):
            if not _is_element(space, x, arrays[port["name"]]):
                raise ValueError(f"{port['name']} must be of {space!s:.200} ({port['dtype']}), got {x!r:.80}.")
        for name, kind in ABOUT["random"].items():
            draw = self.rng.random if kind == "uniform" else self.rng.standard_normal
            arrays[name] = draw(shapes[name], np.float32)
        outputs = step(**arrays, **memory)
        self.memory = {name: outputs[after] for name, after in ABOUT["memory"].items()}
        actions = [outputs[port["name"]] for port in ABOUT["outputs"] if port["name"] in ACTIONS]
        actions = [x[0] for x in actions] if is_single else actions
        return _structured(ABOUT["action_space"], iter(actions))


INPUTS = ABOUT["inputs"]
MEMORY = [port for port in INPUTS if port["name"] in ABOUT["memory"]]
OBSERVATIONS = [port for port in INPUTS if port["name"] not in ABOUT["memory"] and port["name"] not in ABOUT["random"]]
ACTIONS = @ACTIONS@


def _is_element(space, given, x):
    if x.dtype.kind == "f":
        return True
    if "low" in space:
        return np.all(x == given)
    steps, sizes = x - np.asarray(space.get("start", 0)), np.asarray(space.get("n", space.get("sizes")))
    return np.all(x == given) and np.all((steps >= 0) & (steps < sizes))


def _leaves(space, value):
    if space["kind"] == "dict":
        return [leaf for name in sorted(space["spaces"]) for leaf in _leaves(space["spaces"][name], value[name])]
    if space["kind"] == "tuple":
        return [leaf for member, item in zip(space["spaces"], value) for leaf in _leaves(member, item)]
    return [(space, np.asarray(value))]


def _structured(space, arrays):
    if space["kind"] == "dict":
        return {name: _structured(space["spaces"][name], arrays) for name in sorted(space["spaces"])}
    if space["kind"] == "tuple":
        return tuple(_structured(member, arrays) for member in space["spaces"])
    return next(arrays)


def _sigmoid(x):
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def _erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def _divided(x, y):
    return x / y if x.dtype.kind == "f" else np.trunc(x / y).astype(x.dtype)


def _arrays(layout, text, checksum):
    data = base64.b64decode(text)
    if hashlib.sha256(data).hexdigest() != checksum:
        raise ValueError("the numbers in this file are corrupted: export the policy again.")
    arrays, start = [], 0
    for dtype, shape in layout:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        arrays.append(np.frombuffer(data[start : start + size], dtype).reshape(shape))
        start += size
    return arrays


W = _arrays(
    @LAYOUT@,
    """
@NUMBERS@
""",
    "@CHECKSUM@",
)
'''


def numpy_text(policy: PortablePolicy, graph: Graph, about: Mapping[str, Any], title: str) -> str:
    """Return the Python source of the file.

    Args:
        policy: the policy.
        graph: operations of the policy, for any batch size.
        about: metadata stored in the file: JSON data with the entries of ``policy.describe()``, and ``versions``.
        title: one-line description of the policy.
    """
    writer = _Writer()
    inputs = [port.name for port in policy.inputs]
    for name, value in zip(inputs, graph.inputs, strict=True):
        writer.names[id(value)] = name
    lines = [writer.line(node) for node in graph.nodes]
    outputs = zip(policy.outputs, graph.outputs, strict=True)
    results = ", ".join(f'"{port.name}": {writer.read(x)}' for port, x in outputs)
    numbers = b"".join(np.ascontiguousarray(array).tobytes() for array in writer.arrays)
    parts = {
        # The title contains names of folders and environments, which must not end the docstring.
        "TITLE": escaped(title, lines=True).replace("\\", "\\\\").replace('"', "'"),
        "VERSION": about["versions"]["evorl"],
        "ABOUT": json.dumps(about, indent=1),
        "ARGUMENTS": ", ".join(inputs),
        "FIRST": inputs[0],
        "BODY": textwrap.indent("\n".join(lines) or "pass", " " * 8),
        "RESULTS": results,
        "ACTIONS": repr([p.name for p in policy.results if p.name.startswith(ACTION) and p.name != SCORES]),
        "LAYOUT": repr([(array.dtype.str, array.shape) for array in writer.arrays]),
        "NUMBERS": "\n".join(textwrap.wrap(base64.b64encode(numbers).decode(), 120)),
        "CHECKSUM": hashlib.sha256(numbers).hexdigest(),
    }
    return re.sub(f"@({'|'.join(parts)})@", lambda match: parts[match[1]], _FRAME)


class _Writer:
    """Writes operations as lines of Python, and collects the constants, which are defined at the end of the file."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.arrays: list[np.ndarray] = []
        self._places: dict[int, int] = {}

    def read(self, x: Any) -> str:
        """Return the Python expression of a value or a constant."""
        if isinstance(x, Value):
            return self.names[id(x)]
        if x.ndim == 0:
            return _scalar(x)
        if id(x) not in self._places:
            self._places[id(x)] = len(self.arrays)
            self.arrays.append(x)
        return f"W[{self._places[id(x)]}]"

    def line(self, node: Node) -> str:
        """Return the line that computes an operation."""
        name = self.names[id(node.output)] = f"v{len(self.names)}"
        return f"{name} = {self._expression(node, [self.read(x) for x in node.inputs])}"

    def _expression(self, node: Node, operands: list[str]) -> str:
        op, out = node.op, node.output
        if op in _OPERATORS:
            return f"{operands[0]} {_OPERATORS[op]} {operands[1]}"
        if op in _FUNCTIONS:
            return f"np.{_FUNCTIONS[op]}({', '.join(operands)})"
        plain = {
            "div": "_divided({0}, {1})",
            "rsqrt": "np.float32(1) / np.sqrt({0})",
            "logistic": "_sigmoid({0})",
            "erf": "_erf({0})",
            "where": "np.where({0}, {1}, {2})",
            "cast": f"{{0}}.astype(np.{_numpy_name(out.dtype)})",
            "reshape": f"{{0}}.reshape({_shape(out.shape, '-1')})",
            "broadcast": f"np.broadcast_to({{0}}, {_shape(out.shape, 'rows')})",
        }
        if op in plain:
            return plain[op].format(*operands)
        return self._axes_expression(node, operands)

    def _axes_expression(self, node: Node, operands: list[str]) -> str:
        op, params, out = node.op, node.params, node.output
        first = operands[0]
        if op == "transpose":
            return f"{first}.transpose({params['permutation']})"
        if op == "concat":
            return f"np.concatenate([{', '.join(operands)}], {params['axis']})"
        if op == "slice":
            edges = zip(params["starts"], params["stops"], params["steps"], strict=True)
            return f"{first}[{', '.join(':' if e[1] is None else ':'.join(map(str, e)) for e in edges)}]"
        if op == "pad":
            edges = list(zip(params["before"], params["after"], strict=True))
            return f"np.pad({first}, {edges}, constant_values={_scalar(params['value'])})"
        if op == "take":
            return f"np.take({first}, {operands[1]}, {params['axis']})"
        if op == "matmul":
            left, right = node.inputs
            if len(right.shape) == 2 and len(left.shape) > 2:  # a single matrix product for any number of axes
                return f"({first}.reshape(-1, {left.shape[-1]}) @ {operands[1]}).reshape({_shape(out.shape, '-1')})"
            return f"{first} @ {operands[1]}"
        if op == "reduce":
            typed = f", dtype=np.{_numpy_name(out.dtype)}" if params["kind"] in ("sum", "prod") else ""
            return f"np.{_OF_AXES[params['kind']]}({first}, {params['axes']}{typed})"
        if op in ("argmax", "argmin"):
            return f"np.{op}({first}, {params['axis']}).astype(np.{_numpy_name(out.dtype)})"
        if op == "cumsum":
            return f"np.cumsum({first}, {params['axis']}, dtype=np.{_numpy_name(out.dtype)})"
        raise KeyError(op)


def _shape(shape: tuple[int | None, ...], rows: str) -> str:
    sizes = [rows if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _numpy_name(dtype: np.dtype) -> str:
    return "bool_" if dtype == np.bool_ else dtype.name


def _scalar(x: np.ndarray) -> str:
    value = x.item()
    expression = repr(value) if np.isfinite(value) else f'"{value}"'
    return f"np.{_numpy_name(x.dtype)}({expression})"

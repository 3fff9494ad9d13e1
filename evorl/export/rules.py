"""Rules that convert JAX operations to operations of ``evorl.export.graph``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from evorl.export.graph import BINARY, REDUCTIONS, UNARY, Dims, Graph, NoRule, Rule, Value, as_operand, output_of
from evorl.export.inlined_program import walk
from evorl.export.products import convolve, dot, padded, pool
from evorl.ops.traced_programs import scan_sizes

MAX_TURNS = 64  # maximum number of iterations of a loop that is unrolled


def _elementwise(op: str) -> Rule:
    def rule(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
        return [graph.add(op, inputs, *output_of(eqn, dims))]

    return rule


def _same(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    return inputs[: len(eqn.outvars)]


def _reshaped(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    if eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None:
        raise NoRule("the policy reshapes and transposes in one operation, which only format=jax supports.")
    return [graph.reshape(inputs[0], output_of(eqn, dims)[0])]


def _broadcast(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    (shape, dtype), x = output_of(eqn, dims), inputs[0]
    places = dict(zip(map(int, eqn.params["broadcast_dimensions"]), x.shape, strict=True))
    x = graph.reshape(x, tuple(places.get(axis, 1) for axis in range(len(shape))))
    return [x if x.shape == shape else graph.add("broadcast", [x], shape, dtype)]


def _iota(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    (shape, dtype), axis = output_of(eqn, dims), int(eqn.params["dimension"])
    if shape[axis] is None:
        raise NoRule("the policy depends on the size of the batch, which only format=jax supports.")
    numbers = np.arange(shape[axis], dtype=dtype).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return [graph.add("broadcast", [numbers], shape, dtype)]


def _transpose(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    return [graph.transpose(inputs[0], [int(i) for i in eqn.params["permutation"]])]


def _cast(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    (shape, dtype), x = output_of(eqn, dims), inputs[0]
    if x.dtype.kind == "f" and dtype.kind in "iu":  # as in XLA: casts saturate, and NaN becomes 0
        x = graph.add("cast", [x], shape, np.float64)  # represents the bounds of 32-bit integers exactly
        is_number = graph.add("eq", [x, x], shape, np.bool_)
        x = graph.add("where", [is_number, x, np.zeros((), np.float64)], shape, np.float64)
        for op, bound in (("max", np.iinfo(dtype).min), ("min", np.iinfo(dtype).max)):
            x = graph.add(op, [x, np.asarray(bound, np.float64)], shape, np.float64)
    return [x if x.dtype == dtype else graph.add("cast", [x], shape, dtype)]


def _select(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    which, *cases = inputs
    (shape, dtype), result = output_of(eqn, dims), cases[-1]
    if which.dtype == np.bool_:
        return [graph.add("where", [which, cases[1], cases[0]], shape, dtype)]
    for i in range(len(cases) - 2, -1, -1):
        is_it = graph.add("eq", [which, np.asarray(i, which.dtype)], which.shape, np.bool_)
        result = graph.add("where", [is_it, cases[i], result], shape, dtype)
    return [result]


def _clamp(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    low, x, high = inputs
    shape, dtype = output_of(eqn, dims)
    return [graph.add("min", [graph.add("max", [x, low], shape, dtype), high], shape, dtype)]


def _round(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    if eqn.params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN:
        raise NoRule("the policy rounds halves away from zero, which only format=jax supports.")
    return [graph.add("round", inputs, *output_of(eqn, dims))]


def _integer_power(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    (shape, dtype), power = output_of(eqn, dims), eqn.params["y"]
    if np.dtype(dtype).kind == "f" or power < 1:
        return [graph.add("pow", [inputs[0], np.asarray(power, dtype)], shape, dtype)]
    result, factor = None, inputs[0]  # runtimes compute powers in floating point, which is inexact for large integers
    while power:
        if power % 2:
            result = factor if result is None else graph.add("mul", [result, factor], shape, dtype)
        power //= 2
        factor = graph.add("mul", [factor, factor], shape, dtype) if power else factor
    return [result]


def _power(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    (base, exponent), (shape, dtype) = inputs, output_of(eqn, dims)
    if exponent.dtype != dtype:  # NumPy's result of a float32 and an int32 is float64
        is_known = isinstance(exponent, np.ndarray)
        exponent = exponent.astype(dtype) if is_known else graph.add("cast", [exponent], exponent.shape, dtype)
    return [graph.add("pow", [base, exponent], shape, dtype)]


def _power_of_two(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    shape, dtype = output_of(eqn, dims)
    return [graph.add("pow", [np.asarray(2, dtype), inputs[0]], shape, dtype)]


def _reduce(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    axes, kind = tuple(int(axis) for axis in eqn.params["axes"]), REDUCTIONS[eqn.primitive.name]
    (shape, dtype), x = output_of(eqn, dims), inputs[0]
    if not axes:
        return [x]
    if kind != "prod" or dtype.kind == "f" or not all(x.shape[axis] for axis in axes):
        return [graph.add("reduce", inputs, shape, dtype, kind=kind, axes=axes)]
    for axis in axes:  # as in ``_integer_power``: runtimes compute such products in floating point
        x, *factors = _parts(graph, x, axis, [1] * x.shape[axis])
        for factor in factors:
            x = graph.add("mul", [x, factor], x.shape, dtype)
    return [graph.reshape(x, shape)]


def _index_of(op: str) -> Rule:
    def rule(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
        (axis,) = eqn.params["axes"]
        return [graph.add(op, inputs, *output_of(eqn, dims), axis=int(axis))]

    return rule


def _cumulative_sum(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    if eqn.params["reverse"]:
        raise NoRule("the policy has a reversed cumulative sum, which only format=jax supports.")
    return [graph.add("cumsum", inputs, *output_of(eqn, dims), axis=int(eqn.params["axis"]))]


def _concatenate(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    return [graph.concat(inputs, int(eqn.params["dimension"]))]


def _stack(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    axis = int(eqn.params["axis"])
    return [graph.concat([graph.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in inputs], axis)]


def _complementary_error(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    shape, dtype = output_of(eqn, dims)
    return [graph.add("sub", [np.asarray(1, dtype), graph.add("erf", inputs, shape, dtype)], shape, dtype)]


def _slice(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    params, x = eqn.params, inputs[0]
    stops = [None if size is None else int(stop) for stop, size in zip(params["limit_indices"], x.shape, strict=True)]
    return [graph.slice(x, [int(i) for i in params["start_indices"]], stops, params["strides"])]


def _slice_at(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    x, *starts = inputs
    if any(isinstance(start, Value) for start in starts):
        raise NoRule("the policy slices at computed positions, which only format=jax supports.")
    shape = output_of(eqn, dims)[0]
    sizes = [(n, size) for n, size in zip(x.shape, shape, strict=True)]
    first = [0 if n is None else min(max(int(s), 0), n - size) for s, (n, size) in zip(starts, sizes, strict=True)]
    return [graph.slice(x, first, [None if n is None else s + size for s, (n, size) in zip(first, sizes, strict=True)])]


def _split(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    return _parts(graph, inputs[0], int(eqn.params["axis"]), map(int, eqn.params["sizes"]))


def _unstack(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    shape = output_of(eqn, dims)[0]
    parts = _parts(graph, inputs[0], int(eqn.params["axis"]), [1] * len(eqn.outvars))
    return [graph.reshape(part, shape) for part in parts]


def _parts(graph: Graph, x: Value, axis: int, sizes: Iterable[int]) -> list[Any]:
    start, parts = 0, []
    for size in sizes:
        starts: list[int] = [0] * len(x.shape)
        stops: list[int | None] = [None] * len(x.shape)
        starts[axis], stops[axis] = start, start + size
        parts.append(graph.slice(x, starts, stops))
        start += size
    return parts


def _reverse(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    x = inputs[0]
    for axis in map(int, eqn.params["dimensions"]):
        order = np.arange(x.shape[axis])[::-1].copy()
        x = graph.add("take", [x, order], x.shape, x.dtype, axis=axis)
    return [x]


def _pad(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    x, value = inputs
    config = [tuple(map(int, edges)) for edges in eqn.params["padding_config"]]
    if isinstance(value, Value) or any(between for _, _, between in config):
        raise NoRule("the policy pads between elements or with a computed value, which only format=jax supports.")
    edges = [(before, after) for before, after, _ in config]
    inner = graph.slice(
        x,
        [max(0, -before) for before, _ in edges],
        [None if n is None else n - max(0, -after) for (_, after), n in zip(edges, x.shape, strict=True)],
    )
    return [padded(graph, inner, [(max(0, a), max(0, b)) for a, b in edges], value)]


def _gather(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    x, indices = inputs
    how, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    axis = tuple(how.start_index_map)
    removes_axes = how.collapsed_slice_dims or how.operand_batching_dims
    if not removes_axes and len(indices.shape) == 1 and not isinstance(indices, Value):  # a single slice
        where = dict(zip(map(int, axis), np.arange(len(axis)), strict=True))
        starts = [indices[where[i]] if i in where else 0 for i in range(len(x.shape))]
        return _slice_at(graph, eqn, [x, *starts], dims)
    shape, dtype = output_of(eqn, dims)
    is_plain = len(axis) == 1 and axis == tuple(how.collapsed_slice_dims) and not how.operand_batching_dims
    whole = all(
        n is None or n == int(size) for i, (n, size) in enumerate(zip(x.shape, sizes, strict=True)) if i not in axis
    )
    if not is_plain or not whole or isinstance(indices, Value) or indices.ndim > 2:
        raise NoRule("only format=jax supports gathers at computed indices, along several axes or of partial slices.")
    k = int(axis[0])
    order = indices.reshape(-1)
    if np.any((order < 0) | (order >= x.shape[k])):
        raise NoRule("the policy gathers elements out of range, which only format=jax supports.")
    taken = (*x.shape[:k], len(order), *x.shape[k + 1 :])
    offsets = tuple(i for i in range(len(taken)) if i != k)
    result = graph.add("take", [x, order], taken, dtype, axis=k)
    if indices.ndim == 2 and tuple(map(int, how.offset_dims)) != offsets:
        (position,) = set(range(len(shape))) - set(map(int, how.offset_dims))
        rest = iter(offsets)
        result = graph.transpose(result, [k if i == position else next(rest) for i in range(len(shape))])
    return [graph.reshape(result, shape)]


def rule_of_loop(graph: Graph, eqn: JaxprEqn, inputs: list[Any], apply: Any) -> list[Any]:
    """Unroll a ``scan``: apply ``apply`` to the operations of each iteration, and return the outputs of the loop.

    Raises:
        NoRule: the loop has more than ``MAX_TURNS`` iterations, or one of its operations has no rule.
    """
    params, (num_consts, num_carry) = eqn.params, scan_sizes(eqn)
    length, body = params["length"], params["jaxpr"]
    if length > MAX_TURNS:
        raise NoRule(f"the policy has a loop of {length} iterations: more than {MAX_TURNS} need format=jax.")
    consts, carry = inputs[:num_consts], list(inputs[num_consts : num_consts + num_carry])
    sequences = [as_operand(x) for x in inputs[num_consts + num_carry :]]
    results: list[list[Any]] = []
    for turn in reversed(range(length)) if params["reverse"] else range(length):
        items = [_row(graph, x, turn) for x in sequences]
        outputs = walk(body.jaxpr, body.consts, [*consts, *carry, *items], apply)
        carry = outputs[:num_carry]
        results.append([as_operand(x) for x in outputs[num_carry:]])
    if params["reverse"]:
        results.reverse()
    stacked = [[graph.reshape(x, (1, *x.shape)) for x in column] for column in zip(*results, strict=True)]
    return [*carry, *(graph.concat(column, 0) for column in stacked)]


def _row(graph: Graph, x: Any, number: int) -> Any:
    if not isinstance(x, Value):
        return x[number]
    starts, stops = [number, *[0] * (len(x.shape) - 1)], [number + 1, *[None] * (len(x.shape) - 1)]
    return graph.reshape(graph.slice(x, starts, stops), x.shape[1:])


RULES: dict[str, Rule] = {
    **{name: _elementwise(name) for name in (*UNARY, *BINARY)},
    **dict.fromkeys(("copy", "copy_p", "optimization_barrier", "stop_gradient", "name", "device_put"), _same),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped),
    **dict.fromkeys(REDUCTIONS, _reduce),
    "add_any": _elementwise("add"),
    "argmax": _index_of("argmax"),
    "argmin": _index_of("argmin"),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "conv_general_dilated": convolve,
    "convert_element_type": _cast,
    "cumsum": _cumulative_sum,
    "dot_general": dot,
    "dynamic_slice": _slice_at,
    "erfc": _complementary_error,
    "exp2": _power_of_two,
    "gather": _gather,
    "integer_pow": _integer_power,
    "iota": _iota,
    "pad": _pad,
    "pow": _power,
    "reduce_window_max": pool,
    "rev": _reverse,
    "round": _round,
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "stack": _stack,
    "transpose": _transpose,
    "unstack": _unstack,
}

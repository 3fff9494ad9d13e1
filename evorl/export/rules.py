"""How the operations of JAX are said in those of ``evorl.export.graph``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from evorl.export.graph import BINARY, REDUCTIONS, UNARY, Graph, NoRule, Rule, Shape, Value, as_operand
from evorl.export.inlining import walk

Dims = Callable[[Any], Shape]
MOST_TURNS = 64  # of a loop that is written out


def _out(eqn: JaxprEqn, dims: Dims, number: int = 0) -> tuple[Shape, np.dtype]:
    aval: Any = eqn.outvars[number].aval
    return dims(aval.shape), np.dtype(aval.dtype)


def _elementwise(op: str) -> Rule:
    def rule(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
        return [graph.add(op, inputs, *_out(eqn, dims))]

    return rule


def _same(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    return inputs[: len(eqn.outvars)]


def _reshaped(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    if eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None:
        raise NoRule("the policy reshapes and transposes at once, for which there is no rule: give format=jax.")
    return [graph.reshape(inputs[0], _out(eqn, dims)[0])]


def _broadcast(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    (shape, dtype), x = _out(eqn, dims), inputs[0]
    places = dict(zip(map(int, eqn.params["broadcast_dimensions"]), x.shape, strict=True))
    x = graph.reshape(x, tuple(places.get(axis, 1) for axis in range(len(shape))))
    return [x if x.shape == shape else graph.add("broadcast", [x], shape, dtype)]


def _iota(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    (shape, dtype), axis = _out(eqn, dims), int(eqn.params["dimension"])
    if shape[axis] is None:
        raise NoRule("the policy counts the rows of a batch: what it does would depend on their number.")
    numbers = np.arange(shape[axis], dtype=dtype).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return [graph.add("broadcast", [numbers], shape, dtype)]


def _transpose(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    return [graph.transpose(inputs[0], [int(i) for i in eqn.params["permutation"]])]


def _cast(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    shape, dtype = _out(eqn, dims)
    return [inputs[0] if inputs[0].dtype == dtype else graph.add("cast", inputs[:1], shape, dtype)]


def _select(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    which, *cases = inputs
    (shape, dtype), result = _out(eqn, dims), cases[-1]
    if which.dtype == np.bool_:
        return [graph.add("where", [which, cases[1], cases[0]], shape, dtype)]
    for i in range(len(cases) - 2, -1, -1):
        is_it = graph.add("eq", [which, np.asarray(i, which.dtype)], which.shape, np.bool_)
        result = graph.add("where", [is_it, cases[i], result], shape, dtype)
    return [result]


def _clamp(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    low, x, high = inputs
    shape, dtype = _out(eqn, dims)
    return [graph.add("min", [graph.add("max", [x, low], shape, dtype), high], shape, dtype)]


def _round(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    if "EVEN" not in str(eqn.params["rounding_method"]):
        raise NoRule("the policy rounds halves away from zero, for which there is no rule: give format=jax.")
    return [graph.add("round", inputs, *_out(eqn, dims))]


def _integer_power(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    shape, dtype = _out(eqn, dims)
    return [graph.add("pow", [inputs[0], np.asarray(eqn.params["y"], dtype)], shape, dtype)]


def _power_of_two(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    shape, dtype = _out(eqn, dims)
    return [graph.add("pow", [np.asarray(2, dtype), inputs[0]], shape, dtype)]


def _reduce(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    axes = tuple(int(axis) for axis in eqn.params["axes"])
    if not axes:
        return inputs[:1]
    return [graph.add("reduce", inputs, *_out(eqn, dims), kind=REDUCTIONS[eqn.primitive.name], axes=axes)]


def _index_of(op: str) -> Rule:
    def rule(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
        (axis,) = eqn.params["axes"]
        return [graph.add(op, inputs, *_out(eqn, dims), axis=int(axis))]

    return rule


def _cumulative_sum(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    if eqn.params["reverse"]:
        raise NoRule("the policy adds up backwards, for which there is no rule: give format=jax.")
    return [graph.add("cumsum", inputs, *_out(eqn, dims), axis=int(eqn.params["axis"]))]


def _concatenate(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    return [graph.concat(inputs, int(eqn.params["dimension"]))]


def _slice(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    params, x = eqn.params, inputs[0]
    stops = [None if size is None else int(stop) for stop, size in zip(params["limit_indices"], x.shape, strict=True)]
    return [graph.slice(x, [int(i) for i in params["start_indices"]], stops, params["strides"])]


def _slice_at(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    x, *starts = inputs
    if any(isinstance(start, Value) for start in starts):
        raise NoRule("the policy slices where its inputs say, for which there is no rule: give format=jax.")
    shape = _out(eqn, dims)[0]
    sizes = [(n, size) for n, size in zip(x.shape, shape, strict=True)]
    first = [0 if n is None else min(max(int(s), 0), n - size) for s, (n, size) in zip(starts, sizes, strict=True)]
    return [graph.slice(x, first, [None if n is None else s + size for s, (n, size) in zip(first, sizes, strict=True)])]


def _split(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    axis, start, parts = int(eqn.params["axis"]), 0, []
    (x,) = inputs
    for size in map(int, eqn.params["sizes"]):
        starts, stops = [0] * len(x.shape), [None] * len(x.shape)
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
        raise NoRule("the policy pads between numbers, or with a number that it computes: give format=jax.")
    edges = [(before, after) for before, after, _ in config]
    inner = graph.slice(
        x,
        [max(0, -before) for before, _ in edges],
        [None if n is None else n - max(0, -after) for (_, after), n in zip(edges, x.shape, strict=True)],
    )
    return [_padded(graph, inner, [(max(0, a), max(0, b)) for a, b in edges], value)]


def _padded(graph: Graph, x: Any, edges: Sequence[tuple[int, int]], value: Any) -> Any:
    if not any(map(any, edges)):
        return x
    shape = tuple(None if n is None else n + sum(edge) for n, edge in zip(x.shape, edges, strict=True))
    before, after = (tuple(edge[i] for edge in edges) for i in range(2))
    return graph.add("pad", [x], shape, x.dtype, before=before, after=after, value=np.asarray(value, x.dtype))


def _gather(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    x, indices = inputs
    how, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    axis = tuple(how.start_index_map)
    shape, dtype = _out(eqn, dims)
    is_plain = len(axis) == 1 and axis == tuple(how.collapsed_slice_dims) and not how.operand_batching_dims
    whole = all(n is None or n == int(size) for i, (n, size) in enumerate(zip(x.shape, sizes, strict=True)) if i not in axis)
    if not is_plain or not whole or isinstance(indices, Value) or indices.ndim > 2:
        raise NoRule("the policy looks numbers up by its inputs, for which there is no rule: give format=jax.")
    k = int(axis[0])
    order = indices.reshape(-1)
    if np.any((order < 0) | (order >= x.shape[k])):
        raise NoRule("the policy looks up what is out of range, for which there is no rule: give format=jax.")
    taken = (*x.shape[:k], len(order), *x.shape[k + 1 :])
    offsets = tuple(i for i in range(len(taken)) if i != k)
    result = graph.add("take", [x, order], taken, dtype, axis=k)
    if indices.ndim == 2 and tuple(map(int, how.offset_dims)) != offsets:
        (place,) = set(range(len(shape))) - set(map(int, how.offset_dims))
        rest = iter(offsets)
        result = graph.transpose(result, [k if i == place else next(rest) for i in range(len(shape))])
    return [graph.reshape(result, shape)]


def _product(shape: Sequence[int | None]) -> int | None:
    """How many numbers there are along axes together."""
    if None not in shape:
        return math.prod(n for n in shape if n is not None)
    if list(shape).count(None) > 1 or any(n not in (None, 1) for n in shape):
        raise NoRule(f"axes {tuple(shape)} would be joined, and rows can only stand alone: give format=jax.")
    return None


def _dot(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    ((left_in, right_in), (left_batch, right_batch)) = eqn.params["dimension_numbers"]
    shape, dtype = _out(eqn, dims)
    left, right = inputs
    left_free = [i for i in range(len(left.shape)) if i not in (*left_in, *left_batch)]
    right_free = [i for i in range(len(right.shape)) if i not in (*right_in, *right_batch)]
    if not left_batch and any(right.shape[i] is None for i in right_free):  # rows lead: (right^T left)^T
        turned = _matrices(graph, right, [*right_free], right_in, left, [*left_free], left_in, dtype)
        axes = [*range(len(right_free), len(right_free) + len(left_free)), *range(len(right_free))]
        return [graph.reshape(graph.transpose(turned, axes), shape)]
    if not left_batch:
        return [graph.reshape(_matrices(graph, left, left_free, left_in, right, right_free, right_in, dtype), shape)]
    left = graph.transpose(left, [*left_batch, *left_free, *left_in])
    right = graph.transpose(right, [*right_batch, *right_in, *right_free])
    batch, inner = left.shape[: len(left_batch)], _product(right.shape[len(right_batch) : len(right_batch) + len(right_in)])
    num_left = _product(left.shape[len(batch) : len(batch) + len(left_free)])
    num_right = _product(right.shape[len(batch) + len(right_in) :])
    left, right = graph.reshape(left, (*batch, num_left, inner)), graph.reshape(right, (*batch, inner, num_right))
    return [graph.reshape(graph.add("matmul", [left, right], (*batch, num_left, num_right), dtype), shape)]


def _matrices(
    graph: Graph, left: Any, left_free: Any, left_in: Any, right: Any, right_free: Any, right_in: Any, dtype: Any
) -> Any:
    """``[*left_free, *right_free]``: a product with one matrix ``[inner, right]``."""
    left = graph.transpose(left, [*left_free, *left_in])
    right = graph.transpose(right, [*right_in, *right_free])
    free, others = left.shape[: len(left_free)], right.shape[len(right_in) :]
    inner = _product(right.shape[: len(right_in)])
    left, right = graph.reshape(left, (*free, inner)), graph.reshape(right, (inner, _product(others)))
    if not free:
        left = graph.reshape(left, (1, inner))
    product = graph.add("matmul", [left, right], (*left.shape[:-1], right.shape[1]), dtype)
    return graph.reshape(product, (*free, *others))


def _windows(graph: Graph, x: Any, sizes: Sequence[int], strides: Sequence[int]) -> list[Any]:
    """Of ``x`` all that stands at each place of its windows, over all axes of ``x``."""
    counts = [None if n is None else (n - size) // step + 1 for n, size, step in zip(x.shape, sizes, strides, strict=True)]
    places = []
    for place in itertools.product(*map(range, sizes)):
        stops = [None if n is None else i + step * (n - 1) + 1 for i, n, step in zip(place, counts, strides, strict=True)]
        places.append(graph.slice(x, place, stops, strides))
    return places


def _convolve(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    params, (x, kernel) = eqn.params, inputs
    how, num_axes = params["dimension_numbers"], len(x.shape) - 2
    is_plain = all(n == 1 for n in (*params["lhs_dilation"], *params["rhs_dilation"]))
    if not is_plain or params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        raise NoRule("the policy has a dilated or grouped convolution, for which there is no rule: give format=jax.")
    batch, channels, *places = how.lhs_spec
    x = graph.transpose(x, [batch, *places, channels])
    filters, inner, *window = how.rhs_spec
    kernel = graph.transpose(kernel, [*window, inner, filters])
    x = _padded(graph, x, [(0, 0), *((int(a), int(b)) for a, b in params["padding"]), (0, 0)], 0)
    sizes = kernel.shape[:num_axes]
    rows = graph.concat(_windows(graph, x, (1, *sizes, 1), (1, *map(int, params["window_strides"]), 1)), num_axes + 1)
    weights = graph.reshape(kernel, (_product(kernel.shape[:-1]), kernel.shape[-1]))
    shape, dtype = _out(eqn, dims)
    result = graph.add("matmul", [rows, weights], (*rows.shape[:-1], weights.shape[1]), dtype)
    order = [0] * len(shape)
    for axis, place in enumerate((how.out_spec[0], *how.out_spec[2:], how.out_spec[1])):
        order[place] = axis
    return [graph.transpose(result, order)]


def _pool(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    params, x = eqn.params, inputs[0]
    if any(n != 1 for n in (*params["base_dilation"], *params["window_dilation"])):
        raise NoRule("the policy pools over dilated windows, for which there is no rule: give format=jax.")
    x = _padded(graph, x, [(int(a), int(b)) for a, b in params["padding"]], -np.inf)
    first, *others = _windows(graph, x, params["window_dimensions"], params["window_strides"])
    for other in others:
        first = graph.add("max", [first, other], first.shape, first.dtype)
    return [first]


def rule_of_loop(graph: Graph, eqn: JaxprEqn, inputs: list[Any], apply: Any) -> list[Any]:
    """A loop of a known number of turns, written out.

    Raises:
        NoRule: it has too many.
    """
    params = eqn.params
    length, num_consts, num_carry, body = (params[k] for k in ("length", "num_consts", "num_carry", "jaxpr"))
    if length > MOST_TURNS:
        raise NoRule(f"the policy has a loop of {length} turns, and at most {MOST_TURNS} are written out: format=jax.")
    consts, carry = inputs[:num_consts], list(inputs[num_consts : num_consts + num_carry])
    sequences = [as_operand(x) for x in inputs[num_consts + num_carry :]]
    given: list[list[Any]] = []
    for turn in reversed(range(length)) if params["reverse"] else range(length):
        items = [_row(graph, x, turn) for x in sequences]
        outputs = walk(body.jaxpr, body.consts, [*consts, *carry, *items], apply)
        carry = outputs[:num_carry]
        given.append([as_operand(x) for x in outputs[num_carry:]])
    if params["reverse"]:
        given.reverse()
    stacked = [[graph.reshape(x, (1, *x.shape)) for x in column] for column in zip(*given, strict=True)]
    return [*carry, *(graph.concat(column, 0) for column in stacked)]


def _row(graph: Graph, x: Any, number: int) -> Any:
    if not isinstance(x, Value):
        return x[number]
    starts, stops = [number, *[0] * (len(x.shape) - 1)], [number + 1, *[None] * (len(x.shape) - 1)]
    return graph.reshape(graph.slice(x, starts, stops), x.shape[1:])


RULES: dict[str, Rule] = {
    **{name: _elementwise(name) for name in (*UNARY, *BINARY)},
    "round": _round,
    **dict.fromkeys(("copy", "copy_p", "optimization_barrier", "stop_gradient", "name", "device_put"), _same),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **{"add_any": _elementwise("add"), "exp2": _power_of_two, "integer_pow": _integer_power},
    **{"argmax": _index_of("argmax"), "argmin": _index_of("argmin"), "cumsum": _cumulative_sum},
    **{"select_n": _select, "clamp": _clamp, "convert_element_type": _cast, "iota": _iota},
    **{"broadcast_in_dim": _broadcast, "transpose": _transpose, "concatenate": _concatenate, "rev": _reverse},
    **{"slice": _slice, "dynamic_slice": _slice_at, "split": _split, "pad": _pad, "gather": _gather},
    **{"dot_general": _dot, "conv_general_dilated": _convolve, "reduce_window_max": _pool},
}

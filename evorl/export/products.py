"""Rules that convert JAX's products, convolutions and pooling to matrix products, slices and maxima."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from evorl.export.graph import Dims, Graph, NoRule, output_of


def dot(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    """Convert ``dot_general`` to one matrix product, batched if there are batch axes."""
    ((left_in, right_in), (left_batch, right_batch)) = eqn.params["dimension_numbers"]
    shape, dtype = output_of(eqn, dims)
    left, right = inputs
    left_free = [i for i in range(len(left.shape)) if i not in (*left_in, *left_batch)]
    right_free = [i for i in range(len(right.shape)) if i not in (*right_in, *right_batch)]
    if not left_batch and any(right.shape[i] is None for i in right_free):  # batch axis first: (right^T left)^T
        turned = _matrices(graph, _Factor(right, right_free, right_in), _Factor(left, left_free, left_in), dtype)
        axes = [*range(len(right_free), len(right_free) + len(left_free)), *range(len(right_free))]
        return [graph.reshape(graph.transpose(turned, axes), shape)]
    if not left_batch:
        factors = (_Factor(left, left_free, left_in), _Factor(right, right_free, right_in))
        return [graph.reshape(_matrices(graph, *factors, dtype), shape)]
    left = graph.transpose(left, [*left_batch, *left_free, *left_in])
    right = graph.transpose(right, [*right_batch, *right_in, *right_free])
    batch = left.shape[: len(left_batch)]
    inner = _product(right.shape[len(right_batch) : len(right_batch) + len(right_in)])
    num_left = _product(left.shape[len(batch) : len(batch) + len(left_free)])
    num_right = _product(right.shape[len(batch) + len(right_in) :])
    left, right = graph.reshape(left, (*batch, num_left, inner)), graph.reshape(right, (*batch, inner, num_right))
    return [graph.reshape(graph.add("matmul", [left, right], (*batch, num_left, num_right), dtype), shape)]


class _Factor(NamedTuple):
    """Operand of a product: its value, its free axes, and its summed (contracted) axes."""

    value: Any
    free: Sequence[int]
    summed: Sequence[int]


def _matrices(graph: Graph, first: _Factor, second: _Factor, dtype: Any) -> Any:
    """Contract two operands by one matrix product; the result has the axes ``[*first.free, *second.free]``."""
    left = graph.transpose(first.value, [*first.free, *first.summed])
    right = graph.transpose(second.value, [*second.summed, *second.free])
    free, others = left.shape[: len(first.free)], right.shape[len(second.summed) :]
    inner = _product(right.shape[: len(second.summed)])
    left, right = graph.reshape(left, (*free, inner)), graph.reshape(right, (inner, _product(others)))
    if not free:
        left = graph.reshape(left, (1, inner))
    product = graph.add("matmul", [left, right], (*left.shape[:-1], right.shape[1]), dtype)
    return graph.reshape(product, (*free, *others))


def _product(shape: Sequence[int | None]) -> int | None:
    """Return the product of sizes, or ``None`` if one is the batch size and the others are 1; else raise ``NoRule``."""
    if None not in shape:
        return math.prod(n for n in shape if n is not None)
    if list(shape).count(None) > 1 or any(n not in (None, 1) for n in shape):
        raise NoRule(f"only format=jax supports merging the batch axis, None in {tuple(shape)}, with other axes.")
    return None


def convolve(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    """Convert ``conv_general_dilated`` to one matrix product of all windows with the kernel (im2col)."""
    params, (x, kernel) = eqn.params, inputs
    how, num_axes = params["dimension_numbers"], len(x.shape) - 2
    is_plain = all(n == 1 for n in (*params["lhs_dilation"], *params["rhs_dilation"]))
    if not is_plain or params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        raise NoRule("the policy has a dilated or grouped convolution, which only format=jax supports.")
    batch, channels, *places = how.lhs_spec
    x = graph.transpose(x, [batch, *places, channels])
    filters, inner, *window = how.rhs_spec
    kernel = graph.transpose(kernel, [*window, inner, filters])
    x = padded(graph, x, [(0, 0), *((int(a), int(b)) for a, b in params["padding"]), (0, 0)], 0)
    sizes = kernel.shape[:num_axes]
    rows = graph.concat(_windows(graph, x, (1, *sizes, 1), (1, *map(int, params["window_strides"]), 1)), num_axes + 1)
    weights = graph.reshape(kernel, (_product(kernel.shape[:-1]), kernel.shape[-1]))
    shape, dtype = output_of(eqn, dims)
    result = graph.add("matmul", [rows, weights], (*rows.shape[:-1], weights.shape[1]), dtype)
    order = [0] * len(shape)
    for axis, position in enumerate((how.out_spec[0], *how.out_spec[2:], how.out_spec[1])):
        order[position] = axis
    return [graph.transpose(result, order)]


def pool(graph: Graph, eqn: JaxprEqn, inputs: list[Any], dims: Dims) -> list[Any]:
    """Convert ``reduce_window_max`` to elementwise maxima over the positions within a window."""
    params, x = eqn.params, inputs[0]
    if any(n != 1 for n in (*params["base_dilation"], *params["window_dilation"])):
        raise NoRule("the policy pools over dilated windows, which only format=jax supports.")
    lowest = -np.inf if jnp.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    x = padded(graph, x, [(int(a), int(b)) for a, b in params["padding"]], lowest)
    first, *others = _windows(graph, x, params["window_dimensions"], params["window_strides"])
    for other in others:
        first = graph.add("max", [first, other], first.shape, first.dtype)
    return [first]


def _windows(graph: Graph, x: Any, sizes: Sequence[int], strides: Sequence[int]) -> list[Any]:
    """Return one array per position within a window: the elements of ``x`` at that position in each window."""
    counts = [
        None if n is None else (n - size) // step + 1 for n, size, step in zip(x.shape, sizes, strides, strict=True)
    ]
    windows = []
    for position in itertools.product(*map(range, sizes)):
        stops = [
            None if n is None else i + step * (n - 1) + 1 for i, n, step in zip(position, counts, strides, strict=True)
        ]
        windows.append(graph.slice(x, position, stops, strides))
    return windows


def padded(graph: Graph, x: Any, edges: Sequence[tuple[int, int]], value: Any) -> Any:
    """Pad ``x`` with ``value``; for each axis, ``edges`` has the numbers of elements added before and after."""
    if not any(map(any, edges)):
        return x
    shape = tuple(None if n is None else n + sum(edge) for n, edge in zip(x.shape, edges, strict=True))
    before, after = (tuple(edge[i] for edge in edges) for i in range(2))
    return graph.add("pad", [x], shape, x.dtype, before=before, after=after, value=np.asarray(value, x.dtype))

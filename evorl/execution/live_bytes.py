"""Estimates a traced program's memory, in addition to its arguments, before compilation.

The estimate follows the program's equations and tracks live arrays. Results that a compiler fuses with their
consumers (elementwise operations, changes of shape) need no memory. Results written in place (the carry of a loop, an
update of a buffer that is no longer needed) need no second copy.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from evorl.ops.platform import on_cpu
from evorl.ops.traced_programs import programs_in, scan_sizes

# Operations fused with the readers of their results. ``one_minus_square`` (JAX 0.11) would make estimates too small.
_FUSED = frozenset(
    "abs acos acosh add and asin asinh atan atan2 atanh bitcast_convert_type broadcast_in_dim cbrt ceil clamp "
    "convert_element_type copy cos cosh div eq erf erf_inv exp exp2 expand_dims expm1 floor ge gt integer_pow iota "
    "is_finite le log log1p log2 logistic lt max min mul ne neg not or pow random_unwrap random_wrap real rem "
    "reshape rev round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh "
    "slice split sqrt square squeeze stop_gradient sub tan tanh transpose xor".split()
)
# Operations that overwrite their first operand if nothing else reads it.
_IN_PLACE = frozenset({"dynamic_update_slice", "scatter", "scatter-add", "scatter_add", "scatter_mul", "scatter_max"})
_LOOPS = frozenset({"scan", "while"})


def temporary_bytes(jaxpr: Any) -> int:
    """Return the estimated peak bytes that a program needs in addition to its arguments, on one device."""
    return _walk(jaxpr, {})[0]


def _walk(jaxpr: Any, known: dict[int, tuple[int, list[int]]]) -> tuple[int, list[int]]:
    """Return a program's peak bytes in addition to its arguments, and the newly allocated bytes of each result."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    if id(jaxpr) in known:
        return known[id(jaxpr)]
    last = {var: i for i, eqn in enumerate(jaxpr.eqns) for var in eqn.invars if _is_var(var)}
    last |= {var: len(jaxpr.eqns) for var in jaxpr.outvars if _is_var(var)}
    live: dict[Any, int] = {}
    allocated = dict.fromkeys(jaxpr.invars, 0)
    alive = peak = 0
    for i, eqn in enumerate(jaxpr.eqns):
        inside = [_walk(program, known) for program in programs_in(eqn)]
        inner = max((inner_peak for inner_peak, _ in inside), default=0)
        results = _result_bytes(eqn, last, i, [outs for _, outs in inside])
        # Results of a called program are already live inside it; a loop and its body have separate results.
        together = sum(results) + inner if eqn.primitive.name in _LOOPS else max(sum(results), inner)
        peak = max(peak, alive + together)
        for var, size in zip(eqn.outvars, results, strict=True):
            # Returned values are stored, even if fused.
            allocated[var] = aval_bytes(var.aval) if eqn.primitive.name in _FUSED else size
            if last.get(var, -1) > i:
                live[var] = size
                alive += size
        for var in {var for var in eqn.invars if _is_var(var)}:
            if last[var] == i:
                alive -= live.pop(var, 0)
    returned = [allocated.get(var, 0) if _is_var(var) else 0 for var in jaxpr.outvars]
    known[id(jaxpr)] = max(peak, sum(returned)), returned
    return known[id(jaxpr)]


def num_equations(jaxpr: Any) -> int:
    """Return the number of equations of a program and its inner programs, each program counted once."""
    seen: set[int] = set()

    def count(jaxpr: Any) -> int:
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        if id(jaxpr) in seen:
            return 0
        seen.add(id(jaxpr))
        return sum(1 + sum(map(count, programs_in(eqn))) for eqn in jaxpr.eqns)

    return count(jaxpr)


def _result_bytes(eqn: Any, last: dict[Any, int], i: int, inside: list[list[int]]) -> list[int]:
    """Return the newly allocated bytes of each result; ``inside`` has these bytes for each inner program."""
    name = eqn.primitive.name
    is_rounded = name == "convert_element_type" and eqn.outvars[0].aval.dtype == jnp.bfloat16  # stored for gradients
    if name in _FUSED and not is_rounded:
        return [0] * len(eqn.outvars)
    if name not in _LOOPS and inside and all(len(outs) == len(eqn.outvars) for outs in inside):
        return [max(sizes) for sizes in zip(*inside, strict=True)]  # a call or a conditional
    sizes = [aval_bytes(var.aval) for var in eqn.outvars]
    if name in _LOOPS:
        first, num_carried = (len(eqn.invars) - len(sizes), len(sizes)) if name == "while" else scan_sizes(eqn)
        operands = {out: eqn.invars[first + out] for out in range(num_carried)}
    else:
        operands = {0: eqn.invars[0]} if name in _IN_PLACE else {}
    for out, operand in operands.items():
        if _is_var(operand) and last.get(operand) == i:
            sizes[out] = 0
    return sizes


def _is_var(var: Any) -> bool:
    return not isinstance(var, jex.Literal)


def aval_bytes(aval: Any) -> int:
    """Return the bytes of an array with this shape and dtype: 8 per PRNG key, and 0 for a value without a shape.

    On a CPU, a bfloat16 number counts 4 bytes, because XLA computes it in float32.
    """
    if not hasattr(aval, "shape"):
        return 0
    item = 8 if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key) else aval.dtype.itemsize
    item = 4 if aval.dtype == jnp.bfloat16 and on_cpu() else item
    return math.prod(aval.shape) * item

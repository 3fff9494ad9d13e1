"""Evaluates a traced function operation by operation, with calls inlined, so that single operations can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

Apply = Callable[[JaxprEqn, list[Any]], Sequence[Any] | None]
# For each operation that calls a function: name of the parameter that holds the function.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
# Operations that keep or select elements: if the input is the result of an argmax, so is the output.
_PASS_ON = {"squeeze", "reshape", "convert_element_type", "copy", "slice", "dynamic_slice", "broadcast_in_dim"}
UNIFORM, NORMAL = "uniform", "normal"
_DRAWS = {"_uniform": UNIFORM, "_randint": UNIFORM, "_normal_real": NORMAL, "_normal": NORMAL}
RANDOM = -1  # origin of results that depend on random numbers other than draws


class Draw(NamedTuple):
    """An array of random numbers that a function samples.

    Attributes:
        kind: ``uniform`` in [0, 1), or ``normal`` of mean 0 and variance 1.
        shape: shape of the sampled array.
        dtype: dtype of the sampled array.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: Any


def _draw_of(eqn: JaxprEqn) -> str | None:
    return _DRAWS.get(str(eqn.params.get("name"))) if eqn.primitive.name in CALLS else None


def called_by(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return the function that an operation in ``CALLS`` calls; ``None`` for all other operations."""
    inner = eqn.params.get(CALLS.get(eqn.primitive.name, ""))
    if inner is None or isinstance(inner, ClosedJaxpr):
        return inner
    return ClosedJaxpr(inner, ())


def walk(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], apply: Apply) -> list[Any]:
    """Evaluate a traced function with ``apply``, skipping operations that no output needs; return its outputs.

    Args:
        jaxpr: the function.
        consts: constants of the function.
        args: arguments of the function, of any type that ``apply`` accepts.
        apply: ``apply(eqn, inputs)`` returns the outputs of an operation, or ``None`` for a call to be inlined.

    Raises:
        TypeError: ``apply`` returns ``None`` for an operation that is not in ``CALLS``.
    """
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(var: Any) -> Any:
        if isinstance(var, Literal):
            aval: Any = var.aval
            return np.asarray(var.val, aval.dtype)
        return values[var]

    for eqn in _needed(jaxpr):
        inputs = [read(var) for var in eqn.invars]
        outputs, inner = apply(eqn, inputs), called_by(eqn)
        if outputs is None:
            if inner is None:
                raise TypeError(f"{eqn.primitive.name} is not a call: apply must return its outputs.")
            outputs = walk(inner.jaxpr, inner.consts, inputs, apply)
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
    needed = {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    operations = []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            operations.append(eqn)
            needed.update(var for var in eqn.invars if not isinstance(var, Literal))
    return operations[::-1]


def computed(eqn: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs of an operation on arrays; the operation must not be one of ``CALLS``."""
    outputs = eqn.primitive.bind(*inputs, **eqn.params)
    return outputs if eqn.primitive.multiple_results else [outputs]


class Opened:
    """Function that takes its random numbers as arguments, and also returns the operands of its argmax operations.

    Args:
        fn: function whose arguments are arrays, and whose result is a flat list of arrays.
        specs: shapes and dtypes of the arguments.

    Attributes:
        draws: one entry for each array of random numbers, in the order of sampling.
    """

    def __init__(self, fn: Callable[..., Sequence[jax.Array]], specs: Sequence[jax.ShapeDtypeStruct]) -> None:
        self._closed = jax.make_jaxpr(fn)(*specs)
        self.draws: list[Draw] = []
        jax.eval_shape(lambda *args: self._run(args, None)[0], *specs)

    def origins(self) -> list[frozenset[int]]:
        """Return, for each result, the indices of the arguments it depends on, or ``RANDOM``."""

        def apply(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any] | None:
            is_draw = _draw_of(eqn) is not None
            if called_by(eqn) is not None and not is_draw:
                return None
            sources = inputs[1:] if is_draw else inputs  # a draw's first input is its key
            known = frozenset().union(*(x for x in sources if isinstance(x, frozenset)))
            avals: list[Any] = [var.aval for var in eqn.invars]
            has_key = any(jnp.issubdtype(aval.dtype, jax.dtypes.prng_key) for aval in avals)
            return [known | {RANDOM} if has_key and not is_draw else known] * len(eqn.outvars)

        arguments = [frozenset({i}) for i in range(len(self._closed.jaxpr.invars))]
        results = walk(self._closed.jaxpr, self._closed.consts, arguments, apply)
        return [x if isinstance(x, frozenset) else frozenset() for x in results]

    def __call__(self, args: Sequence[Any], draws: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the results, and for each the operand of its argmax or ``None``; ``draws`` are the random numbers."""
        return self._run(args, list(draws))

    def _run(self, args: Sequence[Any], draws: list[Any] | None) -> tuple[list[Any], list[Any]]:
        chosen_from: dict[int, Any] = {}
        alive: list[Any] = []  # keeps outputs alive, so that no id is reused

        def apply(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any] | None:
            kind = _draw_of(eqn)
            if kind is not None:
                return [self._drawn(kind, eqn, inputs, draws)]
            if called_by(eqn) is not None:
                return None
            outputs = computed(eqn, inputs)
            alive.extend(outputs)
            name = eqn.primitive.name
            if name == "argmax":
                chosen_from[id(outputs[0])] = inputs[0]
            elif name in _PASS_ON and id(inputs[0]) in chosen_from:
                chosen_from[id(outputs[0])] = chosen_from[id(inputs[0])]
            return outputs

        results = walk(self._closed.jaxpr, self._closed.consts, args, apply)
        return results, [chosen_from.get(id(result)) for result in results]

    def _drawn(self, kind: str, eqn: JaxprEqn, inputs: list[Any], draws: list[Any] | None) -> Any:
        out: Any = eqn.outvars[0].aval
        is_integer = jnp.issubdtype(out.dtype, jnp.integer)
        if draws is None:
            self.draws.append(Draw(kind, out.shape, np.dtype(np.float32) if is_integer else out.dtype))
            return jnp.zeros(out.shape, out.dtype)
        numbers = draws.pop(0)
        if kind == NORMAL:
            return numbers
        if is_integer:
            low, high = (jnp.asarray(x, jnp.float32) for x in inputs[1:3])
            steps = jnp.minimum(jnp.floor(numbers * (high - low)), high - low - 1)  # a product may be rounded up
            return jnp.asarray(inputs[1], out.dtype) + jnp.maximum(steps, 0).astype(out.dtype)
        low, high = jnp.minimum(*inputs[1:3]), jnp.maximum(*inputs[1:3])  # JAX may pass the bounds in either order
        return jnp.maximum(low, numbers * (high - low) + low)

"""An interpreter of traced programs that writes down every use of a random key."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import primitives

_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


class KeyRecord:
    """What happened to which key, over all programs that were run by it.

    Attributes:
        consumed: how often a key (its words) was drawn from or split.
        folded: how often a key was folded with a number, by (words, number).
    """

    def __init__(self) -> None:
        self.consumed: Counter[bytes] = Counter()
        self.folded: Counter[tuple[bytes, int]] = Counter()
        self._traced: dict[Any, tuple] = {}

    def run(self, fn: Any, *args: Any) -> Any:
        """``fn(*args)``, everything that touches keys one primitive after another.

        The same ``fn`` is traced once: call it again with arguments of the same shapes.
        """
        if fn not in self._traced:
            self._traced[fn] = jax.make_jaxpr(fn, return_shape=True)(*args)
        closed, shape = self._traced[fn]
        results = self._evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    def misused(self, but_for: KeyRecord | None = None) -> list[str]:
        """A sentence for every key that was used more than once; those that ``but_for`` has used may be."""
        consumed, folded = self.consumed, self.folded
        if but_for is not None:
            consumed = {key: count for key, count in consumed.items() if key not in but_for.consumed}
            folded = {key: count for key, count in folded.items() if key not in but_for.folded}
        problems = [f"{key.hex()} consumed {count} times" for key, count in consumed.items() if count > 1]
        problems += [f"{key.hex()} folded with {i} {count} times" for (key, i), count in folded.items() if count > 1]
        problems += [f"{key.hex()} consumed and folded" for key in {k for k, _ in folded} & set(consumed)]
        return problems

    def _note(self, eqn: core.JaxprEqn, operands: list[Any]) -> None:
        if eqn.primitive in (primitives.random_bits_p, primitives.random_split_p, primitives.random_gamma_p):
            self.consumed.update(_words(operands[0]))
        elif eqn.primitive is primitives.random_fold_in_p:
            keys, numbers = np.broadcast_arrays(np.arange(operands[0].size).reshape(operands[0].shape), operands[1])
            words = _words(operands[0])
            self.folded.update((words[k], int(n)) for k, n in zip(keys.ravel(), numbers.ravel(), strict=True))

    def _evaluate(self, jaxpr: Any, consts: Any, args: Any) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for eqns in _segments(jaxpr):
            if _is_random(eqns[0]):
                operands = [read(atom) for atom in eqns[0].invars]
                self._note(eqns[0], operands)
                results = self._apply(eqns[0], operands)
                values |= dict(zip(eqns[0].outvars, results, strict=True))
            else:
                program, inputs, outputs = _compiled(eqns)
                values |= dict(zip(outputs, program(*map(read, inputs)), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _apply(self, eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
        if eqn.primitive is primitives.scan_p:
            return self._scan(eqn.params, operands)
        if eqn.primitive is primitives.while_p:
            return self._while(eqn.params, operands)
        if eqn.primitive is primitives.cond_p:
            branch = eqn.params["branches"][int(operands[0])]
            return self._closed(branch, operands[1:])
        inner = next((eqn.params[name] for name in _CALLS if name in eqn.params), None)
        if inner is not None:
            return self._closed(inner, operands)
        return _bind(eqn, operands)

    def _closed(self, jaxpr: Any, operands: list[Any]) -> list[Any]:
        if hasattr(jaxpr, "jaxpr"):
            return self._evaluate(jaxpr.jaxpr, jaxpr.consts, operands)
        return self._evaluate(jaxpr, [], operands)

    def _scan(self, params: dict[str, Any], operands: list[Any]) -> list[Any]:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
        consts, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]
        rows = operands[num_consts + num_carry :]
        outputs = []
        steps = range(params["length"])
        for i in reversed(steps) if params["reverse"] else steps:
            results = self._closed(params["jaxpr"], [*consts, *carry, *(x[i] for x in rows)])
            carry = results[:num_carry]
            outputs.append(results[num_carry:])
        if params["reverse"]:
            outputs.reverse()
        return [*carry, *(jax.numpy.stack(column) for column in zip(*outputs, strict=True))]

    def _while(self, params: dict[str, Any], operands: list[Any]) -> list[Any]:
        num_condition, num_body = params["cond_nconsts"], params["body_nconsts"]
        condition_consts, body_consts = operands[:num_condition], operands[num_condition : num_condition + num_body]
        carry = operands[num_condition + num_body :]
        while bool(np.all(self._closed(params["cond_jaxpr"], [*condition_consts, *carry])[0])):
            carry = self._closed(params["body_jaxpr"], [*body_consts, *carry])
        return carry


def _is_random(eqn: core.JaxprEqn) -> bool:
    return "random" in eqn.primitive.name or any(
        _is_random(inner) for jaxpr in core.jaxprs_in_params(eqn.params) for inner in jaxpr.eqns
    )


def _segments(jaxpr: Any) -> list[list[core.JaxprEqn]]:
    """The equations in order: each that draws alone, those between together."""
    segments: list[list[core.JaxprEqn]] = []
    for eqn in jaxpr.eqns:
        if _is_random(eqn) or not segments or _is_random(segments[-1][0]):
            segments.append([])
        segments[-1].append(eqn)
    return segments


_programs: dict[int, tuple] = {}  # by the identity of the first equation, which the entry keeps alive


def _compiled(eqns: list[core.JaxprEqn]) -> tuple[Any, list[Any], list[Any]]:
    """Equations as one compiled program, the variables it takes and those it makes."""
    if id(eqns[0]) not in _programs:
        outputs = [var for eqn in eqns for var in eqn.outvars if not isinstance(var, core.DropVar)]
        read = [atom for eqn in eqns for atom in eqn.invars if not isinstance(atom, core.Literal)]
        inputs = list(dict.fromkeys(var for var in read if var not in set(outputs)))

        def program(*args: Any) -> list[Any]:
            values = dict(zip(inputs, args, strict=True))
            for eqn in eqns:
                operands = [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in eqn.invars]
                values |= dict(zip(eqn.outvars, _bind(eqn, operands), strict=True))
            return [values[var] for var in outputs]

        compiled = jax.jit(program, compiler_options={"xla_backend_optimization_level": 0})  # compiles in half the time
        _programs[id(eqns[0])] = (compiled, inputs, outputs, eqns)
    return _programs[id(eqns[0])][:3]


def _bind(eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    inner = eqn.params.get("call_jaxpr")  # of a function with a gradient of its own
    if isinstance(inner, core.ClosedJaxpr):
        return core.jaxpr_as_fun(inner)(*operands)
    results = eqn.primitive.bind(*operands, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _words(keys: Any) -> list[bytes]:
    words = np.asarray(jax.random.key_data(keys))
    return [row.tobytes() for row in words.reshape(-1, words.shape[-1])]

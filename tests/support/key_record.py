"""Traced programs whose every use of a random key is written down while they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import primitives

_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CONSUMING = (primitives.random_bits_p, primitives.random_split_p, primitives.random_gamma_p)


class KeyRecord:
    """What happened to which key, over all programs that were run by it.

    Attributes:
        consumed: how often a key (its words) was drawn from or split.
        folded: how often a key was folded with a number, by (words, number).
    """

    def __init__(self) -> None:
        self.consumed: Counter[bytes] = Counter()
        self.folded: Counter[tuple[bytes, int]] = Counter()
        self._programs: dict[Any, tuple[Callable[..., list[Any]], Any]] = {}

    def run(self, fn: Any, *args: Any) -> Any:
        """``fn(*args)`` as one program, which reports each key that it uses.

        The same ``fn`` is compiled once: call it again with arguments of the same shapes.
        """
        if fn not in self._programs:
            closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
            program = jax.jit(
                lambda *leaves: self._evaluate(closed, leaves),
                compiler_options={"xla_backend_optimization_level": 0},  # compiles in half the time
            )
            self._programs[fn] = program, jax.tree.structure(shape)
        program, structure = self._programs[fn]
        results = program(*jax.tree.leaves(args))
        jax.block_until_ready(results)
        jax.effects_barrier()  # what is reported has arrived
        return jax.tree.unflatten(structure, results)

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

    def _note_consumed(self, words: np.ndarray) -> None:
        self.consumed.update(_rows(words))

    def _note_folded(self, words: np.ndarray, numbers: np.ndarray) -> None:
        keys, numbers = np.broadcast_arrays(np.arange(words[..., 0].size).reshape(words.shape[:-1]), numbers)
        rows = _rows(words)
        self.folded.update((rows[k], int(n)) for k, n in zip(keys.ravel(), numbers.ravel(), strict=True))

    def _evaluate(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        """The program's equations over again, those that use keys with a report each."""
        jaxpr, consts = (closed.jaxpr, closed.consts) if hasattr(closed, "jaxpr") else (closed, [])
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            results = self._apply(eqn, operands) if _is_random(eqn) else _bind(eqn, operands)
            values |= dict(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _apply(self, eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
        if eqn.primitive is primitives.scan_p:
            return self._scan(eqn.params, operands)
        if eqn.primitive is primitives.while_p:
            return self._while(eqn.params, operands)
        if eqn.primitive is primitives.cond_p:
            branches = [lambda *args, branch=branch: self._evaluate(branch, args) for branch in eqn.params["branches"]]
            return jax.lax.switch(operands[0], branches, *operands[1:])
        inner = next((eqn.params[name] for name in _CALLS if name in eqn.params), None)
        if inner is not None:
            return self._evaluate(inner, operands)
        if eqn.primitive in _CONSUMING:
            jax.debug.callback(self._note_consumed, jax.random.key_data(operands[0]))
        elif eqn.primitive is primitives.random_fold_in_p:
            jax.debug.callback(self._note_folded, jax.random.key_data(operands[0]), operands[1])
        return _bind(eqn, operands)

    def _scan(self, params: dict[str, Any], operands: list[Any]) -> list[Any]:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
        consts, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]

        def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            results = self._evaluate(params["jaxpr"], [*consts, *carry, *row])
            return results[:num_carry], results[num_carry:]

        rows = operands[num_consts + num_carry :]
        carry, outputs = jax.lax.scan(body, carry, rows, length=params["length"], reverse=params["reverse"])
        return [*carry, *outputs]

    def _while(self, params: dict[str, Any], operands: list[Any]) -> list[Any]:
        num_condition, num_body = params["cond_nconsts"], params["body_nconsts"]
        condition_consts, body_consts = operands[:num_condition], operands[num_condition : num_condition + num_body]
        return jax.lax.while_loop(
            lambda carry: self._evaluate(params["cond_jaxpr"], [*condition_consts, *carry])[0],
            lambda carry: self._evaluate(params["body_jaxpr"], [*body_consts, *carry]),
            operands[num_condition + num_body :],
        )


def _is_random(eqn: core.JaxprEqn) -> bool:
    return "random" in eqn.primitive.name or any(
        _is_random(inner) for jaxpr in core.jaxprs_in_params(eqn.params) for inner in jaxpr.eqns
    )


def _bind(eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    inner = eqn.params.get("call_jaxpr")  # of a function with a gradient of its own
    if isinstance(inner, core.ClosedJaxpr):
        return core.jaxpr_as_fun(inner)(*operands)
    results = eqn.primitive.bind(*operands, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _rows(words: np.ndarray) -> list[bytes]:
    words = np.asarray(words)
    return [row.tobytes() for row in words.reshape(-1, words.shape[-1])]

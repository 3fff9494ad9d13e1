"""Traced programs whose every use of a random key is written down while they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import primitives

from tests.support.needed_equations import CONSUMING, NeededEquations, only, spread


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
        self._needed = NeededEquations()
        self._elsewhere: dict[str, KeyRecord] = {}

    def run(self, fn: Any, *args: Any) -> Any:
        """``fn(*args)`` as one program, which reports each key that it uses.

        The same ``fn`` is compiled once: call it again with arguments of the same shapes.
        """
        if fn not in self._programs:
            program, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
            self._programs[fn] = self._reporting(program, True), jax.tree.structure(shape)
        reporting, structure = self._programs[fn]
        return jax.tree.unflatten(structure, _reported(reporting, args))

    def follow(self, fn: Any, *args: Any, elsewhere: Mapping[str, KeyRecord] | None = None) -> None:
        """What ``fn(*args)`` does to keys. Only what that depends on is compiled and computed: no gradients, mostly.

        Args:
            fn: any function. What its results do not depend on may be missing from what is traced, so it returns all.
            elsewhere: other records, and the names of functions with a ``jit`` of their own which those are about.
        """
        self._elsewhere = dict(elsewhere or {})
        _reported(self._reporting(jax.make_jaxpr(fn)(*args), False), args)

    def _reporting(self, program: core.ClosedJaxpr, wanted: bool) -> Callable[..., list[Any]]:
        return jax.jit(
            lambda *leaves: self._evaluate(program, leaves, [wanted] * len(program.jaxpr.outvars)),
            compiler_options={"xla_backend_optimization_level": 0},  # compiles in half the time
        )

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

    def _evaluate(self, program: Any, args: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        """The program's equations over again, as far as they are needed for the ``wanted`` results and for keys, whose
        uses are reported. Other results are ``None``, as arguments may be that are not needed.
        """
        jaxpr, consts = (program.jaxpr, program.consts) if hasattr(program, "jaxpr") else (program, [])
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values.get(atom)

        for eqn, results in self._needed.of(jaxpr, wanted)[0]:
            outputs = self._apply(eqn, [read(atom) for atom in eqn.invars], results)
            values |= dict(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) if is_wanted else None for atom, is_wanted in zip(jaxpr.outvars, wanted, strict=True)]

    def _apply(self, eqn: core.JaxprEqn, operands: list[Any], results: list[bool]) -> list[Any]:
        if eqn.primitive is primitives.scan_p:
            return self._scan(eqn, operands, results)
        if eqn.primitive is primitives.while_p:
            return self._while(eqn, operands, results)
        if eqn.primitive is primitives.cond_p:
            branches = [
                lambda *args, branch=branch: only(self._evaluate(branch, args, results), results)
                for branch in eqn.params["branches"]
            ]
            return spread(jax.lax.switch(operands[0], branches, *operands[1:]), results)
        if (program := self._needed.called(eqn)) is not None:
            return self._elsewhere.get(eqn.params.get("name"), self)._evaluate(program, operands, results)
        if eqn.primitive in CONSUMING:
            jax.debug.callback(self._note_consumed, jax.random.key_data(operands[0]))
        elif eqn.primitive is primitives.random_fold_in_p:
            jax.debug.callback(self._note_folded, jax.random.key_data(operands[0]), operands[1])
        elif self._needed.uses_keys(eqn):
            raise NotImplementedError(f"keys are used within {eqn.primitive}")
        return _bind(eqn, operands) if any(results) else [None] * len(results)

    def _scan(self, eqn: core.JaxprEqn, operands: list[Any], results: list[bool]) -> list[Any]:
        program, num_consts = eqn.params["jaxpr"], eqn.params["num_consts"]
        kept, num_carry = self._needed.carried(eqn, results), eqn.params["num_carry"]
        wanted = [*kept, *results[num_carry:]]
        has_row = self._needed.of(program, wanted)[1][num_consts + num_carry :]
        consts, carry, rows = (operands[:num_consts], *_cut(operands[num_consts:], num_carry))

        def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            args = [*consts, *spread(carry, kept), *spread(row, has_row)]
            carry, outputs = _cut(self._evaluate(program, args, wanted), num_carry)
            return only(carry, kept), only(outputs, results[num_carry:])

        length, reverse = eqn.params["length"], eqn.params["reverse"]
        carry, outputs = jax.lax.scan(body, only(carry, kept), only(rows, has_row), length=length, reverse=reverse)
        return [*spread(carry, kept), *spread(outputs, results[num_carry:])]

    def _while(self, eqn: core.JaxprEqn, operands: list[Any], results: list[bool]) -> list[Any]:
        condition_consts, rest = _cut(operands, eqn.params["cond_nconsts"])
        body_consts, carry = _cut(rest, eqn.params["body_nconsts"])
        kept, condition, body = (self._needed.carried(eqn, results), eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"])
        last = jax.lax.while_loop(
            lambda carry: self._evaluate(condition, [*condition_consts, *spread(carry, kept)], [True])[0],
            lambda carry: only(self._evaluate(body, [*body_consts, *spread(carry, kept)], kept), kept),
            only(carry, kept),
        )
        return spread(last, kept)


def _cut(values: Sequence[Any], num: int) -> tuple[list[Any], list[Any]]:
    return list(values[:num]), list(values[num:])


def _reported(program: Callable[..., list[Any]], args: Sequence[Any]) -> list[Any]:
    results = program(*jax.tree.leaves(args))
    jax.block_until_ready(results)
    jax.effects_barrier()  # what is reported has arrived
    return results


def _bind(eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    results = eqn.primitive.bind(*operands, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _rows(words: np.ndarray) -> list[bytes]:
    words = np.asarray(words)
    return [row.tobytes() for row in words.reshape(-1, words.shape[-1])]

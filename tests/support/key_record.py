"""Traced programs that record every use of a random key."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.core import primitives

from evorl.ops.traced_programs import scan_sizes

CONSUMING = (primitives.random_bits_p, primitives.random_split_p, primitives.random_gamma_p)
_CALLS = (primitives.jit_p, primitives.remat_p, primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)
_MORE_THAN_CALLS = (primitives.scan_p, primitives.while_p, primitives.cond_p)
_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")


def only(values: Iterable[Any], flags: Iterable[bool]) -> list[Any]:
    """Return the flagged values."""
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def spread(values: Iterable[Any], flags: Iterable[bool]) -> list[Any]:
    """Return the values at flagged positions, ``None`` elsewhere."""
    values = iter(values)
    return [next(values) if flag else None for flag in flags]


class NeededEquations:
    """Equations needed for chosen results, cached per program and choice."""

    def __init__(self) -> None:
        self._found: dict[Any, tuple[list[tuple[core.JaxprEqn, list[bool]]], list[bool]]] = {}
        self._random: dict[int, tuple[Any, bool]] = {}  # with the program, so that its id is not reused

    def of(self, program: Any, wanted: Sequence[bool]) -> tuple[list[tuple[core.JaxprEqn, list[bool]]], list[bool]]:
        """Return the equations that use keys or contribute to ``wanted`` results, with the needed results of each, and
        the needed inputs.
        """
        jaxpr = getattr(program, "jaxpr", program)
        place = (jaxpr, tuple(wanted))
        if place not in self._found:
            needed = set(_variables(only(jaxpr.outvars, wanted)))
            kept = []
            for eqn in reversed(jaxpr.eqns):
                results = [variable in needed for variable in eqn.outvars]
                if any(results) or self.uses_keys(eqn):
                    needed.update(_variables(only(eqn.invars, self._operands(eqn, results))))
                    kept.append((eqn, results))
            self._found[place] = kept[::-1], [variable in needed for variable in jaxpr.invars]
        return self._found[place]

    def uses_keys(self, eqn: core.JaxprEqn) -> bool:
        """Return True if an equation, or a program within it, samples from, splits or folds keys."""
        if eqn.primitive in CONSUMING or eqn.primitive is primitives.random_fold_in_p:
            return True
        return any(self._has_keys(jaxpr) for jaxpr in core.jaxprs_in_params(eqn.params))

    def _has_keys(self, jaxpr: core.Jaxpr) -> bool:
        if id(jaxpr) not in self._random:
            self._random[id(jaxpr)] = jaxpr, any(map(self.uses_keys, jaxpr.eqns))
        return self._random[id(jaxpr)][1]

    def called(self, eqn: core.JaxprEqn) -> Any:
        """Return the program that an equation calls once with its own operands; ``None`` for loops and branches."""
        if eqn.primitive in _CALLS or (self.uses_keys(eqn) and eqn.primitive not in _MORE_THAN_CALLS):
            return next((eqn.params[name] for name in _JAXPRS if name in eqn.params), None)
        return None

    def carried(self, eqn: core.JaxprEqn, results: Sequence[bool]) -> list[bool]:
        """Return the carried values of a loop that are needed for some of its results or by the next iteration."""
        params, is_scan = eqn.params, eqn.primitive is primitives.scan_p
        program = params["jaxpr"] if is_scan else params["body_jaxpr"]
        num_consts, num_carry = scan_sizes(eqn) if is_scan else (params["body_nconsts"], len(results))
        kept = list(results[:num_carry])
        if not is_scan:
            ends = self.of(params["cond_jaxpr"], [True])[1][params["cond_nconsts"] :]
            kept = [a or b for a, b in zip(kept, ends, strict=True)]
        while True:
            needed = self.of(program, [*kept, *results[len(kept) :]])[1][num_consts : num_consts + len(kept)]
            more = [a or b for a, b in zip(kept, needed, strict=True)]
            if more == kept:
                return kept
            kept = more

    def _operands(self, eqn: core.JaxprEqn, results: list[bool]) -> list[bool]:
        """Return the operands that an equation needs for some of its results and for records of keys."""
        params = eqn.params
        if eqn.primitive is primitives.scan_p:
            kept, (first, _) = self.carried(eqn, results), scan_sizes(eqn)
            needed = self.of(params["jaxpr"], [*kept, *results[len(kept) :]])[1]
            return [*needed[:first], *kept, *needed[first + len(kept) :]]
        if eqn.primitive is primitives.while_p:
            kept = self.carried(eqn, results)
            condition = self.of(params["cond_jaxpr"], [True])[1][: params["cond_nconsts"]]
            return [*condition, *self.of(params["body_jaxpr"], kept)[1][: params["body_nconsts"]], *kept]
        if eqn.primitive is primitives.cond_p:
            needed = [self.of(branch, results)[1] for branch in params["branches"]]
            return [True, *map(any, zip(*needed, strict=True))]
        if (program := self.called(eqn)) is not None:
            return self.of(program, results)[1]
        if eqn.primitive in CONSUMING and not any(results):
            return [True, *[False] * (len(eqn.invars) - 1)]
        return [True] * len(eqn.invars)


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


MOST_ROUNDS = 128  # recorded iterations of a while loop


@dataclasses.dataclass
class KeyUse:
    """Keys that one equation samples from, splits or folds, in each iteration of the enclosing loops.

    Attributes:
        words: data of the keys, as the last axis.
        numbers: number that each key is folded with; ``None`` if not folded.
        happened: by iteration, True if executed; branches not chosen use no keys.
        lost: by iteration, True if more uses occurred than can be recorded.
        record: the record to which they belong.
    """

    words: jax.Array
    numbers: jax.Array | None
    happened: jax.Array
    lost: jax.Array
    record: KeyRecord = dataclasses.field(metadata={"static": True})

    def write_down(self) -> None:
        """Add the computed uses to the record.

        Raises:
            ValueError: iterations of a loop are missing.
        """
        if np.any(self.lost):
            raise ValueError(f"a loop that uses keys took more than {MOST_ROUNDS} rounds: make it shorter in the test")
        happened, words = np.asarray(self.happened), np.asarray(self.words)
        rows = [row.tobytes() for row in words[happened].reshape(-1, words.shape[-1])]
        if self.numbers is None:
            self.record.consumed.update(rows)
        else:
            self.record.folded.update(zip(rows, np.asarray(self.numbers)[happened].ravel().tolist(), strict=True))


jax.tree_util.register_dataclass(KeyUse)


class KeyRecord:
    """Uses of keys over all programs that were run with it.

    Attributes:
        consumed: number of times that a key (its data) was sampled from or split.
        folded: number of times that a key was folded with a number, by (data, number).
    """

    def __init__(self) -> None:
        self.consumed: Counter[bytes] = Counter()
        self.folded: Counter[tuple[bytes, int]] = Counter()
        self._programs: dict[Any, tuple[Callable[..., Any], Any]] = {}
        self._needed = NeededEquations()
        self._elsewhere: dict[str, KeyRecord] = {}

    def run(self, fn: Any, *args: Any) -> Any:
        """Run ``fn(*args)`` as one program that records each key use.

        Each ``fn`` is compiled once: call it again with arguments of the same shapes.
        """
        if fn not in self._programs:
            program, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
            self._programs[fn] = self._reporting(program, True), jax.tree.structure(shape)
        reporting, structure = self._programs[fn]
        return jax.tree.unflatten(structure, _reported(reporting, args))

    def follow(self, fn: Any, *args: Any, elsewhere: Mapping[str, KeyRecord] | None = None) -> None:
        """Record the key uses of ``fn(*args)``. Only their dependencies are compiled and computed, mostly without
        gradients.

        Args:
            fn: any function; it must return all its results, because tracing may drop unused computations.
            elsewhere: other records, with the names of jitted functions whose uses belong to them.
        """
        self._elsewhere = dict(elsewhere or {})
        _reported(self._reporting(jax.make_jaxpr(fn)(*args), False), args)

    def _reporting(self, program: core.ClosedJaxpr, wanted: bool) -> Callable[..., tuple[list[Any], list[KeyUse]]]:
        """Return a program whose results include the uses; callbacks into Python would prevent caching."""
        return jax.jit(
            lambda *leaves: self._evaluate(program, leaves, [wanted] * len(program.jaxpr.outvars)),
            compiler_options={"xla_backend_optimization_level": 0},  # compiles in half the time
        )

    def misused(self, but_for: KeyRecord | None = None) -> list[str]:
        """Return a sentence for every key that was used more than once, except for keys in ``but_for``."""
        consumed, folded = self.consumed, self.folded
        if but_for is not None:
            consumed = {key: count for key, count in consumed.items() if key not in but_for.consumed}
            folded = {key: count for key, count in folded.items() if key not in but_for.folded}
        problems = [f"{key.hex()} consumed {count} times" for key, count in consumed.items() if count > 1]
        problems += [f"{key.hex()} folded with {i} {count} times" for (key, i), count in folded.items() if count > 1]
        problems += [f"{key.hex()} consumed and folded" for key in {k for k, _ in folded} & set(consumed)]
        return problems

    def _evaluate(self, program: Any, args: Sequence[Any], wanted: Sequence[bool]) -> tuple[list[Any], list[KeyUse]]:
        """Evaluate the equations needed for the ``wanted`` results and for keys; return the results and the key uses.
        Other results are ``None``, as unneeded arguments may be.
        """
        jaxpr, consts = (program.jaxpr, program.consts) if hasattr(program, "jaxpr") else (program, [])
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))
        uses: list[KeyUse] = []

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values.get(atom)

        for eqn, results in self._needed.of(jaxpr, wanted)[0]:
            outputs, more = self._apply(eqn, [read(atom) for atom in eqn.invars], results)
            values |= dict(zip(eqn.outvars, outputs, strict=True))
            uses += more
        return [read(atom) if is_wanted else None for atom, is_wanted in zip(jaxpr.outvars, wanted, strict=True)], uses

    def _apply(self, eqn: core.JaxprEqn, operands: list[Any], results: list[bool]) -> tuple[list[Any], list[KeyUse]]:
        if eqn.primitive is primitives.scan_p:
            return self._scan(eqn, operands, results)
        if eqn.primitive is primitives.while_p:
            return self._while(eqn, operands, results)
        if eqn.primitive is primitives.cond_p:
            return self._cond(eqn, operands, results)
        if (program := self._needed.called(eqn)) is not None:
            return self._elsewhere.get(eqn.params.get("name"), self)._evaluate(program, operands, results)
        uses = []
        if eqn.primitive in CONSUMING:
            uses = [self._use(operands[0], None)]
        elif eqn.primitive is primitives.random_fold_in_p:
            uses = [self._use(*jnp.broadcast_arrays(*operands))]
        elif self._needed.uses_keys(eqn):
            raise NotImplementedError(f"keys are used within {eqn.primitive}")
        return _bind(eqn, operands) if any(results) else [None] * len(results), uses

    def _use(self, keys: jax.Array, numbers: jax.Array | None) -> KeyUse:
        return KeyUse(jax.random.key_data(keys), numbers, jnp.array(True), jnp.array(False), self)

    def _cond(self, eqn: core.JaxprEqn, operands: list[Any], results: list[bool]) -> tuple[list[Any], list[KeyUse]]:
        """Evaluate the selected branch; the uses of other branches are recorded as not executed."""
        branches = [
            jax.jit(lambda *args, branch=branch: self._evaluate(branch, args, results))
            for branch in eqn.params["branches"]
        ]
        uses = [jax.eval_shape(branch, *operands[1:])[1] for branch in branches]

        def taken(number: int) -> Callable[..., tuple[list[Any], list[list[KeyUse]]]]:
            def branch(*args: Any) -> tuple[list[Any], list[list[KeyUse]]]:
                outputs, own = branches[number](*args)
                nothing = jax.tree.map(lambda use: jnp.zeros(use.shape, use.dtype), uses)
                return outputs, [*nothing[:number], own, *nothing[number + 1 :]]

            return branch

        outputs, found = jax.lax.switch(operands[0], [taken(i) for i in range(len(branches))], *operands[1:])
        return outputs, [use for of_one in found for use in of_one]

    def _scan(self, eqn: core.JaxprEqn, operands: list[Any], results: list[bool]) -> tuple[list[Any], list[KeyUse]]:
        program, (num_consts, num_carry) = eqn.params["jaxpr"], scan_sizes(eqn)
        kept = self._needed.carried(eqn, results)
        wanted = [*kept, *results[num_carry:]]
        has_row = self._needed.of(program, wanted)[1][num_consts + num_carry :]
        consts, carry, rows = (operands[:num_consts], *_cut(operands[num_consts:], num_carry))

        def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], tuple[list[Any], list[KeyUse]]]:
            args = [*consts, *spread(carry, kept), *spread(row, has_row)]
            found, uses = self._evaluate(program, args, wanted)
            carry, outputs = _cut(found, num_carry)
            return only(carry, kept), (only(outputs, results[num_carry:]), uses)

        length, reverse = eqn.params["length"], eqn.params["reverse"]
        carry, (outputs, uses) = jax.lax.scan(
            body, only(carry, kept), only(rows, has_row), length=length, reverse=reverse
        )
        return [*spread(carry, kept), *spread(outputs, results[num_carry:])], uses

    def _while(self, eqn: core.JaxprEqn, operands: list[Any], results: list[bool]) -> tuple[list[Any], list[KeyUse]]:
        """Evaluate a while loop; a limited number of iterations is recorded.

        The condition of a loop under ``vmap`` has leading axes: the loop continues while it is true for any member of
        the batch, and members for which it is false keep their values.
        """
        condition_consts, rest = _cut(operands, eqn.params["cond_nconsts"])
        body_consts, carry = _cut(rest, eqn.params["body_nconsts"])
        kept, condition, body = (self._needed.carried(eqn, results), eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"])

        def goes_on(carry: list[Any]) -> tuple[Any, list[KeyUse]]:
            (found,), uses = self._evaluate(condition, [*condition_consts, *spread(carry, kept)], [True])
            return found, uses

        @jax.jit
        def one_round(carry: list[Any]) -> tuple[list[Any], Any, list[KeyUse]]:
            outputs, uses = self._evaluate(body, [*body_consts, *spread(carry, kept)], kept)
            carry = only(outputs, kept)
            another, more = goes_on(carry)
            if another.shape and uses + more:
                raise NotImplementedError("keys are used within a while loop under vmap")
            return carry, another, uses + more

        def next_round(state: tuple[list[Any], Any, Any, Any]) -> tuple[list[Any], Any, Any, Any]:
            old, goes, number, uses = state
            new, another, more = one_round(old)
            carry = [
                jnp.where(jnp.expand_dims(goes, range(goes.ndim, a.ndim)), a, b) for a, b in zip(new, old, strict=True)
            ]
            uses = jax.tree.map(lambda all, one: all.at[number].set(one, mode="drop"), uses, more)
            return carry, another, number + 1, uses

        start = only(carry, kept)
        room = jax.eval_shape(one_round, start)[2]
        room = jax.tree.map(lambda use: jnp.zeros((MOST_ROUNDS, *use.shape), use.dtype), room)
        another, before = goes_on(start)
        last, _, num_rounds, uses = jax.lax.while_loop(
            lambda state: jnp.any(state[1]), next_round, (start, another, 0, room)
        )
        for use in uses:
            use.lost |= num_rounds > MOST_ROUNDS
        return spread(last, kept), before + uses


def _cut(values: Sequence[Any], num: int) -> tuple[list[Any], list[Any]]:
    return list(values[:num]), list(values[num:])


def _reported(program: Callable[..., tuple[list[Any], list[KeyUse]]], args: Sequence[Any]) -> list[Any]:
    results, uses = program(*jax.tree.leaves(args))
    for use in jax.device_get(uses):
        use.write_down()
    return results


def _bind(eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    results = eqn.primitive.bind(*operands, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]

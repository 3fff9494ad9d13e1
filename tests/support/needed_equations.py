"""Which equations of a traced program are needed for some of its results, and for its uses of random keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend import core
from jax.extend.core import primitives

CONSUMING = (primitives.random_bits_p, primitives.random_split_p, primitives.random_gamma_p)
_CALLS = (primitives.jit_p, primitives.remat_p, primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)
_MORE_THAN_CALLS = (primitives.scan_p, primitives.while_p, primitives.cond_p)
_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")


def only(values: Iterable[Any], flags: Iterable[bool]) -> list[Any]:
    """The values that are flagged."""
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def spread(values: Iterable[Any], flags: Iterable[bool]) -> list[Any]:
    """The values in the places that are flagged, ``None`` elsewhere."""
    values = iter(values)
    return [next(values) if flag else None for flag in flags]


class NeededEquations:
    """What is needed is found once for every program and choice of its results."""

    def __init__(self) -> None:
        self._found: dict[Any, tuple[list[tuple[core.JaxprEqn, list[bool]]], list[bool]]] = {}
        self._random: dict[int, tuple[Any, bool]] = {}  # with the program, so that no other has its id

    def of(self, program: Any, wanted: Sequence[bool]) -> tuple[list[tuple[core.JaxprEqn, list[bool]]], list[bool]]:
        """The equations that use keys or that ``wanted`` results follow from, with the results that are needed of
        each; and which inputs they need.
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
        """Whether keys are drawn from, split or folded by an equation, or within it."""
        if eqn.primitive in CONSUMING or eqn.primitive is primitives.random_fold_in_p:
            return True
        return any(self._has_keys(jaxpr) for jaxpr in core.jaxprs_in_params(eqn.params))

    def _has_keys(self, jaxpr: core.Jaxpr) -> bool:
        if id(jaxpr) not in self._random:
            self._random[id(jaxpr)] = jaxpr, any(map(self.uses_keys, jaxpr.eqns))
        return self._random[id(jaxpr)][1]

    def called(self, eqn: core.JaxprEqn) -> Any:
        """The program that an equation calls once with its own operands, or ``None``: loops and branches do more."""
        if eqn.primitive in _CALLS or (self.uses_keys(eqn) and eqn.primitive not in _MORE_THAN_CALLS):
            return next((eqn.params[name] for name in _JAXPRS if name in eqn.params), None)
        return None

    def carried(self, eqn: core.JaxprEqn, results: Sequence[bool]) -> list[bool]:
        """Of a loop: which carried values are needed for some of its results, by the next round too."""
        params, is_scan = eqn.params, eqn.primitive is primitives.scan_p
        program = params["jaxpr"] if is_scan else params["body_jaxpr"]
        num_consts = params["num_consts"] if is_scan else params["body_nconsts"]
        kept = list(results[: params["num_carry"]] if is_scan else results)
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
        """Which operands an equation needs for some of its results and for reports of keys."""
        params = eqn.params
        if eqn.primitive is primitives.scan_p:
            kept, first = self.carried(eqn, results), params["num_consts"]
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

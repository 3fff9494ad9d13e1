"""Counts the work of a traced program before compilation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.extend.core as jex


class Work(NamedTuple):
    """Work of one call of a program.

    Attributes:
        operations: number of operations, in all iterations of loops; on a GPU, about ten operations form a kernel.
        numbers: total number of elements in the results of all operations.
    """

    operations: int
    numbers: int


def work_of(jaxpr: Any) -> Work:
    """Return the work of a ``Jaxpr`` or ``ClosedJaxpr``. A loop of unknown length counts as one iteration.

    For a conditional, only the branch with the most operations counts.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    operations = numbers = 0
    for eqn in jaxpr.eqns:
        inner = [work_of(program) for program in programs_in(eqn)] or [
            Work(1, sum(getattr(var.aval, "size", 1) for var in eqn.outvars))
        ]
        if eqn.primitive.name == "cond":
            inner = [max(inner)]
        turns = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        operations += turns * sum(work.operations for work in inner)
        numbers += turns * sum(work.numbers for work in inner)
    return Work(operations, numbers)


def scan_sizes(eqn: Any) -> tuple[int, int]:
    """Return the number of constants and the number of carried values of a ``scan``, which are its first operands."""
    if "ft_in" in eqn.params:  # JAX 0.11.2 and later
        consts, carried, _ = eqn.params["ft_in"].unpack()
        return len(consts), len(carried)
    return eqn.params["num_consts"], eqn.params["num_carry"]


def programs_in(eqn: Any) -> Iterator[Any]:
    """Yield the jaxprs that are parameters of an equation: functions that it calls, branches, or bodies of loops."""
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jex.Jaxpr | jex.ClosedJaxpr):
                yield item

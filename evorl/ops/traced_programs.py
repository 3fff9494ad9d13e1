"""The work of a traced program, counted before it is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.extend.core as jex


class Work(NamedTuple):
    """Work of one call of a program.

    Attributes:
        operations: operations, those in a loop multiplied by its turns; on a GPU about ten of them make a kernel.
        numbers: elements of all their results.
    """

    operations: int
    numbers: int


def work_of(jaxpr: Any) -> Work:
    """Return the work of a (closed) program. A loop with an unknown number of turns counts as one turn.

    Of the branches of a conditional the largest counts: under ``vmap`` all of them are computed.
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


def programs_in(eqn: Any) -> Iterator[Any]:
    """Yield the programs that an equation calls or repeats."""
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jex.Jaxpr | jex.ClosedJaxpr):
                yield item

"""Patches of private parts of JAX that save time; only the long lane uses them, so a newcomer's tests need none."""

from __future__ import annotations

import itertools
from typing import Any

from jax._src import compiler, distributed
from jax._src.interpreters import mlir

LOWERINGS_PER_CONTEXT = 200  # constants of programs stay in a context as long as it does


def lower_in_one_context() -> None:
    """Let programs that are lowered one after another share a context of the compiler's dialects.

    JAX makes one for each, which is a quarter of all that a small program costs (4 of 17 ms); tests have 25,000. One
    that is lowered while another is, for a number which that needs, has its own: it would be put into the other.
    """
    make, made, count = mlir.make_ir_context, [], itertools.count()

    def shared() -> mlir.ir.Context:
        if _is_lowering():
            return make()
        if next(count) % LOWERINGS_PER_CONTEXT == 0:
            made[:] = [make()]
        return made[0]

    mlir.make_ir_context = shared


def _is_lowering() -> bool:
    try:
        return mlir.ir.Context.current is not None
    except ValueError:  # there is none
        return False


def every_process_keeps_programs() -> None:
    """Of several processes JAX lets only the first write, for fear of file systems that are shared by machines; but on
    CPUs each has programs of its own, for its own device.
    """
    write, state = compiler._cache_write, distributed.global_state

    def written(*program: Any) -> None:
        index, state.process_id = state.process_id, 0
        try:
            write(*program)
        finally:
            state.process_id = index

    compiler._cache_write = written

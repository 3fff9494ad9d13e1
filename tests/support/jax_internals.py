"""Patches of private parts of JAX that save time, used only by the long lane, so that newcomers' tests need none."""

from __future__ import annotations

import itertools
from typing import Any

from jax._src import compiler, distributed
from jax._src.interpreters import mlir

LOWERINGS_PER_CONTEXT = 200  # a context keeps the constants of its programs


def lower_in_one_context() -> None:
    """Let consecutively lowered programs share one MLIR context.

    JAX creates one for each, a quarter of the cost of a small program (4 of 17 ms); tests have 25,000. Programs that
    are lowered during the lowering of another one, for a constant, get a separate context.
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
    except ValueError:  # no context
        return False


def every_process_keeps_programs() -> None:
    """Let every process write to the compilation cache. JAX lets only the first write because of shared file systems,
    but on CPUs each process has programs for its own device.
    """
    write, state = compiler._cache_write, distributed.global_state

    def written(*program: Any) -> None:
        index, state.process_id = state.process_id, 0
        try:
            write(*program)
        finally:
            state.process_id = index

    compiler._cache_write = written

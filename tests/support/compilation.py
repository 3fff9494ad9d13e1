"""How hard the compiler tries in tests."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import jax
from jax._src.interpreters import mlir

LOWERINGS_PER_CONTEXT = 200  # constants of programs stay in a context as long as it does


@contextlib.contextmanager
def compiled_to_run_long() -> Iterator[None]:
    """What is compiled inside, or in the function this decorates, is as fast as for a user (level 2, see conftest).

    Elsewhere in the tests nothing is optimised that need not be: most programs run for moments. Those that train for
    thousands of steps would take three times as long.
    """
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


def lower_in_one_context() -> None:
    """Let programs that are lowered one after another share a context of the compiler's dialects.

    JAX makes one for each, which is a quarter of all that a small program costs (4 of 17 ms); tests have 25,000.
    """
    make, made, count = mlir.make_ir_context, [], itertools.count()

    def shared() -> mlir.ir.Context:
        if next(count) % LOWERINGS_PER_CONTEXT == 0:
            made[:] = [make()]
        return made[0]

    mlir.make_ir_context = shared

"""How hard the compiler tries in tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax


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

"""Which programs are compiled."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def compiled_names() -> Iterator[list[str]]:
    """The names of the programs that are compiled, or fetched from the cache, within."""
    names: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = re.search(r"Finished XLA compilation of (\S+)", record.getMessage())
            if found:
                names.append(found.group(1))

    handler, logger = Handler(), logging.getLogger("jax")
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    jax.config.update("jax_log_compiles", True)  # in every thread, which jax.log_compiles() would not be
    try:
        yield names
    finally:
        jax.config.update("jax_log_compiles", False)
        logger.removeHandler(handler)
        logger.propagate = propagate

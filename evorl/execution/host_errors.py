"""Translates JAX's errors about failed simulators, which compiled programs call on the host, to ``HostEnvError``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import jax

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.host.simulators import failures


@contextlib.contextmanager
def translate_host_errors() -> Iterator[None]:
    """Context that raises a compiled program's error as the ``HostEnvError`` of the simulator that caused it."""
    failures.clear()
    logger = logging.getLogger("jax._src.callback")  # would log the traceback of the error

    def is_no_failure(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HostEnvError))

    logger.addFilter(is_no_failure)
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not failures:
            raise
        raise HostEnvError(str(failures[0])) from error
    finally:
        logger.removeFilter(is_no_failure)

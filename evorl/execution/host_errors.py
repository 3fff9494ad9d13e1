"""Failures of simulators that a compiled program calls, told as what they are."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator

import jax

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.host.simulators import failures


@contextlib.contextmanager
def host_errors_in_words() -> Iterator[None]:
    """Within: if a compiled program ends because simulators failed, the error is theirs, not the program's.

    Raises:
        HostEnvError: that error.
    """
    failures.clear()
    logger = logging.getLogger("jax._src.callback")  # it would log the traceback of what is told in a sentence
    is_no_failure = functools.partial(_is_no_failure)  # one for each that is within another
    logger.addFilter(is_no_failure)
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not failures:
            raise
        raise HostEnvError(str(failures[0])) from error
    finally:
        logger.removeFilter(is_no_failure)


def _is_no_failure(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HostEnvError))

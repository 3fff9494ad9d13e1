"""Compilation in tests: optimization level, program cache, and names of compiled programs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from evorl.execution.runtime import cache_folder
from evorl.runs.files import RunFolderError, make_private_folder

DAYS_KEPT = 30  # unused programs are deleted after this time


@contextlib.contextmanager
def compiled_to_run_long() -> Iterator[None]:
    """Compile programs within the context, or the decorated function, as fast as for a user (level 2, see conftest).

    Elsewhere tests skip optimizations, because most programs run for moments. Training for thousands of steps would
    take three times as long.
    """
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


def keep_programs() -> None:
    """Cache compiled programs in the user's cache folder, separate from the programs of training runs.

    All checkouts and processes share the cache: its key consists of the program, the compiler's flags and its version.
    Reading a small program costs a third of its compilation. ``JAX_COMPILATION_CACHE_DIR`` selects another folder; if
    no folder is writable, programs are not cached.
    """
    folder = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_folder().with_name("tests"))
    try:
        make_private_folder(folder)
    except RunFolderError:
        return
    _forget_old(folder)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["XDG_CACHE_HOME"] = str(folder)  # also for child processes
    jax.config.update("jax_compilation_cache_dir", str(folder))
    for name in ("jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes"):
        os.environ.setdefault(name.upper(), "-1")  # including single operations
        jax.config.update(name, -1)


def _forget_old(folder: Path) -> None:
    oldest = time.time() - DAYS_KEPT * 24 * 3600
    for file in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process may delete it at the same time
            about = file.stat()
            if max(about.st_atime, about.st_mtime) < oldest:
                file.unlink()


@contextmanager
def compiled_names() -> Iterator[list[str]]:
    """Collect the names of programs that are compiled, or read from the cache, within the context."""
    names: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = re.search(r"Finished XLA compilation of (\S+)", record.getMessage())
            if found:
                names.append(found.group(1))

    handler, logger = Handler(), logging.getLogger("jax")
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    jax.config.update("jax_log_compiles", True)  # for every thread, unlike jax.log_compiles()
    try:
        yield names
    finally:
        jax.config.update("jax_log_compiles", False)
        logger.removeHandler(handler)
        logger.propagate = propagate

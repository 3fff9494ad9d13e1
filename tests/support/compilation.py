"""Compilation in tests: effort of the compiler, cache of programs, and the names of programs that are compiled."""

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

DAYS_KEPT = 30  # a compiled program that was not read for so long is forgotten


@contextlib.contextmanager
def compiled_to_run_long() -> Iterator[None]:
    """What is compiled inside, or in the function this decorates, is as fast as for a user (level 2, see conftest).

    Elsewhere in the tests nothing is optimized that need not be: most programs run for moments. Those that train for
    thousands of steps would take three times as long.
    """
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


def keep_programs() -> None:
    """Keep compiled programs in the user's cache folder, beside those of trainings, which are neither read nor written.

    All checkouts and all processes of a run share them: a program is known by what it computes, the compiler's flags
    and version. Reading a small one costs a third of compiling it. ``JAX_COMPILATION_CACHE_DIR`` names another folder;
    without one that can be written programs are not kept.
    """
    folder = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_folder().with_name("tests"))
    try:
        make_private_folder(folder)
    except RunFolderError:
        return
    _forget_old(folder)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["XDG_CACHE_HOME"] = str(folder)  # of what tests start, too
    jax.config.update("jax_compilation_cache_dir", str(folder))
    for name in ("jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes"):
        os.environ.setdefault(name.upper(), "-1")  # single operations too
        jax.config.update(name, -1)


def _forget_old(folder: Path) -> None:
    oldest = time.time() - DAYS_KEPT * 24 * 3600
    for file in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
            about = file.stat()
            if max(about.st_atime, about.st_mtime) < oldest:
                file.unlink()


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

"""Compiler effort in tests, and the cache of compiled programs."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache, compiler, distributed
from jax._src.interpreters import mlir

from evorl.execution.runtime import cache_folder
from evorl.runs.files import RunFolderError, make_private_folder

DAYS_KEPT = 30  # a compiled program that was not read for so long is forgotten
LOWERINGS_PER_CONTEXT = 200  # constants of programs stay in a context as long as it does
MOST_AT_HAND = 50  # programs that were read last

_at_hand: collections.OrderedDict[Any, Any] = collections.OrderedDict()


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
    _read_once()


def _read_once() -> None:
    """Give a program that was read lately out again, mostly to the test after: of 16,000 that all tests read these are
    1,000, and large ones, which take 15 processor seconds to read.
    """
    read = compilation_cache.get_executable_and_time

    def at_hand_or_read(key: str, options: Any, backend: Any, devices: Any) -> tuple[Any, Any]:
        if (key, devices) not in _at_hand:
            found = read(key, options, backend, devices)
            if found[0] is None:
                return found
            _at_hand[key, devices] = found
        _at_hand.move_to_end((key, devices))
        while len(_at_hand) > MOST_AT_HAND:
            _at_hand.popitem(last=False)
        return _at_hand[key, devices]

    compilation_cache.get_executable_and_time = at_hand_or_read


def forget_programs_at_hand() -> None:
    """They take memory maps of the process, too."""
    _at_hand.clear()


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


def _forget_old(folder: Path) -> None:
    oldest = time.time() - DAYS_KEPT * 24 * 3600
    for file in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
            about = file.stat()
            if max(about.st_atime, about.st_mtime) < oldest:
                file.unlink()

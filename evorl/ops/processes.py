"""Communication between the processes of one program; with a single process, no function communicates.

Several processes, on one or more machines, may run one program: each has some of the devices, and all call the same
compiled programs in the same order. Therefore, all processes must agree on anything read from the clock, a signal or a
disk before it affects which program is called next. All must call the functions that communicate, in the same order:
``decided_by_first``, ``number_of_first``, ``any_says``, ``wait_for_all`` and ``on_host``.

JAX is imported lazily, because tools that read run folders also call these functions and do not need JAX.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Tree = TypeVar("Tree")
Answer = TypeVar("Answer")
_LOST = re.compile(r"Gloo .*failed|NCCL|[Cc]oordination ?[Ss]ervice")
_BLOCK = 1024  # bytes; texts are padded to a multiple, so that texts of similar length share one compiled program


def without_working_directory() -> list[str]:
    """Return flags for Python's ``-c`` and ``-m`` that keep the working directory off the module search path.

    The working directory may be untrusted and contain, for example, a ``json.py``. No flags are returned if this
    process searches it too, as in a notebook.
    """
    return [] if {"", os.getcwd()} & set(sys.path) else ["-P"]


def is_multiprocess() -> bool:
    """Return True if this program has several processes."""
    if "jax" not in sys.modules:
        return False
    import jax

    # If not initialized, there is one process; process_count would start the backend and fix its devices.
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Return True in the process that writes run folders, metrics and terminal output."""
    if not is_multiprocess():
        return True
    import jax

    return jax.process_index() == 0


def decided_by_first(decide: Callable[[], Answer]) -> Answer:
    """Call ``decide`` only in the first process, and return its JSON-serializable result in all processes."""
    if not is_multiprocess():
        return decide()
    text = np.frombuffer(json.dumps(decide()).encode(), np.uint8) if is_first() else np.zeros(0, np.uint8)
    length = int(_broadcast_from_first(np.int32(len(text))))
    buffer = np.zeros(-(-length // _BLOCK) * _BLOCK, np.uint8)
    if is_first():
        buffer[:length] = text
    return json.loads(_broadcast_from_first(buffer)[:length].tobytes().decode())


def number_of_first(number: int) -> int:
    """Return, in all processes, the ``number`` of the first process, an integer from 0 to 2^31 - 1."""
    return int(_broadcast_from_first(np.int32(number))) if is_multiprocess() else number


def _broadcast_from_first(array: Any) -> Any:
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(array)


def any_says(answer: bool) -> bool:
    """Return True in all processes if ``answer`` is true in any process."""
    if not is_multiprocess():
        return answer
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(answer)).any())


def wait_for_all() -> None:
    """Wait until every process has called this function."""
    any_says(False)


def on_host(tree: Tree) -> Tree:
    """Convert arrays to NumPy; every process gets whole arrays, even if they are sharded. Typed keys are unchanged."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    def fetch(x: Any) -> Any:
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            return multihost_utils.process_allgather(x, tiled=True)
        return np.asarray(x)

    # In a single process, device_get starts all copies before it waits for the first.
    return jax.tree.map(fetch, tree) if is_multiprocess() else jax.device_get(tree)


def means_lost_process(error: BaseException) -> bool:
    """Return True if the error means that another process of this program is unreachable."""
    return is_multiprocess() and isinstance(error, RuntimeError | ValueError) and _LOST.search(str(error)) is not None

"""What the processes of one program say to one another; of a process by itself every function here is the identity.

Several processes, on one machine or on several, may run one program: each has some of the devices, and all of them call
the same compiled programs in the same order. So whatever a process learns from the clock, a signal or a disk has to be
agreed upon before it decides what is called next. The functions below are called by all processes together, in the same
order, but for ``are_several`` and ``is_first``, which ask nobody.

JAX is imported where it is used: whoever reads run folders asks here, too, and does without it.
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
_BLOCK = 1024  # bytes: texts of about one length are sent by one compiled program


def without_working_directory() -> list[str]:
    """Return flags for Python's ``-c`` and ``-m``, which would search the working directory for modules first.

    The working directory may be a stranger's folder with a ``json.py`` in it. No flags are returned where this process
    searches it too, as in a notebook.
    """
    return [] if {"", os.getcwd()} & set(sys.path) else ["-P"]


def are_several() -> bool:
    """Whether this program has several processes."""
    if "jax" not in sys.modules:
        return False
    import jax

    # Without that there is one process; to count them would start the backend, and settle its devices.
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes: run folders, metrics, the screen."""
    if not are_several():
        return True
    import jax

    return jax.process_index() == 0


def decided_by_first(decide: Callable[[], Answer]) -> Answer:
    """What ``decide()`` returns in the first process, which alone calls it: JSON data."""
    if not are_several():
        return decide()
    text = np.frombuffer(json.dumps(decide()).encode(), np.uint8) if is_first() else np.zeros(0, np.uint8)
    length = int(_of_first(np.int32(len(text))))
    buffer = np.zeros(-(-length // _BLOCK) * _BLOCK, np.uint8)
    if is_first():
        buffer[:length] = text
    return json.loads(_of_first(buffer)[:length].tobytes().decode())


def number_of_first(number: int) -> int:
    """The number that the first process gives, from 0 to 2^31 - 1."""
    return int(_of_first(np.int32(number))) if are_several() else number


def _of_first(array: Any) -> Any:
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(array)


def any_says(answer: bool) -> bool:
    """Whether the answer of one of the processes is true."""
    if not are_several():
        return answer
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(answer)).any())


def wait_for_all() -> None:
    """Wait until every process is here."""
    any_says(False)


def on_host(tree: Tree) -> Tree:
    """Arrays as NumPy arrays, whole in every process, also those of which each has a part; keys stay as they are."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    def fetch(x: Any) -> Any:
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            return multihost_utils.process_allgather(x, tiled=True)
        return np.asarray(x)

    # By device_get a single process begins all copies before it waits for the first.
    return jax.tree.map(fetch, tree) if are_several() else jax.device_get(tree)


def tells_of_loss(error: BaseException) -> bool:
    """Whether an error says that another process of this program can no longer be reached."""
    return are_several() and isinstance(error, RuntimeError | ValueError) and _LOST.search(str(error)) is not None

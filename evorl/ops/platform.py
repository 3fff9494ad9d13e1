"""The platform that programs are compiled for; all device-specific code paths depend on it.

The platform is JAX's default backend unless ``compiled_for`` names another: a program may be compiled for a GPU on a
machine without GPUs (``python -m benchmarks.gpu --static``).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_chosen: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """Return the platform that programs are compiled for: ``"cpu"``, ``"gpu"`` or ``"tpu"``."""
    return _chosen.get() or jax.default_backend()


def on_cpu() -> bool:
    """Return True if programs are compiled for a CPU; code uses this to choose the form that is fast there."""
    return platform() == "cpu"


def available_cores() -> int:
    """Return the number of CPU cores that this process may use; all cores where it is unknown, as on macOS."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def compiled_for(name: str) -> Iterator[None]:
    """Build and trace programs for a platform within the context, regardless of this process's devices.

    JAX caches traced functions, which are specific to a platform. Its caches are cleared at both ends of the context.

    Args:
        name: ``"cpu"``, ``"gpu"`` (also called ``"cuda"``) or ``"tpu"``.

    Raises:
        ValueError: the platform is unknown.
    """
    names = {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "tpu": "tpu"}
    if name not in names:
        raise ValueError(f"platform must be one of {', '.join(names)}; got {name!r}.")
    jax.clear_caches()
    token = _chosen.set(names[name])
    try:
        yield
    finally:
        _chosen.reset(token)
        jax.clear_caches()


def set_precision(precision: str) -> None:
    """Set JAX's option ``jax_default_matmul_precision``; ``"default"`` restores the user's setting."""
    users = _users_precision()
    chosen = users if precision == "default" else precision
    if chosen != jax.default_matmul_precision.value:
        jax.config.update("jax_default_matmul_precision", chosen)


@functools.cache  # read before the first run changes it
def _users_precision() -> str | None:
    return jax.default_matmul_precision.value

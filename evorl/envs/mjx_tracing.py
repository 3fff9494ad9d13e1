"""The forward dynamics of MJX, traced once for each model.

They are nearly all that a step is, and would be traced anew in each stage of an integrator, each start and each
program. As a compiled function inside of the program their trace is kept, and XLA puts it in line again.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from evorl.envs.mjx_contacts import tangents_along_capsules

_tracing = threading.RLock()  # MJX is one for all threads


@contextlib.contextmanager
def forward_traced_once() -> Iterator[None]:
    """Where MJX is traced inside, its forward dynamics are taken from an earlier trace if there is one.

    Capsules touch planes there as ``tangents_along_capsules`` has it.
    """
    from mujoco import mjx
    from mujoco.mjx._src import forward as module

    with _tracing:
        theirs = module.forward
        module.forward = mjx.forward = _kept(theirs)
        try:
            yield
        finally:
            module.forward = mjx.forward = theirs


@functools.cache
def _kept(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @jax.jit
    def forward(model: Any, data: Any) -> Any:
        with tangents_along_capsules():
            return theirs(model, data)

    return forward

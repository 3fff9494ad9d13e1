"""MJX's forward dynamics, traced once for each model.

They are nearly all that a step is, and would be traced anew in each stage of an integrator, each start and each
program. As a compiled function inside of the program their trace is kept, and XLA puts it in line again: what is
computed stays the same, to the bit.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from evorl.envs.mjx_contacts import tangents_along_capsules


@contextlib.contextmanager
def forward_traced_once(contacts_as_in_c: bool) -> Iterator[None]:
    """Where MJX is traced inside, its forward dynamics are taken from an earlier trace if there is one.

    Args:
        contacts_as_in_c: mend them by ``tangents_along_capsules``.
    """
    from mujoco import mjx
    from mujoco.mjx._src import forward as module

    theirs = module.forward
    module.forward = mjx.forward = _kept(theirs, contacts_as_in_c)
    try:
        yield
    finally:
        module.forward = mjx.forward = theirs


@functools.cache
def _kept(theirs: Callable[..., Any], contacts_as_in_c: bool) -> Callable[..., Any]:
    @jax.jit
    def forward(model: Any, data: Any) -> Any:
        with tangents_along_capsules() if contacts_as_in_c else contextlib.nullcontext():
            return theirs(model, data)

    return forward

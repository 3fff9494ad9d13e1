"""Contacts of capsules with a plane in MJX as in MuJoCo's C engine: how their pyramids of friction are turned.

A pyramid of friction stands along two tangents, and what a contact gives depends on them. In C the first one is along
the capsule. So it is in MJX 3.11, but for capsules that stand on the plane by 60 degrees and steeper: theirs is along y
whatever way they lean. An ant's step on such a leg came out up to 1 rad/s different, in 84 of 200 random steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp


@contextlib.contextmanager
def tangents_along_capsules() -> Iterator[None]:
    """Where MJX is traced, its capsules touch planes as in C; elsewhere, and where it has other parts, as they are."""
    from mujoco.mjx._src import collision_driver
    from mujoco.mjx._src.types import GeomType

    table, pair = getattr(collision_driver, "_COLLISION_FUNC", {}), (GeomType.PLANE, GeomType.CAPSULE)
    theirs = table.get(pair)
    if theirs is None:
        yield
        return
    table[pair] = _along_capsules(theirs)
    try:
        yield
    finally:
        table[pair] = theirs


def _along_capsules(collide: Callable[..., Any]) -> Callable[..., Any]:
    """``collide``, MJX's contacts of planes with capsules, whose numbers are the rows of ``geoms`` ``[n, 2]``."""

    def with_tangents(model: Any, data: Any, key: Any, geoms: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        distance, place, frame = collide(model, data, key, geoms)
        normal, axis = (data.geom_xmat[numbers][..., 2] for numbers in geoms.T)  # [n, 3]
        tangent = axis - normal * jnp.sum(normal * axis, axis=-1, keepdims=True)
        size = jnp.linalg.norm(tangent, axis=-1, keepdims=True)
        tangent = jnp.where(size == 0, jnp.array([1.0, 0.0, 0.0]), tangent / jnp.where(size == 0, 1.0, size))
        own = jnp.stack([normal, tangent, jnp.cross(normal, tangent)], axis=1)
        return distance, place, jnp.repeat(own, len(frame) // len(own), axis=0)

    with_tangents.ncon = collide.ncon  # pyright: ignore[reportFunctionMemberAccess]
    return with_tangents

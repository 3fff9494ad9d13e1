"""Values that change as training goes on, as functions of progress: 0 at the start of a run, 1 at its end.

Everything works on traced values, so that a schedule's ends are hyper-parameters like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from evorl.types import PyTreeNode


def linear_schedule(
    progress: jax.Array | float, start: jax.Array | float, end: jax.Array | float | None
) -> jax.Array | float:
    """From ``start`` to ``end`` at constant speed, or ``start`` for ever if there is no end.

    Progress outside [0, 1] counts as the nearer end.
    """
    if end is None:
        return start
    return polynomial_schedule(progress, start, end, 1.0)


def polynomial_schedule(
    progress: jax.Array | float, start: jax.Array | float, end: jax.Array | float, power: jax.Array | float
) -> jax.Array:
    """``end + (start - end) (1 - progress)^power``: powers above 1 change fast first, slowly at the end."""
    remaining = 1.0 - jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    return end + (start - end) * remaining**power


def exponential_schedule(progress: jax.Array | float, start: jax.Array | float, end: jax.Array | float) -> jax.Array:
    """``start (end / start)^progress``: the same factor in equal spans. Both ends are positive."""
    return start * (end / start) ** jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)


class Schedule(PyTreeNode):
    """A value over the course of a training, as a config describes it.

    Attributes:
        start: the value at the beginning.
        end: the value from ``share`` on; ``None`` keeps the first one.
        share: the share of the training after which the end is reached.
        kind: ``linear``, ``polynomial`` or ``exponential``.
        power: of a polynomial schedule.
    """

    start: float = 1.0
    end: float | None = None
    share: float = 1.0
    kind: Literal["linear", "polynomial", "exponential"] = "linear"
    power: float = 2.0

    ranges: ClassVar[Mapping[str, str]] = {"share": "(0, 1]", "power": "(0, inf)"}

    def value(self, progress: jax.Array | float) -> jax.Array | float:
        """The value when this share of the training, in [0, 1], is over."""
        if self.end is None:
            return self.start
        progress = progress / self.share
        if self.kind == "exponential":
            return exponential_schedule(progress, self.start, self.end)
        return polynomial_schedule(progress, self.start, self.end, 1.0 if self.kind == "linear" else self.power)


class ExponentialScheduleSpec(PyTreeNode):
    """A value multiplied by ``decay`` at each update until it reaches ``final``.

    Attributes:
        init: the value before the first update.
        final: the bound it stops at, below ``init`` for ``decay < 1`` and above it for ``decay > 1``.
        decay: the factor of one update.
    """

    init: float
    final: float
    decay: float

    ranges: ClassVar[Mapping[str, str]] = {"decay": "(0, inf)"}

    def next_value(self, value: jax.Array | float) -> jax.Array:
        """The value after one more update."""
        return self._bounded(value * self.decay)

    def value_at(self, num_updates: jax.Array | float) -> jax.Array:
        """The value after ``num_updates`` updates."""
        return self._bounded(self.init * self.decay ** jnp.asarray(num_updates, jnp.float32))

    def _bounded(self, value: jax.Array | float) -> jax.Array:
        return jnp.clip(value, jnp.minimum(self.init, self.final), jnp.maximum(self.init, self.final))

"""Values that change as training goes on, as functions of progress: 0 at the start of a run, 1 at its end.

A setting that may change is annotated ``float | Schedule``: a config gives a number, which stays, or
``{start: 2.5e-3, end: 1e-4}``. Both are data: other numbers compile nothing anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from evorl.types import PyTreeNode


class Schedule(PyTreeNode):
    """A value over the course of a training, as a config describes it.

    Attributes:
        start: the value at the beginning.
        end: the value from ``share`` on; 0 where it is left out.
        share: the share of the training after which the end is reached; above 1 the training ends before it. A config
            may give environment ``steps`` instead.
        kind: ``linear``; ``polynomial``, ``end + (start - end) (1 - progress)^power``; or ``exponential``,
            ``start (end / start)^progress``, whose ends are positive.
        power: of a polynomial schedule: above 1 the value changes fast first, slowly at the end.
    """

    start: float
    end: float = 0.0
    share: float = 1.0
    kind: Literal["linear", "polynomial", "exponential"] = "linear"
    power: float = 2.0

    ranges: ClassVar[Mapping[str, str]] = {"share": "(0, inf)", "power": "(0, inf)"}


def value_at(value: jax.Array | float | Schedule, progress: jax.Array | float) -> jax.Array | float:
    """The value of a setting when this share of the training is over; a number is always itself.

    Progress outside [0, 1] counts as the nearer end.
    """
    if not isinstance(value, Schedule):
        return value
    progress = jnp.asarray(progress, jnp.float32) / value.share
    if value.kind == "exponential":
        return value.start * (value.end / value.start) ** jnp.clip(progress, 0.0, 1.0)
    power = 1.0 if value.kind == "linear" else value.power
    return jnp.asarray(optax.polynomial_schedule(value.start, value.end, power, transition_steps=1)(progress))


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

    def value_at(self, num_updates: jax.Array | float) -> jax.Array:
        """The value after ``num_updates`` updates."""
        value = self.init * self.decay ** jnp.asarray(num_updates, jnp.float32)
        return jnp.clip(value, jnp.minimum(self.init, self.final), jnp.maximum(self.init, self.final))


def whole_updates(rate: Fraction, before: jax.Array, count: jax.Array | int) -> jax.Array:
    """By how many whole updates their number goes up, int32, when each of ``count`` more events is worth ``rate``.

    ``before`` is the number of events so far, uint32; the fraction of updates that is left over repeats.
    """
    updates, events = rate.numerator, rate.denominator
    phase = (before % events).astype(jnp.int32)
    rest = (phase + count % events) * updates // events - phase * updates // events
    return jnp.asarray(count // events * updates + rest, jnp.int32)

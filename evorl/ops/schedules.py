"""Schedules: values as functions of training progress, which is 0 at the start of a run and 1 at its end.

The annotation of a setting that may vary is ``float | Schedule``. In a config, its value is a constant, or a schedule
such as ``{start: 2.5e-3, end: 1e-4}``. Changing these numbers does not recompile.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias

import jax
import jax.numpy as jnp
import optax

from evorl.fields import Within
from evorl.types import PyTreeNode


class Schedule(PyTreeNode):
    """Value that varies over training.

    Attributes:
        start: initial value.
        end: final value, reached after a fraction ``share`` of training.
        share: fraction of training until the final value is reached; above 1, training ends before that. A config may
            set ``steps``, a number of environment steps, instead.
        kind: with p the progress divided by share, at most 1: ``linear``; ``polynomial``,
            ``end + (start - end) (1 - p)^power``; ``cosine``, half a period from ``start`` to ``end``; or
            ``exponential``, ``start (end / start)^p``, which requires positive start and end.
        power: exponent of a polynomial schedule; above 1, the value changes quickly at first and slowly at the end.
    """

    start: float
    end: float = 0.0
    share: Annotated[float, Within("(0, inf)")] = 1.0
    kind: Literal["linear", "polynomial", "cosine", "exponential"] = "linear"
    power: Annotated[float, Within("(0, inf)")] = 2.0


def value_at(value: jax.Array | float | Schedule, progress: jax.Array | float) -> jax.Array | float:
    """Return the value of a setting at ``progress``, a fraction of training; a constant is returned unchanged.

    Before progress 0, a schedule has its initial value, and after progress ``share`` its final value.
    """
    if not isinstance(value, Schedule):
        return value
    progress = jnp.asarray(progress, jnp.float32) / value.share
    if value.kind == "exponential":
        return value.start * (value.end / value.start) ** jnp.clip(progress, 0.0, 1.0)
    if value.kind == "cosine":
        share_left = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(progress, 0.0, 1.0)))
        return value.end + (value.start - value.end) * share_left
    power = 1.0 if value.kind == "linear" else value.power
    return jnp.asarray(optax.polynomial_schedule(value.start, value.end, power, transition_steps=1)(progress))


class ExponentialScheduleSpec(PyTreeNode):
    """Value multiplied by ``decay`` at each update until it reaches ``final``.

    Attributes:
        init: value before the first update.
        final: bound of the value: at most ``init`` for ``decay < 1``, at least ``init`` for ``decay > 1``. Otherwise,
            the value stays ``init``.
        decay: factor per update.
    """

    init: float
    final: float
    decay: Annotated[float, Within("(0, inf)")]

    def value_at(self, num_updates: jax.Array | float) -> jax.Array:
        """Return the value after ``num_updates`` updates."""
        value = self.init * self.decay ** jnp.asarray(num_updates, jnp.float32)
        return jnp.clip(value, jnp.minimum(self.init, self.final), jnp.maximum(self.init, self.final))


NonNegativeSchedule: TypeAlias = Annotated[ExponentialScheduleSpec, Within("[0, inf)")]
PositiveSchedule: TypeAlias = Annotated[ExponentialScheduleSpec, Within("(0, inf)")]


def whole_updates(rate: Fraction, before: jax.Array, count: jax.Array | int) -> jax.Array:
    """Return the number of whole updates, int32, due for ``count`` more events at ``rate`` updates per event.

    ``before`` is the number of earlier events, uint32. Fractions of updates that earlier events left over count too.
    A rate whose products do not fit in int32 is rounded to a fraction with a smaller denominator, by at most 0.01 %.
    """
    rate = rate.limit_denominator(math.isqrt(int((2**30 - 1) / max(rate, Fraction(1, 2**30)))))
    updates, events = rate.numerator, rate.denominator
    phase = (before % events).astype(jnp.int32)
    remainder = (phase + count % events) * updates // events - phase * updates // events
    return jnp.asarray(count // events * updates + remainder, jnp.int32)

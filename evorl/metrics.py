"""Metric containers, their reduction, and a counter that does not wrap."""

from __future__ import annotations

from typing import Any, Self, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np

from evorl.types import PyTreeData, PyTreeDict

LossDict = PyTreeDict
Tree = TypeVar("Tree")
_WORD = 2**32


class WideCounter(PyTreeData):
    """A 64-bit counter made of two 32-bit words, since JAX counts in 32 bits by default.

    Attributes:
        high: uint32, the upper word.
        low: uint32, the lower one.
    """

    high: jax.Array
    low: jax.Array

    @classmethod
    def create(cls, value: int = 0) -> Self:
        """A counter that stands at ``value``.

        Raises:
            ValueError: ``value`` is negative or needs more than 64 bits.
        """
        if not 0 <= value < _WORD**2:
            raise ValueError(f"a counter counts from 0 to 2^64 - 1, got {value}.")
        return cls(high=jnp.asarray(value // _WORD, jnp.uint32), low=jnp.asarray(value % _WORD, jnp.uint32))

    def add(self, amount: jax.Array | int) -> Self:
        """The counter ``amount`` further: a Python int, or a traced integer from 0 to 2^32 - 1."""
        high = jnp.uint32(0)
        if isinstance(amount, int):
            high, amount = jnp.uint32(amount // _WORD), amount % _WORD
        low = self.low + jnp.asarray(amount).astype(jnp.uint32)
        carry = (low < self.low).astype(jnp.uint32)
        return self.replace(high=self.high + high + carry, low=low)

    def times(self, factor: int) -> Self:
        """The count times a whole number from 0 to 2^32 - 1, by products of halves of words."""
        upper, lower = jnp.uint32(factor >> 16), jnp.uint32(factor & 0xFFFF)
        high, low = self.low >> 16, self.low & 0xFFFF
        first, second, third = low * lower, low * upper, high * lower
        middle = (first >> 16) + (second & 0xFFFF) + (third & 0xFFFF)
        carry = high * upper + (second >> 16) + (third >> 16) + (middle >> 16)
        return self.replace(high=self.high * jnp.uint32(factor) + carry, low=(middle << 16) | (first & 0xFFFF))

    def as_float(self) -> jax.Array:
        """The count as float32, exact up to 2^24 and to 7 digits beyond: for schedules inside a trace."""
        return self.high.astype(jnp.float32) * float(_WORD) + self.low.astype(jnp.float32)

    def __int__(self) -> int:
        """The exact count, on the host; of a batch of counters (one per seed) the first."""
        return int(np.ravel(self.high)[0]) * _WORD + int(np.ravel(self.low)[0])

    def total(self) -> int:
        """The exact sum of a batch of counters, on the host."""
        high, low = (int(np.asarray(word).sum(dtype=np.uint64)) for word in (self.high, self.low))
        return high * _WORD + low


class EpisodeStatistics(PyTreeData):
    """Sums over ended episodes; mergeable, and not a number where no episode ended.

    Attributes:
        count: number of episodes, float32.
        return_sum: sum of their undiscounted returns.
        length_sum: sum of their lengths in steps.
        return_min: the least return.
        return_max: the greatest.
    """

    count: jax.Array
    return_sum: jax.Array
    length_sum: jax.Array
    return_min: jax.Array
    return_max: jax.Array

    @property
    def mean_return(self) -> jax.Array:
        """Mean return; NaN without episodes."""
        return self.return_sum / jnp.where(self.count > 0, self.count, jnp.nan)

    @property
    def mean_length(self) -> jax.Array:
        """Mean length; NaN without episodes."""
        return self.length_sum / jnp.where(self.count > 0, self.count, jnp.nan)

    def merge(self, other: EpisodeStatistics) -> EpisodeStatistics:
        """Statistics of the episodes of both."""
        return EpisodeStatistics(
            count=self.count + other.count,
            return_sum=self.return_sum + other.return_sum,
            length_sum=self.length_sum + other.length_sum,
            return_min=jnp.minimum(self.return_min, other.return_min),
            return_max=jnp.maximum(self.return_max, other.return_max),
        )

    def over(self, axis: int = 0, where: jax.Array | bool = True) -> EpisodeStatistics:
        """Statistics of the episodes of a whole axis, or of those of its entries where ``where`` holds."""
        sums = (jnp.sum(x, axis, where=where) for x in (self.count, self.return_sum, self.length_sum))
        least = jnp.min(self.return_min, axis, initial=jnp.inf, where=where)
        greatest = jnp.max(self.return_max, axis, initial=-jnp.inf, where=where)
        return EpisodeStatistics(*sums, return_min=least, return_max=greatest)


def episode_statistics(dones: jax.Array, episode_returns: jax.Array, episode_lengths: jax.Array) -> EpisodeStatistics:
    """Statistics of the episodes that ended within a batch.

    Args:
        dones: ``[...]``, where an episode ended.
        episode_returns: ``[...]``, the running return including that step.
        episode_lengths: ``[...]``, the running length including that step.
    """
    chex.assert_equal_shape([dones, episode_returns, episode_lengths])
    ended = dones.astype(bool)
    return EpisodeStatistics(
        count=jnp.sum(ended, dtype=jnp.float32),
        return_sum=jnp.sum(jnp.where(ended, episode_returns, 0.0)),
        length_sum=jnp.sum(jnp.where(ended, episode_lengths, 0).astype(jnp.float32)),
        return_min=jnp.min(jnp.where(ended, episode_returns, jnp.inf)),
        return_max=jnp.max(jnp.where(ended, episode_returns, -jnp.inf)),
    )


class EvaluationMetrics(PyTreeData):
    """What an evaluation returns.

    Attributes:
        episode_returns: undiscounted or discounted returns, ``[N]``.
        episode_lengths: lengths in steps, ``[N]``.
        success_at_end: whether the last step of an episode is at its goal, bool ``[N]``; ``None`` without goals.
        success_ever: whether any step is.
        goals: ``[N, G]`` each: ``start``, achieved when the episode began, ``achieved`` when it ended, and ``desired``;
            ``None`` unless they are kept.
        steps: every step of the first n episodes, an ``EpisodeSteps``; ``None`` unless they are kept.
    """

    episode_returns: jax.Array | np.ndarray
    episode_lengths: jax.Array | np.ndarray
    success_at_end: jax.Array | None = None
    success_ever: jax.Array | None = None
    goals: PyTreeDict | None = None
    steps: Any = None

    def summary(self) -> PyTreeDict:
        """Mean, standard deviation, extremes and median of the returns, the mean length, and shares of success.

        Where more is kept of the episodes than that, they themselves are ``episodes``.
        """
        returns = self.episode_returns
        successes = {"success": self.success_at_end, "success_ever": self.success_ever}
        shares: dict[str, Any] = {name: jnp.mean(x, axis=-1) for name, x in successes.items() if x is not None}
        if self.goals is not None or self.steps is not None:
            shares["episodes"] = self
        return PyTreeDict(
            **shares,
            episode_return=jnp.mean(returns, axis=-1),
            episode_return_std=jnp.std(returns, axis=-1),
            episode_return_min=jnp.min(returns, axis=-1),
            episode_return_max=jnp.max(returns, axis=-1),
            episode_return_median=jnp.median(returns, axis=-1),
            episode_length=jnp.mean(self.episode_lengths.astype(jnp.float32), axis=-1),
        )

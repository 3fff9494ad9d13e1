"""Metric containers, their aggregation, and a 64-bit counter."""

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
    """64-bit counter made of two 32-bit words, because JAX integers have 32 bits by default.

    Attributes:
        high: upper word, uint32.
        low: lower word, uint32.
    """

    high: jax.Array
    low: jax.Array

    @classmethod
    def create(cls, value: int = 0) -> Self:
        """Return a counter with this value; raise ``ValueError`` if it is negative or needs more than 64 bits."""
        if not 0 <= value < _WORD**2:
            raise ValueError(f"a counter holds values from 0 to 2^64 - 1, got {value}.")
        return cls(high=jnp.asarray(value // _WORD, jnp.uint32), low=jnp.asarray(value % _WORD, jnp.uint32))

    def add(self, amount: jax.Array | int) -> Self:
        """Return the counter increased by ``amount``, a non-negative int or a traced integer from 0 to 2^32 - 1."""
        high = jnp.uint32(0)
        if isinstance(amount, int):
            high, amount = jnp.uint32(amount // _WORD), amount % _WORD
        low = self.low + jnp.asarray(amount).astype(jnp.uint32)
        carry = (low < self.low).astype(jnp.uint32)
        return self.replace(high=self.high + high + carry, low=low)

    def times(self, factor: int) -> Self:
        """Return the counter multiplied by an int from 0 to 2^32 - 1, computed from products of half words."""
        upper, lower = jnp.uint32(factor >> 16), jnp.uint32(factor & 0xFFFF)
        high, low = self.low >> 16, self.low & 0xFFFF
        first, second, third = low * lower, low * upper, high * lower
        middle = (first >> 16) + (second & 0xFFFF) + (third & 0xFFFF)
        carry = high * upper + (second >> 16) + (third >> 16) + (middle >> 16)
        return self.replace(high=self.high * jnp.uint32(factor) + carry, low=(middle << 16) | (first & 0xFFFF))

    def as_float(self) -> jax.Array:
        """Return the count as float32, exact up to 2^24 and to 7 digits beyond; for schedules in traced code."""
        return self.high.astype(jnp.float32) * float(_WORD) + self.low.astype(jnp.float32)

    def __int__(self) -> int:
        """Return the exact count as a Python int; for a batch of counters (one per seed), the first seed's count."""
        return int(np.ravel(self.high)[0]) * _WORD + int(np.ravel(self.low)[0])

    def total(self) -> int:
        """Return the exact sum of a batch of counters as a Python int."""
        high, low = (int(np.asarray(word).sum(dtype=np.uint64)) for word in (self.high, self.low))
        return high * _WORD + low


class EpisodeStatistics(PyTreeData):
    """Mergeable sums and extremes over finished episodes: all scalars, or all arrays of one shape.

    Attributes:
        count: number of episodes, float32.
        return_sum: sum of their undiscounted returns.
        length_sum: sum of their lengths in steps.
        return_min: smallest return; ``inf`` without episodes.
        return_max: largest return; ``-inf`` without episodes.
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
        """Return the statistics of the episodes of both, elementwise."""
        return EpisodeStatistics(
            count=self.count + other.count,
            return_sum=self.return_sum + other.return_sum,
            length_sum=self.length_sum + other.length_sum,
            return_min=jnp.minimum(self.return_min, other.return_min),
            return_max=jnp.maximum(self.return_max, other.return_max),
        )

    def over(self, axis: int = 0, where: jax.Array | bool = True) -> EpisodeStatistics:
        """Return the statistics merged over an axis; a bool mask ``where`` selects the entries to include."""
        sums = (jnp.sum(x, axis, where=where) for x in (self.count, self.return_sum, self.length_sum))
        smallest = jnp.min(self.return_min, axis, initial=jnp.inf, where=where)
        largest = jnp.max(self.return_max, axis, initial=-jnp.inf, where=where)
        return EpisodeStatistics(*sums, return_min=smallest, return_max=largest)


def episode_statistics(dones: jax.Array, episode_returns: jax.Array, episode_lengths: jax.Array) -> EpisodeStatistics:
    """Return statistics, as scalars, of the episodes that ended within a batch of steps.

    Args:
        dones: True where an episode ended, ``[...]``.
        episode_returns: return of the running episode up to and including each step, ``[...]``.
        episode_lengths: length of the running episode up to and including each step, ``[...]``.
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
    """Result of an evaluation of N episodes.

    Attributes:
        episode_returns: returns, ``[N]``; the evaluator decides whether they are discounted.
        episode_lengths: lengths in steps, ``[N]``.
        success_at_end: True if an episode's last step is at its goal, bool ``[N]``; ``None`` without goals.
        success_ever: True if any step of the episode is at its goal, bool ``[N]``; ``None`` without goals.
        goals: arrays ``[N, G]`` named ``start`` (achieved at the start of the episode), ``achieved`` (at its end) and
            ``desired``; ``None`` unless recorded.
        steps: every step of the first few episodes, an ``EpisodeSteps``; ``None`` unless recorded.
    """

    episode_returns: jax.Array | np.ndarray
    episode_lengths: jax.Array | np.ndarray
    success_at_end: jax.Array | None = None
    success_ever: jax.Array | None = None
    goals: PyTreeDict | None = None
    steps: Any = None

    def summary(self) -> PyTreeDict:
        """Return mean, standard deviation, extremes and median of the returns, mean length, and any success rates.

        If goals or steps are recorded, the additional entry ``episodes`` is this object.
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

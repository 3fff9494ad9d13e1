"""Whether a file computes what the policy computes: the same steps in JAX and by the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import ACTION_MASK, Box, Discrete, leaf_spaces
from evorl.export.portable_policy import NEXT, SCORES, PortablePolicy

TOLERANCE = 1e-5
ROWS, STEPS = 100, 10  # 1,000 observations: episodes side by side, whose memory goes on
_FAR = 1e4  # bounds beyond say nothing of what observations are like

Step: TypeAlias = Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]


class NotTheSame(ValueError):
    """A file gives other actions than the policy it was written of."""


@dataclasses.dataclass(frozen=True)
class Parity:
    """How far a file is from the policy.

    Attributes:
        num_observations: that were compared.
        difference: the greatest one of any output, relative to the greatest number of that output where that is more
            than 1; of discrete actions it is that of their scores and memory.
        num_same: for how many observations the discrete action is the same; ``None`` where actions are no choices.
            Whole numbers of a Box are the same if they are next to each other: rounding decides between two shares.
    """

    num_observations: int
    difference: float
    num_same: int | None

    @property
    def is_close(self) -> bool:
        """Whether the difference is within ``TOLERANCE``, and every choice the same."""
        return self.difference <= TOLERANCE and self.num_same in (None, self.num_observations)

    def in_words(self) -> str:
        """``differs from JAX by at most 1.2e-07 over 1,000 observations, 1,000 of 1,000 actions the same``."""
        words = f"differs from JAX by at most {self.difference:.1e} over {self.num_observations:,} observations"
        if self.num_same is None:
            return words
        return f"{words}, {self.num_same:,} of {self.num_observations:,} actions the same"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Steps of a policy in JAX.

    Attributes:
        inputs: of each step, observations and draws; the memory of the first is zeros.
        outputs: of each step.
    """

    inputs: list[dict[str, np.ndarray]]
    outputs: list[dict[str, np.ndarray]]


def recorded_steps(policy: PortablePolicy, num_rows: int = ROWS, num_steps: int = STEPS, seed: int = 0) -> Recorded:
    """What the policy does, compiled by JAX, in observations that are drawn at random."""
    rng = np.random.default_rng(seed)
    compiled = jax.jit(policy.rows)
    memory = policy.initial_memory(num_rows)
    inputs, outputs = [], []
    for _ in range(num_steps):
        given = drawn_observations(policy, rng, num_rows) | policy.drawn(rng, num_rows)
        told = {name: np.asarray(x) for name, x in compiled({**given, **memory}).items()}
        memory = {port.name: told[NEXT + port.name] for port in policy.memory}
        inputs.append(given)
        outputs.append(told)
    return Recorded(inputs, outputs)


def compared(policy: PortablePolicy, step: Step, recorded: Recorded) -> Parity:
    """The same steps by ``step``, which is given the memory that it gave."""
    num_rows = len(next(iter(recorded.inputs[0].values())))
    memory = policy.initial_memory(num_rows)
    told = []
    for given in recorded.inputs:
        told.append({name: np.asarray(x) for name, x in step({**given, **memory}).items()})
        memory = {port.name: told[-1][NEXT + port.name] for port in policy.memory}
    return parity_of(policy, told, recorded)


def parity_of(policy: PortablePolicy, told: list[dict[str, np.ndarray]], recorded: Recorded) -> Parity:
    """How far outputs are from those that were recorded.

    Raises:
        NotTheSame: an output has another shape.
    """
    difference, same = 0.0, []
    discrete = [port.name for port in policy.results if port.name != SCORES and port.dtype.kind in "iub"]
    spaces = zip(policy.results, leaf_spaces(policy.action_space), strict=False)  # scores come last
    counted = [port.name for port, space in spaces if isinstance(space, Box)]
    for ours, theirs in zip(recorded.outputs, told, strict=True):
        is_same = np.ones(_num_rows(ours), bool)
        for name, expected in ours.items():
            actual = theirs[name]
            if actual.shape != expected.shape:
                raise NotTheSame(f"{name} is of the shape {actual.shape}, and in JAX of {expected.shape}.")
            if name in discrete:
                step = 1 if name in counted else 0
                apart = np.abs(actual.astype(np.int64) - expected.astype(np.int64))
                is_same &= np.all((apart <= step).reshape(len(expected), -1), axis=1)
            else:
                difference = max(difference, _distance(actual, expected))
        same.append(is_same)
    return Parity(sum(map(_num_rows, recorded.outputs)), difference, int(np.sum(same)) if discrete else None)


def _num_rows(outputs: dict[str, np.ndarray]) -> int:
    return len(next(iter(outputs.values())))


def _distance(actual: np.ndarray, expected: np.ndarray) -> float:
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    if not expected.size:
        return 0.0
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))  # infinities too
    apart = np.where(equal, 0.0, np.abs(np.where(equal, 0.0, actual) - np.where(equal, 0.0, expected)))
    finite = np.abs(expected[np.isfinite(expected)])
    distance = float(apart.max() / max(1.0, finite.max(initial=0.0)))
    return distance if np.isfinite(distance) else float("inf")


def drawn_observations(policy: PortablePolicy, rng: np.random.Generator, num_rows: int) -> dict[str, np.ndarray]:
    """Observations ``[B, ...]`` by name: like those that were seen in training where the policy knows them."""
    spaces = leaf_spaces(policy.obs_space)
    known = policy.normalizer or [None] * len(spaces)
    drawn = {}
    for port, space, statistics in zip(policy.observations, spaces, known, strict=True):
        shape = (num_rows, *port.shape)
        if isinstance(space, Discrete):
            numbers = space.start + rng.integers(0, space.n, shape)
        elif isinstance(space, MultiDiscrete):
            numbers = space.start + rng.integers(0, space.sizes, shape)
        elif port.dtype.kind != "f":
            low, high = (np.clip(np.asarray(b, np.float64), -_FAR, _FAR) for b in (space.low, space.high))
            numbers = rng.integers(low.astype(np.int64), high.astype(np.int64) + 1, shape)
        else:
            numbers = _drawn_floats(space, statistics, rng, shape)
        if port.name.endswith(ACTION_MASK):
            numbers = rng.random(shape) < 0.7
        drawn[port.name] = np.asarray(numbers).astype(port.dtype)
    return drawn


def _drawn_floats(space: Box, statistics: Any, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if statistics is not None:
        mean, deviation = statistics
        return np.clip(mean + deviation * rng.standard_normal(shape), low, high)
    is_near = (low > -_FAR) & (high < _FAR)
    within = rng.uniform(np.where(is_near, low, 0.0), np.where(is_near, high, 1.0), shape)
    return np.where(is_near, within, np.clip(rng.standard_normal(shape), low, high))

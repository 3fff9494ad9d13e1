"""Compares an exported file with its policy: both compute the same steps, the policy in JAX."""

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
ROWS, STEPS = 100, 10  # 1,000 observations: 100 parallel episodes of 10 steps, each with its own memory
_FAR = 1e4  # beyond this, bounds of a space do not describe typical observations

Step: TypeAlias = Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]


class ParityError(ValueError):
    """Raised if the outputs of a file differ from the outputs of its policy, or cannot be computed for comparison."""


@dataclasses.dataclass(frozen=True)
class Parity:
    """Difference between the outputs of a file and of its policy.

    Attributes:
        num_observations: number of observations compared.
        difference: largest difference over all outputs except discrete actions, relative to the output's largest
            absolute value if that exceeds 1.
        num_same: number of observations with the same discrete actions; ``None`` if all actions are continuous.
            Integers of a Box count as the same if they differ by at most 1, because of rounding.
    """

    num_observations: int
    difference: float
    num_same: int | None

    @property
    def is_close(self) -> bool:
        """True if the difference is within ``TOLERANCE`` and all discrete actions are the same."""
        return self.difference <= TOLERANCE and self.num_same in (None, self.num_observations)

    def describe(self, reference: str = "JAX") -> str:
        """Return a clause such as ``differs from <reference> by at most 1.2e-07 over 1,000 observations``."""
        summary = (
            f"differs from {reference} by at most {self.difference:.1e} over {self.num_observations:,} observations"
        )
        if self.num_same is None:
            return summary
        return f"{summary}, {self.num_same:,} of {self.num_observations:,} actions the same"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Recorded steps of a policy in JAX.

    Attributes:
        inputs: observations and random numbers of each step, ``[B, ...]`` by name, but no memory, which starts at 0.
        outputs: outputs of each step, ``[B, ...]`` by name.
    """

    inputs: list[dict[str, np.ndarray]]
    outputs: list[dict[str, np.ndarray]]


def recorded_steps(policy: PortablePolicy, num_rows: int = ROWS, num_steps: int = STEPS) -> Recorded:
    """Record ``num_steps`` steps of the policy, compiled by JAX, each for ``num_rows`` random observations."""
    rng = np.random.default_rng(0)
    compiled = jax.jit(policy.rows)
    memory = policy.initial_memory(num_rows)
    inputs, outputs = [], []
    for _ in range(num_steps):
        sampled = drawn_observations(policy, rng, num_rows) | policy.drawn(rng, num_rows)
        computed = {name: np.asarray(x) for name, x in compiled({**sampled, **memory}).items()}
        memory = {port.name: computed[NEXT + port.name] for port in policy.memory}
        inputs.append(sampled)
        outputs.append(computed)
    return Recorded(inputs, outputs)


def compared(policy: PortablePolicy, step: Step, recorded: Recorded) -> Parity:
    """Run ``step`` on the recorded inputs, pass the memory from each step to the next, and compare the outputs."""
    num_rows = len(next(iter(recorded.inputs[0].values())))
    memory = policy.initial_memory(num_rows)
    computed = []
    for sampled in recorded.inputs:
        computed.append({name: np.asarray(x) for name, x in step({**sampled, **memory}).items()})
        memory = {port.name: computed[-1][NEXT + port.name] for port in policy.memory}
    return parity_of(policy, computed, recorded)


def parity_of(policy: PortablePolicy, computed: list[dict[str, np.ndarray]], recorded: Recorded) -> Parity:
    """Compare the outputs of a file, ``[B, ...]`` by name for each step, with the recorded outputs.

    Raises:
        ParityError: the shape of an output differs.
    """
    difference, same = 0.0, []
    discrete = [port.name for port in policy.results if port.name != SCORES and port.dtype.kind in "iub"]
    spaces = zip(policy.results, leaf_spaces(policy.action_space), strict=False)  # scores are last
    counted = [port.name for port, space in spaces if isinstance(space, Box)]
    for ours, theirs in zip(recorded.outputs, computed, strict=True):
        is_same = np.ones(_num_rows(ours), bool)
        for name, expected in ours.items():
            actual = theirs[name]
            if actual.shape != expected.shape:
                raise ParityError(f"{name} has the shape {actual.shape} in the file, but {expected.shape} in JAX.")
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
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))  # includes infinities
    apart = np.where(equal, 0.0, np.abs(np.where(equal, 0.0, actual) - np.where(equal, 0.0, expected)))
    finite = np.abs(expected[np.isfinite(expected)])
    distance = float(apart.max() / max(1.0, finite.max(initial=0.0)))
    return distance if np.isfinite(distance) else float("inf")


def drawn_observations(policy: PortablePolicy, rng: np.random.Generator, num_rows: int) -> dict[str, np.ndarray]:
    """Sample observations ``[num_rows, ...]`` by name: floats from the normalizer, if any; others from the spaces."""
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

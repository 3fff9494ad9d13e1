"""Builds one-step and n-step transitions of host environments, as dicts of NumPy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from evorl.config.names import no_such
from evorl.ops.trees import merged
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict

DONE_MEANS = ("either", "terminated")
# Entries of every transition; agents and environments may add others.
NAMES = ("obs", "actions", "rewards", "next_obs", "dones", "termination", "truncation")
# JAX's default types, in which data is stored.
_NARROW = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32, np.dtype(np.uint64): np.uint32}
_TREES = (Mapping, tuple)
_NUMPY = (np.ndarray, np.generic, bool, int, float)  # types that NumPy stacks without conversion
_PLAIN = frozenset({int, float, bool, type(None), np.float32, np.float64, np.int32, np.int64, np.bool_})
_NO_RETURNS, _NO_COUNTS = np.zeros(0, np.float64), np.zeros(0, np.int64)  # shared: empty arrays are immutable

# Step of an environment, or of all copies in a vector environment: observation, action, reward, next observation,
# termination, truncation, extras. A plain tuple for speed, because millions are created.
Step: TypeAlias = tuple[Any, Any, Any, Any, Any, Any, Mapping[str, Any]]
STEP_NAMES = ("obs", "actions", "rewards", "next_obs", "termination", "truncation")  # the entries before the extras


@dataclasses.dataclass(frozen=True)
class Collected:
    """Result of one call of a collector.

    Attributes:
        transitions: transitions by name, leaves ``[N, ...]``, or ``[T, B, ...]`` for a vector environment; ``None``
            if no transition is complete, for instance after fewer than n steps of n-step transitions.
        episode_returns: returns of the E episodes that ended, float64 ``[E]``.
        episode_lengths: lengths of the E episodes in steps, int64 ``[E]``.
        ended_at: total number of steps of the collector at the end of each episode, int64 ``[E]``.
    """

    transitions: PyTreeDict | None
    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    ended_at: np.ndarray

    @property
    def num_episodes(self) -> int:
        """Number of episodes that ended."""
        return len(self.episode_returns)


def own_copy(value: Any) -> Any:
    """Return a copy of a value of an environment or agent, which may reuse its arrays."""
    kind = type(value)
    if kind is np.ndarray:
        return value.copy()
    if kind in _PLAIN:
        return value
    return jax.tree.map(np.array, PyTreeDict(value) if kind is dict else value)


def own_copies(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a dict with copies of the values, see ``own_copy``."""
    return {name: own_copy(value) for name, value in entries.items()} if entries else entries


def make_collected(transitions: PyTreeDict | None, ended: Sequence[tuple[float, int, int]]) -> Collected:
    """Build the result from transitions and (return, length, timestep) of each episode that ended."""
    if not ended:
        return Collected(transitions, _NO_RETURNS, _NO_COUNTS, _NO_COUNTS)
    returns, lengths, ended_at = zip(*ended, strict=True)
    return Collected(
        transitions, np.array(returns, np.float64), np.array(lengths, np.int64), np.array(ended_at, np.int64)
    )


def check_done_means(done_means: str) -> None:
    """Raise ``ValueError`` if ``done_means`` is unknown."""
    if done_means not in DONE_MEANS:
        raise ValueError(no_such("value of done_means", done_means, DONE_MEANS))


def as_columns(steps: Sequence[Step], done_means: str) -> PyTreeDict:
    """Stack steps to arrays by name, with a leading axis of steps; convert 64-bit numbers to 32 bits.

    If a step both terminates and truncates an episode, it counts as a termination.

    Raises:
        ValueError: shapes or extras differ, values are not numbers, integers exceed 32 bits, or a name is reserved.
    """
    obs, actions, rewards, next_obs, termination, truncation, extras = zip(*steps, strict=True)
    # the common case for short rollouts
    if termination[0].__class__ is bool and not (any(termination) or any(truncation)):
        terminations, truncations, ends = np.zeros((3, len(steps)), np.bool_)
    else:
        terminations, truncations = np.array((termination, truncation), np.bool_)
        truncations = truncations > terminations
        ends = terminations | truncations
    if obs[0].__class__ is np.ndarray is next_obs[0].__class__:  # creating two arrays would take longer than one copy
        both = _column("obs", obs + next_obs)
        all_obs, all_next_obs = both[: len(steps)], both[len(steps) :]
    else:
        all_obs, all_next_obs = _column("obs", obs), _column("next_obs", next_obs)
    columns = {
        "obs": all_obs,
        "actions": _column("actions", actions),
        "rewards": np.asarray(rewards, np.float32),
        "next_obs": all_next_obs,
        "dones": ends if done_means == "either" else terminations,
        "termination": terminations,
        "truncation": truncations,
    }
    if any(extras):
        columns |= _extra_columns(extras, columns)
    return PyTreeDict(columns)


def _extra_columns(extras: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> dict[str, Any]:
    names = extras[0].keys()
    for step_extras in extras:
        if step_extras.keys() != names:
            raise ValueError(
                f"extras of all steps must have the same names; got {sorted(names)}, then {sorted(step_extras)}."
            )
    conflicts = sorted(names & columns.keys())
    if conflicts:
        raise ValueError(
            f"extras named {', '.join(conflicts)} would replace a transition's standard entries: rename them."
        )
    return {name: _column(name, [step_extras[name] for step_extras in extras]) for name in names}


def _column(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    is_array = first.__class__ is np.ndarray
    if not is_array and isinstance(first, _TREES):
        return jax.tree.map(lambda *leaves: _column(name, leaves), *values)
    try:
        if first.__class__ is int and [*map(type, values)].count(int) == len(values):
            return np.array(values, np.int32)
        if not is_array and not isinstance(first, _NUMPY):
            values = [np.asarray(value) for value in values]  # arrays of another framework
        array = np.asarray(values)
    except ValueError:
        shapes = sorted({np.shape(value) for value in values})
        raise ValueError(f"{name} must have the same shape in all steps, got {shapes}.") from None
    except OverflowError:
        raise _beyond(name, np.int32, values) from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, got {array.dtype}, as in {first!r}.")
    narrow = _NARROW.get(array.dtype)
    return array if narrow is None else narrowed(name, array, narrow)


def narrowed(name: str, values: Any, dtype: Any = None) -> np.ndarray:
    """Return an array of ``dtype``, by default JAX's for these values; raise ``ValueError`` for integers beyond it."""
    array = np.asarray(values)
    result = array.astype(dtype or jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    if result is not array and array.dtype.kind != "f" and (result != array).any():
        raise _beyond(name, result.dtype, array.ravel().tolist())
    return result


def _beyond(name: str, dtype: Any, numbers: Sequence[int]) -> ValueError:
    """Return the error for integers that ``dtype`` cannot represent."""
    return ValueError(
        f"{name} has integers beyond the range of {np.dtype(dtype).name}, such as {max(numbers, key=abs)}: scale them."
    )


def n_step_transitions(columns: PyTreeDict, num_steps: int) -> tuple[PyTreeDict, int]:
    """Build a transition from each step: over ``num_steps`` steps, or fewer at the end of an episode.

    Args:
        columns: consecutive steps of one environment, leaves ``[T, ...]``, see ``as_columns``.
        num_steps: number of rewards in a transition, n.

    Returns:
        The complete transitions, leaves ``[N, ...]``: ``rewards`` ``[N, n]`` with zeros after the end of an episode,
        their number ``num_rewards`` int32 ``[N]``, ``next_obs`` and flags of the last step, and all other entries of
        the first step. Also the number of final steps that do not start a complete transition yet: pass these again,
        with later steps.

    Raises:
        ValueError: ``columns`` have an entry ``num_rewards`` already.
    """
    length = len(columns.rewards)
    first = np.arange(length)
    ends = np.flatnonzero(columns.termination | columns.truncation)
    ends_at = np.append(ends, length + num_steps)[np.searchsorted(ends, first)]
    last = np.minimum(first + num_steps - 1, ends_at)
    first = first[last < length]  # the others are incomplete
    last = last[: len(first)]
    window = first[:, None] + np.arange(num_steps)  # [N, n]
    is_valid = window <= last[:, None]
    transitions = jax.tree.map(lambda x: x[first], columns)
    transitions.update(jax.tree.map(lambda x: x[last], {name: columns[name] for name in NAMES[3:]}))
    transitions.rewards = np.where(is_valid, columns.rewards[np.minimum(window, length - 1)], np.float32(0.0))
    return merged(transitions, {"num_rewards": is_valid.sum(axis=1, dtype=np.int32)}), length - len(first)


def as_sample_batch(transitions: Mapping[str, Any]) -> SampleBatch:
    """Convert transitions to a ``SampleBatch``; its ``extras`` are all entries except the first five of ``NAMES``."""
    fields = {name: value for name, value in transitions.items() if name in NAMES[:5]}
    extras = PyTreeDict({name: value for name, value in transitions.items() if name not in fields})
    return SampleBatch(**fields, extras=extras)

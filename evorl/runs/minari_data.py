"""Reads Minari data sets (Farama's recorded episodes) as columns of transitions; needs the extra ``minari``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evorl.config.names import explain_missing_package
from evorl.envs.action_conversion import ActionConversion
from evorl.envs.gymnasium_spaces import action_space_of
from evorl.envs.space import Box, Discrete, Space, leaf_spaces, leaf_values
from evorl.runs.replay_file import ReplayFileError, refuse_not_finite

_LEAVE_OUT = "record the episode again, or exclude it with the data set's filter_episodes."


def open_minari_dataset(name: str) -> Any:
    """Open a data set on this machine by its id, such as ``mujoco/hopper/medium-v0``.

    Raises:
        ImportError: Minari is not installed.
        ReplayFileError: the data set is not on this machine, or Minari rejects it.
    """
    with explain_missing_package("data sets of Minari", "minari", "minari[hdf5]>=0.5"):
        import minari
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        available = ", ".join(sorted(minari.list_local_datasets())) or "none"
        is_missing = isinstance(error, FileNotFoundError)
        reason = f"run minari download {name}" if is_missing else str(error).rstrip(".")
        raise ReplayFileError(
            f"Minari cannot open {name!r} on this machine (data sets here: {available}): {reason}."
        ) from error


def minari_facts(dataset: Any) -> dict[str, Any]:
    """Return ``env`` (``gymnasium/<id>``, or ``None`` if unknown) and ``num_steps``, without reading the steps."""
    spec = dataset.env_spec
    return {"env": None if spec is None else f"gymnasium/{spec.id}", "num_steps": int(dataset.total_steps)}


def minari_columns(dataset: Any, agent_space: Space | None = None) -> dict[str, np.ndarray]:
    """Return all transitions of a data set; see ``evorl.runs.replay_file`` for the columns.

    Actions are converted to the action space of agents, see ``evorl.envs.action_conversion``.

    Args:
        dataset: a Minari data set.
        agent_space: action space for which the agent is built; ``None`` accepts any.

    Raises:
        ReplayFileError: the actions do not fit the agent, see ``minari_conversion``; an action is not in the data set's
            action space; a number is not finite; the lengths of an episode's arrays differ; or the data set is empty.
    """
    conversion = minari_conversion(dataset, agent_space)
    parts: list[dict[str, np.ndarray]] = []
    for number, episode in enumerate(dataset.iterate_episodes()):
        _check_lengths(dataset, episode, number)
        columns: dict[str, np.ndarray] = {}
        for name, observed in _leaves("", episode.observations):
            columns[f"obs{name}"], columns[f"next_obs{name}"] = observed[:-1], observed[1:]
        invalid = _first_invalid(conversion.env_space, episode.actions)
        if invalid is not None:
            raise ReplayFileError(
                f"the action of step {invalid} of {_episode_name(dataset, episode, number)} is not in its action space "
                f"{dataset.action_space}: {_LEAVE_OUT}"
            )
        columns["actions"] = np.asarray(conversion.to_agent(episode.actions))
        columns["rewards"] = np.asarray(episode.rewards, np.float32)
        columns["termination"] = np.asarray(episode.terminations, np.bool_)
        truncation = np.array(episode.truncations, np.bool_)
        truncation[-1] = True  # the next transition belongs to another episode, even if this one was cut off
        columns["truncation"] = truncation & ~columns["termination"]
        refuse_not_finite(columns, _episode_name(dataset, episode, number), _LEAVE_OUT)
        parts.append(columns)
    if not parts:
        raise ReplayFileError(f"{_name(dataset)} has no episodes: use another data set.")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def minari_conversion(dataset: Any, agent_space: Space | None = None) -> ActionConversion:
    """Return the conversion between the data set's actions and the agents' actions.

    Raises:
        ReplayFileError: agents do not support the data set's actions, or the converted space is not ``agent_space``.
    """
    try:
        conversion = ActionConversion(action_space_of(dataset.action_space)[0])
    except ValueError as error:
        raise ReplayFileError(f"use another data set; agents cannot learn from {_name(dataset)}: {error}") from error
    if agent_space is not None and conversion.agent_space != agent_space:
        raise ReplayFileError(
            f"agents use {conversion.agent_space!r} for the actions of {_name(dataset)}, {dataset.action_space}, but "
            f"the action space of this run's environment is {agent_space!r}: choose a data set recorded in it."
        )
    return conversion


def _first_invalid(space: Space, actions: Any) -> int | None:
    """Return the index of the first action that is not finite or, for integers, not in ``space``; else ``None``."""
    is_valid = np.array(True)
    for of, leaf in zip(leaf_spaces(space), leaf_values(space, actions), strict=True):
        flat = np.asarray(leaf).reshape(len(leaf), -1)
        if isinstance(of, Box):
            low, high = np.ravel(of.low), np.ravel(of.high)
        else:
            low = np.ravel(of.start)
            high = low + np.ravel(of.n if isinstance(of, Discrete) else of.sizes) - 1
        if np.issubdtype(of.dtype, np.floating):
            is_valid = is_valid & np.isfinite(flat).all(axis=1)  # finite values outside the bounds are clipped
        else:
            is_valid = is_valid & ((flat >= low) & (flat <= high) & (flat % 1 == 0)).all(axis=1)
    return None if is_valid.all() else int(np.argmin(is_valid))


def _check_lengths(dataset: Any, episode: Any, number: int) -> None:
    """Raise ``ReplayFileError`` for an episode without steps, or with arrays that do not match in length."""
    num_steps = len(episode.rewards)
    lengths = {"terminations": len(episode.terminations), "truncations": len(episode.truncations)}
    lengths |= {f"actions{name}": len(leaf) for name, leaf in _leaves("", episode.actions)}
    expected = dict.fromkeys(lengths, num_steps)
    observed = {f"observations{name}": len(leaf) for name, leaf in _leaves("", episode.observations)}
    lengths, expected = lengths | observed, expected | dict.fromkeys(observed, num_steps + 1)
    for name, length in lengths.items():
        if length != expected[name] or not num_steps:
            raise ReplayFileError(
                f"{_episode_name(dataset, episode, number)} has {num_steps} rewards and {length} {name}, but "
                f"{expected[name] if num_steps else 'at least 1'} are expected (one observation before each step and "
                f"one after the last): {_LEAVE_OUT}"
            )


def _episode_name(dataset: Any, episode: Any, number: int) -> str:
    return f"episode {getattr(episode, 'id', number)} of {_name(dataset)}"


def _name(dataset: Any) -> str:
    return f"the data set {getattr(dataset, 'id', '')}".rstrip()


def _leaves(name: str, observed: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(observed, Mapping):
        for key, value in observed.items():
            yield from _leaves(f"{name}.{key}", value)
    elif isinstance(observed, tuple):
        for i, value in enumerate(observed):
            yield from _leaves(f"{name}.{i}", value)
    else:
        yield name, np.asarray(observed)

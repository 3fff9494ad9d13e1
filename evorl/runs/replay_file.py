"""Stores recorded transitions in portable files: arrays in ``<name>.npz``, a description in ``<name>.json``.

Transitions are in time order within each environment, one environment after the other, in columns ``[N, ...]``:
``obs``, ``actions``, ``rewards``, ``next_obs`` (before any reset), ``termination``, ``truncation``. Each entry of a
dict observation has its own column, such as ``obs.desired_goal``. If the recording of an environment ends within an
episode, the last transition is a truncation. ``numpy.load`` can read the arrays; nothing in the files is executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evorl.config.command_lines import as_arguments, user_path
from evorl.config.values import short_repr
from evorl.runs.files import refuse_link, replacing, sibling, write_atomically, writing_to
from evorl.runs.npz_file import NpzError, read_npz, storable

FORMAT = 1
COLUMNS = ("actions", "rewards", "termination", "truncation")  # in every file, in addition to observations
_PER_STEP = {"rewards": "fiu", "termination": "b", "truncation": "b"}  # allowed kinds of dtypes of columns ``[N]``


class ReplayFileError(ValueError):
    """Raised for a file of transitions that is missing, corrupted or incompatible; the message states the reason."""


def write_replay_file(
    path: Path | str, columns: Mapping[str, Any], env: str | None, reward_options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write ``<path>.npz`` and ``<path>.json``, each atomically, and return the content of the ``.json``.

    Args:
        path: path with or without suffix.
        columns: arrays ``[N, ...]`` by column name, see the module; at least ``COLUMNS``.
        env: name of the environment, with its library, such as ``gymnasium/Hopper-v5``; ``None`` if unknown.
        reward_options: settings of ``env`` that changed the rewards, such as ``{"reward_scale": 0.1}``; ``None`` if
            unknown. Runs with other settings reject the file.

    Raises:
        ReplayFileError: a column is missing, has another length or a wrong type, or is not finite.
        RunFolderError: the files cannot be written.
    """
    path = user_path(path)
    if not isinstance(env, str | None):
        raise ReplayFileError(f"{path}: env must be a name or None, got {env!r}.")
    try:
        columns = {name: storable(x) for name, x in columns.items()}
    except (TypeError, ValueError) as error:
        raise ReplayFileError(f"{path}: each column must be an array of numbers: {error}") from error
    _require_columns(columns, path)
    _check_values(columns, path)
    facts = {"format": FORMAT, "env": env, "num_steps": len(columns["rewards"]), **episode_facts(columns)}
    facts |= {} if reward_options is None else {"reward_options": dict(reward_options)}
    facts["columns"] = {name: {"dtype": str(x.dtype), "shape": list(x.shape[1:])} for name, x in columns.items()}
    text = json.dumps(facts, indent=2) + "\n"
    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays, described = (sibling(path, suffix, ".npz", ".json") for suffix in (".npz", ".json"))
        refuse_link(described)
        with replacing(arrays) as file:
            np.savez(file, allow_pickle=False, **columns)
        write_atomically(described, text)
    return facts


def episode_facts(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return ``num_episodes``, and ``episode_return_mean`` and ``episode_return_std`` (``None`` without episodes).

    An episode also counts if its first steps are not recorded, or if the end of the recording truncated it.
    """
    ends = np.flatnonzero(columns["termination"] | columns["truncation"])
    if not len(ends):
        return {"num_episodes": 0, "episode_return_mean": None, "episode_return_std": None}
    totals = np.cumsum(np.asarray(columns["rewards"], np.float64))[ends]
    returns = np.diff(totals, prepend=0.0)
    mean, std = float(returns.mean()), float(returns.std())
    return {"num_episodes": len(ends), "episode_return_mean": mean, "episode_return_std": std}


def find_replay_file(named: str) -> Path:
    """Return the ``.npz`` file of a path, with or without suffix, or of a run folder, or raise ``ReplayFileError``."""
    path = user_path(named)
    candidates = [path / "replay.npz"] if path.is_dir() else [path, path.with_name(f"{path.name}.npz")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if path.is_dir():
        raise ReplayFileError(
            f"{path} has no replay.npz: create it from the run's last checkpoint, "
            f"evorl save-replay {as_arguments({'run': path})}."
        )
    raise ReplayFileError(f"there is no replay file {path}: pass an .npz file written by evorl save-replay.")


def read_replay_facts(path: Path) -> dict[str, Any]:
    """Return the description of the ``.npz`` file ``path``, from the ``.json`` file with the same name.

    Raises:
        ReplayFileError: the description is missing, invalid or of another format version, or lacks one of ``COLUMNS``.
    """
    described = path.with_suffix(".json")
    try:
        facts = json.loads(described.read_text("utf-8"))
    except OSError as error:
        reason = f"cannot be read ({error.strerror}): keep both files in one folder"
        raise ReplayFileError(f"{described}, the description of {path.name}, {reason}.") from error
    except (ValueError, RecursionError) as error:
        raise ReplayFileError(f"{described} is not valid JSON ({error}): write it and {path.name} again.") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("columns"), dict) or "num_steps" not in facts:
        raise ReplayFileError(f"{described} does not describe {path.name}: it needs num_steps and columns.")
    if facts.get("format") != FORMAT:
        raise ReplayFileError(f"{described}: format must be {FORMAT}, got {facts.get('format')!r:.80}: record again.")
    steps, env = facts["num_steps"], facts.get("env", {})
    checked = [("num_steps", steps, _is_size(steps) and steps > 0, "a positive integer")]
    checked += [("env", env, isinstance(env, str | None), "a name or null")]
    for name, column in facts["columns"].items():
        checked += [(f"columns.{ascii(name)[1:-1]}", column, _describes_column(column), "a mapping of dtype and shape")]
    for name, value, fits, expected in checked:
        if not fits:
            raise ReplayFileError(f"{described}: {name} must be {expected}, got {short_repr(value)}.")
    _require_columns(facts["columns"], path)
    return facts


def _require_columns(columns: Mapping[str, Any], path: Path) -> None:
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise ReplayFileError(f"{path} has no column {missing[0]!r}; it has {', '.join(columns)}.")


def _check_values(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Raise ``ReplayFileError`` unless all columns have one entry per step, of the right type, all finite."""
    num_steps = columns["rewards"].size
    for name, x in columns.items():
        shown = f"{name} in {path} is {x.dtype}{list(x.shape)}"
        if x.dtype.kind not in "biuf":
            advice = ": a dict observation has a column for each entry (obs.speed)" if x.dtype.kind == "O" else ""
            raise ReplayFileError(f"{shown}, not numbers{advice}.")
        if name in _PER_STEP and (x.ndim != 1 or x.dtype.kind not in _PER_STEP[name]):
            raise ReplayFileError(f"{shown}, but must be one {'number' if name == 'rewards' else 'bool'} per step.")
        if x.shape[:1] != (num_steps,) or not num_steps:
            raise ReplayFileError(f"{shown}, but must have an entry for each of {num_steps} steps, at least one.")
    refuse_not_finite(columns, str(path), "all recorded numbers must be finite.")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _describes_column(described: Any) -> bool:
    if not isinstance(described, dict) or not isinstance(described.get("dtype"), str):
        return False
    try:
        np.dtype(described["dtype"])
    except TypeError:
        return False
    return isinstance(described.get("shape"), list) and all(map(_is_size, described["shape"]))


def read_columns(path: Path, facts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of the ``.npz`` file ``path`` by column, checked against ``facts``, its description.

    Raises:
        ReplayFileError: the file is corrupted or differs from ``facts``, or a column has a wrong type or is not finite.
    """
    try:
        columns = read_npz(path, facts["columns"])
    except NpzError as error:
        raise ReplayFileError(f"{path} cannot be read: {error}.") from error
    for name, described in facts["columns"].items():
        column, expected = columns[name], [facts["num_steps"], *described["shape"]]
        if list(column.shape) != expected or str(column.dtype) != described["dtype"]:
            shown = f"{name} in {path} is {column.dtype}{list(column.shape)}"
            raise ReplayFileError(f"{shown}, but its description states {described['dtype']}{expected}.")
    _check_values(columns, path)
    return columns


def refuse_not_finite(columns: Mapping[str, np.ndarray], source: str, remedy: str) -> None:
    """Raise ``ReplayFileError`` for a NaN or an infinity in one of the columns ``[N, ...]``; it names ``source``."""
    for name, column in columns.items():
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            row = int(np.argmin(np.isfinite(column).reshape(len(column), math.prod(column.shape[1:])).all(axis=1)))
            raise ReplayFileError(f"{name} in {source} is not finite in row {row}: {remedy}")

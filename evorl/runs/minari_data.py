"""Data sets of Minari (Farama's collection of recorded episodes) as columns of transitions. Minari is an extra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evorl.config.names import missing_in_words
from evorl.runs.replay_file import ReplayFileError

PREFIX = "minari:"


def open_minari_dataset(name: str) -> Any:
    """A data set on this machine, by its id such as ``mujoco/hopper/medium-v0``.

    Raises:
        ImportError: Minari is not installed.
        ReplayFileError: there is no such data set here.
    """
    with missing_in_words("data sets of Minari", "minari", "minari[hdf5]>=0.5"):
        import minari
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        here = ", ".join(sorted(minari.list_local_datasets())) or "none"
        raise ReplayFileError(
            f"Minari has no data set {name!r} on this machine (there are: {here}): minari download {name}."
        ) from error


def minari_facts(dataset: Any) -> dict[str, Any]:
    """What is known of a data set before it is read: its environment, and how many steps it has."""
    spec = dataset.env_spec
    return {"env": None if spec is None else f"gymnasium/{spec.id}", "num_steps": int(dataset.total_steps)}


def minari_columns(dataset: Any) -> dict[str, np.ndarray]:
    """All transitions of a data set; see ``evorl.runs.replay_file`` for the columns.

    Actions of a bounded box are brought to ``[-1, 1]``, as agents give them.
    """
    parts: list[dict[str, np.ndarray]] = []
    for episode in dataset.iterate_episodes():
        columns: dict[str, np.ndarray] = {}
        for name, observed in _leaves("", episode.observations):
            columns[f"obs{name}"], columns[f"next_obs{name}"] = observed[:-1], observed[1:]
        columns["actions"] = _as_agents_act(np.asarray(episode.actions), dataset.action_space)
        columns["rewards"] = np.asarray(episode.rewards, np.float32)
        columns["termination"] = np.asarray(episode.terminations, np.bool_)
        truncation = np.array(episode.truncations, np.bool_)
        truncation[-1] = True  # what follows an episode is another one, however it ended
        columns["truncation"] = truncation & ~columns["termination"]
        parts.append(columns)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _leaves(name: str, observed: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(observed, Mapping):
        for key, value in observed.items():
            yield from _leaves(f"{name}.{key}", value)
    elif isinstance(observed, tuple):
        for i, value in enumerate(observed):
            yield from _leaves(f"{name}.{i}", value)
    else:
        yield name, np.asarray(observed)


def _as_agents_act(actions: np.ndarray, space: Any) -> np.ndarray:
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return actions
    return np.clip((actions - low) / (high - low) * 2.0 - 1.0, -1.0, 1.0)

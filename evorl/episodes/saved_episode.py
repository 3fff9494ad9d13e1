"""Stores an episode in two files: its arrays for NumPy, and a description in JSON.

``<name>.npz`` holds one array per entry, ``<name>.json`` describes them and their origin. The files contain no pickles.
Each file is written atomically, the description last: an episode with a description is complete.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from evorl.config.command_lines import user_path
from evorl.config.values import short_repr
from evorl.runs.files import RunFolderError, make_folder, replacing, sibling, write_atomically, writing_to
from evorl.runs.npz_file import read_npz, storable

FORMAT = 1
_PER_STEP = ("action", "reward", "termination", "success")  # arrays ``[T, ...]``; all others are ``[T + 1, ...]``
_SUCCESS = {"success", "success_ever"}


@dataclasses.dataclass(frozen=True)
class SavedEpisode:
    """An episode of T steps.

    Attributes:
        about: JSON data: ``env`` (config of the environment), ``length`` (T), ``return`` (a number), and other entries.
        arrays: arrays by name. Observations (``obs``, or ``obs.<entry>``) and physics states (``qpos``, ``qvel``; for
            brax ``q``, ``qd``) have T + 1 rows; actions, rewards and flags have T.
    """

    about: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def save(self, path: Path) -> None:
        """Write ``<path>.npz`` and ``<path>.json``, replacing existing files; raise ``RunFolderError`` on failure."""
        arrays: dict[str, Any] = {name: storable(x) for name, x in self.arrays.items()}
        shapes = {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in arrays.items()}
        text = json.dumps({"format": FORMAT, **self.about, "arrays": shapes}, indent=2) + "\n"
        with writing_to(path.parent):
            make_folder(path.parent)
            described, stored = _files_of(path)
            with replacing(stored) as file:
                np.savez_compressed(file, **arrays)
            write_atomically(described, text)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read an episode by the path of either of its files.

        Raises:
            RunFolderError: a file is missing, corrupted or of another format version; the message states the reason.
        """
        path = user_path(path)
        files = _files_of(path)
        for file in files:
            if not file.is_file():
                raise RunFolderError(
                    f"There is no file {file}: an episode consists of an .npz and a .json file with the same name."
                )
        try:
            about, arrays = json.loads(files[0].read_text(encoding="utf-8")), read_npz(files[1])
        except (ValueError, OSError, RecursionError) as error:
            raise RunFolderError(f"The episode {path} is corrupted, or was not written by evorl: {error}") from error
        if not isinstance(about, dict) or about.get("format") != FORMAT or not isinstance(about.get("env"), dict):
            raise RunFolderError(f"{files[0]} is not a description of an episode in format {FORMAT}: save it again.")
        if problem := _problem_of(about, arrays):
            raise RunFolderError(f"The episode {path} is corrupted: {problem}.")
        return cls(about, arrays)


def _files_of(path: Path) -> tuple[Path, Path]:
    """Return the description and the arrays of an episode, given either path, or their common path without suffix."""
    return sibling(path, ".json", ".npz", ".json"), sibling(path, ".npz", ".npz", ".json")


def _problem_of(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return why a description and arrays do not form a valid episode, as a clause; ``None`` if they do."""
    entries, length, total = about.get("arrays"), about.get("length"), about.get("return")
    described = entries.items() if isinstance(entries, dict) else ()
    shapes = {name: isinstance(x, dict) and (x.get("shape"), x.get("dtype")) for name, x in described}
    if shapes != {name: (list(x.shape), str(x.dtype)) for name, x in arrays.items()}:
        return "its description does not match its arrays"
    if type(length) is not int or not 0 <= length < 2**53:
        return f"its length is {short_repr(length)}, not a number of steps"
    if not isinstance(total, float) and (type(total) is not int or abs(total) >= 2**53):
        return f"its return is {short_repr(total)}, not a number"
    if any(type(about.get(name, False)) is not bool for name in _SUCCESS) or len(_SUCCESS & about.keys()) == 1:
        return f"{' and '.join(sorted(_SUCCESS))} must both be true or false, or both be missing"
    if not isinstance(about.get("name", ""), str | None):
        return f"its name is {short_repr(about['name'])}, not text"
    for name, x in arrays.items():
        rows = length + (name.partition(".")[0] not in _PER_STEP)
        if x.shape[:1] != (rows,):
            return f"{name} has the shape {list(x.shape)}, expected {rows} rows for an episode of {length} steps"
    return None

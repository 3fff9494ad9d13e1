"""Reads the settings of a stored run; unless the run is trusted, names of code outside evorl are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evorl.config.values import checked_value, plain, set_at
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.trust import distrust_config, refuse_foreign_code


def read_stored(folder: RunFolder) -> dict[str, Any]:
    """Return the config of a stored run as plain data, completed with defaults; no code that it names is loaded.

    The stored ``trust``, ``resume`` and ``run`` are dropped: only the command line's values are used.

    Raises:
        RunFolderError: the config cannot be read, or does not describe a run.
    """
    config = plain(folder.load_config(trust=True))
    missing = [name for name in ("workflow", "env") if name not in config]
    if missing:
        raise RunFolderError(f"{folder.config} is not the config of a run: it has no {', '.join(missing)}.")
    of_command = RunSpec.keys("of_command")
    return RunSpec.completed_config({key: value for key, value in config.items() if key not in of_command})


def stored_spec(
    folder: RunFolder,
    trust: bool,
    changes: Mapping[str, Any] | None = None,
    can_be_overridden: bool = True,
    config: dict[str, Any] | None = None,
) -> RunSpec:
    """Return the settings of a stored run, with changes.

    Unless ``trust`` is True, only code of evorl and names in ``changes`` can then be loaded, see ``distrust_config``.

    Args:
        folder: the run folder.
        trust: True if the config may name code outside evorl. Names in ``changes`` are trusted.
        changes: new values by dotted key, given by the user.
        can_be_overridden: for the message: True if the user can pass settings of the run to the command.
        config: result of ``read_stored``, which is changed in place; ``None`` reads the config from the folder.

    Raises:
        RunFolderError: the config cannot be read, or would execute code outside evorl.
        ValueError: a value has the wrong type or is out of range.
    """
    checked_value(trust, bool, "trust")
    changes = changes or {}
    config = read_stored(folder) if config is None else config
    for path, value in changes.items():
        set_at(config, path, value)
    if not trust:
        distrust_config(config, folder.path, changes)
        refuse_foreign_code(config, folder.path, changes, can_be_overridden)
    return RunSpec.from_config(config)

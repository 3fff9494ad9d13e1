"""Reads the settings of a stored run; unless the run is trusted, names of code outside evorl are rejected."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from evorl.config.gate import distrust, grant
from evorl.config.values import checked_value, plain, set_at
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.trust import refuse_foreign_code


@dataclasses.dataclass(frozen=True)
class StoredConfig:
    """Config of a stored run as plain data, completed with defaults; no code that it names is loaded.

    Attributes:
        folder: the run folder.
        config: nested mapping, without the stored ``trust``, ``resume`` and ``run``: only a command line sets these.
    """

    folder: RunFolder
    config: Mapping[str, Any]

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        """Read the config in a run folder; raise ``RunFolderError`` if it is unreadable or not of a run."""
        config = plain(folder.load_config(trust=True))
        missing = [name for name in ("workflow", "env") if name not in config]
        if missing:
            raise RunFolderError(f"{folder.config} is not the config of a run: it has no {', '.join(missing)}.")
        of_command = RunSpec.keys("of_command")
        stored = {key: value for key, value in config.items() if key not in of_command}
        defaults = {key: value for key, value in RunSpec().as_config().items() if key not in stored}
        return cls(folder, stored | defaults)

    def spec(self, trust: bool, changes: Mapping[str, Any] | None = None, can_be_overridden: bool = True) -> RunSpec:
        """Return the settings of the run, with changes.

        Unless ``trust`` is True, ``evorl.config.gate`` then admits only code of evorl and names in ``changes``, until
        the ``gate.scope`` ends.

        Args:
            trust: True if the config may name code outside evorl. Names in ``changes`` are trusted.
            changes: new values by dotted key, given by the user.
            can_be_overridden: for the message: True if the user can pass settings of the run to the command.

        Raises:
            RunFolderError: the config would execute code outside evorl.
            ValueError: a value has the wrong type or is out of range.
        """
        checked_value(trust, bool, "trust")
        changes, config = changes or {}, copy.deepcopy(dict(self.config))
        for path, value in changes.items():
            set_at(config, path, value)
        if not trust:
            distrust(f"the config in {self.folder.path}")
            grant(changes)
            refuse_foreign_code(config, self.folder.path, changes, can_be_overridden)
        return RunSpec.from_config(config)

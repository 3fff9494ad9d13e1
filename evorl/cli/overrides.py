"""Reads and checks the arguments of commands that use a stored run or resume a sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from evorl.cli.arguments import argument_values
from evorl.cli.config_tree import AGENT_PARTS
from evorl.config.command_lines import shell_word
from evorl.config.gate import leaves
from evorl.config.names import did_you_mean, no_such
from evorl.config.values import dotted_keys
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import EvaluationRecords, StoredRun
from evorl.runs.stored import StoredConfig
from evorl.runs.sweep_folder import SweepFolder, find_to_resume
from evorl.runs.trust import foreign_names, settable

_STORED_RUN = tuple(field.name for field in dataclasses.fields(StoredRun))
_GROUPS = ("agent", "env", "experiment", "evolution", "parameters")


def changeable_settings(command: str) -> list[str]:
    """Return the names of the settings of a stored run that ``evorl evaluate`` or ``evorl save-replay`` can change."""
    if command == "save-replay":
        return ["compilation_cache", "devices"]
    of_run = RunSpec.keys("evaluates") - {"evaluation"}
    records = [f"evaluation.{field.name}" for field in dataclasses.fields(EvaluationRecords)]
    return ["eval_episodes", *sorted(of_run), "env.skill", *records]


def stored_run_settings(arguments: Sequence[str]) -> StoredRun:
    """Read the settings that name a stored run.

    Raises:
        ValueError: a flag is given, or a value is invalid; for invalid syntax, Hydra raises ``OverrideParseException``.
    """
    flags = [argument for argument in arguments if argument.startswith("-")]
    if flags:
        raise ValueError(f"{flags[0]} does not apply to a stored run, which has its own config: remove it.")
    return StoredRun.read({override.key_or_group: override.value() for override in refuse_sweeps(arguments)})


def refuse_sweeps(arguments: Sequence[str], kind: str = "a stored run") -> list[Override]:
    """Return the parsed overrides; raise ``ValueError`` if one has several values, which ``kind`` does not accept."""
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    for override in overrides:
        if override.is_sweep_override():
            key, _, values = str(override.input_line).partition("=")
            quoted = shell_word(f'{key}="{values}"')
            raise ValueError(
                f"{override.input_line}: {kind} needs one value per setting, got several. Pass one value, or quote a "
                f"text with commas: {quoted}."
            )
    return overrides


def sweep_to_resume(arguments: Sequence[str]) -> tuple[Path | None, bool]:
    """Find the folder of the sweep that ``resume=`` names, and read ``trust``.

    Returns:
        The folder, or ``None`` if the arguments name no sweep; and True if code outside evorl is allowed.

    Raises:
        ValueError: there are other arguments, which would change the runs of the sweep; or ``trust`` is not a boolean.
        RunFolderError: the run or sweep does not exist.
    """
    values = argument_values(arguments)
    folder = find_to_resume(values["resume"], values.get("runs_folder", StoredRun().runs_folder))
    if not SweepFolder.exists(folder):
        return None, False
    others = [argument for argument in arguments if not argument.startswith(("resume=", "runs_folder=", "trust="))]
    if others:
        raise ValueError(
            f"{folder} is a sweep, whose runs keep their settings: remove {' '.join(others)}, or resume a single run, "
            "with resume=<folder of the run>."
        )
    return folder, stored_run_settings(arguments).trust


def read_changes(known: Collection[str], arguments: Sequence[str], allowed: Collection[str] | None) -> dict[str, Any]:
    """Return the changes that a command line makes to the config of a stored run: new values by dotted key.

    A string for a mapping with an entry ``name`` changes this entry only. The algorithm and environment are fixed.

    Args:
        known: dotted keys of the run's settings.
        arguments: command-line arguments; Hydra settings and fields of ``StoredRun``, such as ``run``, are skipped.
        allowed: settings that can be changed; ``None`` for all settings of the run.

    Raises:
        ValueError: the run does not have a setting, the setting cannot be changed, or it has several values.
    """
    changes: dict[str, Any] = {}
    for override in refuse_sweeps(arguments):
        key, value = override.key_or_group, override.value()
        if key in _STORED_RUN or key.startswith(("hydra.", "hydra/")):
            continue
        if key in (*_GROUPS, *AGENT_PARTS):
            raise ValueError(f"{key} is determined by the run folder: remove {override.input_line}.")
        if allowed is not None and key not in allowed:
            raise ValueError(
                f"{key} has no effect here.{did_you_mean(key, allowed)} Valid settings: {', '.join(allowed)}."
            )
        if override.is_delete():
            raise ValueError(f"{override.input_line}: a setting of the run cannot be removed. Set it to a value.")
        in_schedule = f"{key.rpartition('.')[0]}.start" in known  # schedules accept more entries, such as steps
        if key not in known and not (override.is_add() or in_schedule):
            raise ValueError(no_such("setting of the run", key, known))
        if isinstance(value, str) and f"{key}.name" in known:
            key = f"{key}.name"
        changes[key] = value
    return changes


def changed_spec(
    folder: RunFolder, trust: bool, arguments: Sequence[str], allowed: Collection[str] | None = None
) -> tuple[RunSpec, Collection[str]]:
    """Read the settings of a stored run and apply changes; see ``read_changes`` and ``StoredConfig`` for errors.

    Returns:
        The settings, and the keys that the command line changed.
    """
    stored = StoredConfig.read(folder)
    defaults, foreign = RunSpec().as_config(), foreign_names(stored.config)
    if allowed is not None:
        allowed = (*allowed, *map(settable, foreign))
    known = dict.fromkeys([*dotted_keys(stored.config), *dotted_keys(defaults)])  # a section may be null
    changes = read_changes(known, arguments, allowed)
    values = defaults | dict(leaves(stored.config))
    for key in ("env.name", "env.library", "best_over"):
        if key in changes and changes[key] != values.get(key) and key not in foreign:  # renamed code may change
            raise ValueError(f"{key} is determined by the run folder: remove {key}={changes[key]}.")
    return stored.spec(trust, changes), changes.keys()

"""``evorl export``: writes the policy of a run to a file and checks the file against the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evorl.cli.command_options import read_options
from evorl.cli.options import EXPORT
from evorl.config.values import check_names
from evorl.export import FORMATS
from evorl.export.artifacts import ExportedFile, export_policy
from evorl.export.stored_policy import StoredPolicy, selected_policy


def export_from_arguments(arguments: Sequence[str]) -> list[ExportedFile]:
    """Write the policy of a run to files, compare their outputs with the policy, and return paths and differences."""
    settings, _ = read_options(arguments, EXPORT, "evorl export")
    formats = _formats(settings["format"])
    stored = policy_of(settings, "export")
    return export_policy(stored, formats, settings["to"])


def policy_of(settings: dict[str, Any], command: str) -> StoredPolicy:
    """Load the policy that ``settings``, options of ``POLICY``, select; print its run, checkpoint and seed.

    Raises:
        ValueError: no run is given, an option is invalid, or the checkpoint cannot be loaded.
        RunFolderError: the run does not exist, or is not trusted.
    """
    if not settings["run"]:
        raise ValueError(f"no run was given: use evorl {command} run=<folder>, or run=latest.")
    stored = selected_policy(settings)
    for notice in stored.notices:
        print(notice)
    print(f"{stored.folder}\n{stored.describe()}")
    return stored


def _formats(text: Any) -> list[str]:
    if not text:
        raise ValueError(f"no format was given: set format={'|'.join(FORMATS)}, or several, such as format=onnx,numpy.")
    formats = list(dict.fromkeys(part.strip() for part in str(text).split(",")))
    check_names(formats, FORMATS, "value of format")
    return formats

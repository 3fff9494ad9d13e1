"""The command ``evorl export``: writes the policy of a run to a file and checks the file against the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evorl.cli.command_options import Option, checkpoint, read_options
from evorl.config.values import seed_choice
from evorl.export import FORMATS

if TYPE_CHECKING:
    from evorl.export.artefacts import Written
    from evorl.export.stored_policy import StoredPolicy

POLICY_OPTIONS = {
    "run": Option(None, "a run folder, or latest", text=True),
    "runs_folder": Option("runs", "where run folders are"),
    "checkpoint": Option("best", "best, latest, or the number of an iteration", checkpoint),
    "sample": Option(False, "whether actions are drawn as in training, instead of the most confident ones"),
    "seed_number": Option("best", "which of several seeds, from 0; best for the best by evaluation", seed_choice),
    "trust": Option(False, "whether the run may name code outside evorl: true only if you trust its maker"),
}
OPTIONS = {
    "format": Option(None, f"of the file: {', '.join(FORMATS)}, or several of them as in onnx,numpy", text=True),
    "to": Option(None, "the file, or a folder for several; null for the folder export of the run", text=True),
    **POLICY_OPTIONS,
}


def export_from_arguments(arguments: Sequence[str]) -> list[Written]:
    """Write the policy of a run, check the files, and print their paths and their differences from the policy.

    Args:
        arguments: ``run=<folder>|latest format=onnx|jax|numpy|html``, and other ``OPTIONS``.

    Raises:
        ValueError: an option is unknown or invalid, or the format does not support an operation of the policy.
        NotTheSame: a file computes other outputs than the policy; the file is kept for inspection.
        RunFolderError: the run does not exist.
        ImportError: the format needs a package that is not installed.
    """
    settings, _ = read_options(arguments, OPTIONS, "evorl export")
    formats = _formats(settings["format"])
    stored = policy_of(settings, "export")

    from evorl.export.artefacts import export_policy

    return export_policy(stored, formats, settings["to"])


def policy_of(settings: dict[str, Any], command: str) -> StoredPolicy:
    """Load the policy that ``POLICY_OPTIONS`` select, and print its origin.

    Raises:
        ValueError: no run is given, or an option is invalid.
        RunFolderError: the run does not exist.
    """
    if not settings["run"]:
        raise ValueError(f"no run is given: evorl {command} run=<folder>, or run=latest.")

    from evorl.export.stored_policy import stored_policy

    stored = stored_policy(
        settings["run"],
        settings["runs_folder"],
        checkpoint=int(which) if (which := settings["checkpoint"]).isdigit() else which,
        sample=settings["sample"],
        seed_number=settings["seed_number"],
        trust=settings["trust"],
    )
    for notice in stored.notices:
        print(notice)
    print(f"{stored.folder}\n{stored.describe()}")
    return stored


def _formats(given: Any) -> list[str]:
    from evorl.config.values import check_names

    if not given:
        raise ValueError(f"no format is given: set format={'|'.join(FORMATS)}, or several, such as format=onnx,numpy.")
    formats = list(dict.fromkeys(part.strip() for part in str(given).split(",")))
    check_names(formats, FORMATS, "value of format")
    return formats

"""Run and sweep folders named by Hydra's own settings, ``hydra.run.dir`` and ``hydra.sweep.dir``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import OmegaConf

from evorl.cli.choices import choices, folder_of_runs
from evorl.cli.override_text import SWEEP_FLAGS, given_text
from evorl.config.command_lines import as_arguments, user_path

RUN, SWEEP, SUBDIR = "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir"
# Hydra settings that users mistake for the name of a run, with the options to use instead.
_INSTEAD = {"hydra.job.name": "title", "hydra.runtime.output_dir": RUN, "hydra.job.chdir": RUN}
_NAMED = {"title": "title", RUN: "folder"}


def refuse_other_names(arguments: Sequence[str], names_a_run: bool) -> None:
    """Reject Hydra settings that would not change the name of the folder.

    Args:
        arguments: command-line arguments.
        names_a_run: True if they name a stored run or sweep, which keeps its folder.

    Raises:
        ValueError: there is such a setting; the message states the option to use instead.
    """
    in_sweep = any(argument in (*SWEEP_FLAGS, "hydra.mode=MULTIRUN") for argument in arguments)
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        key, value = key.lstrip("+~"), given_text(argument)
        if not equals or not key.startswith("hydra."):
            continue
        if names_a_run and key in (RUN, SWEEP, SUBDIR):
            raise ValueError(f"{key}={value} has no effect on a stored run, which stays in its folder: remove it.")
        if key in _INSTEAD and value.lower() != "false":
            other = _INSTEAD[key]
            shown = as_arguments({other: "NAME" if other == "title" else "FOLDER"})
            raise ValueError(f"{key}={value} has no effect here: {shown} names the run's {_NAMED[other]}.")
        if key == RUN and in_sweep:
            raise ValueError(f"{key}={value} is for a single run: use {as_arguments({SWEEP: value})} for a sweep.")
        if key in (SWEEP, SUBDIR) and not in_sweep:
            run = value if key == SWEEP else "FOLDER"
            raise ValueError(f"{key}={value} is for a sweep (-m): use {as_arguments({RUN: run})} for a single run.")


def place_of_run(runs_folder: str, kind: str = "") -> tuple[Path, str | None]:
    """Return the parent folder of a new run, and the run's name; ``None`` to name the run by the current time.

    ``hydra.run.dir`` is the folder of the run itself. In a sweep by a Hydra sweeper, ``hydra.sweep.dir`` with
    ``hydra.sweep.subdir`` is the folder of the run, and ``hydra.sweep.dir`` alone replaces ``runs_folder``.

    Args:
        runs_folder: default folder of all runs.
        kind: suffix of the folder for this agent and environment, as in ``ppo-cartpole-sweep``.
    """
    if HydraConfig.initialized():
        hydra = HydraConfig.get()
        if hydra.mode is RunMode.MULTIRUN:
            if hydra.sweep.subdir != ".":
                folder = Path(hydra.sweep.dir) / hydra.sweep.subdir
                return folder.parent, folder.name
            runs_folder = hydra.sweep.dir
        elif hydra.run.dir != ".":
            folder = user_path(hydra.run.dir).resolve()
            return folder.parent, folder.name
    runs = folder_of_runs(runs_folder, choices())
    return (runs.with_name(f"{runs.name}-{kind}") if kind else runs), None


def sweep_folder(overrides: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the folder that ``hydra.sweep.dir`` names, or ``None``; and the other overrides."""
    return named_folder(overrides, SWEEP)


def named_folder(overrides: Sequence[str], key: str) -> tuple[Path | None, list[str]]:
    """Split overrides into the folder that a Hydra setting names, and the rest.

    Interpolations such as ``${now:%Y-%m-%d}`` are resolved.

    Args:
        overrides: overrides of the command line.
        key: key of the setting, ``RUN`` or ``SWEEP``.

    Returns:
        The folder, or ``None`` if the setting is missing; and all other overrides.
    """
    folders = [given_text(override) for override in overrides if override.startswith(f"{key}=")]
    others = [override for override in overrides if not override.startswith(f"{key}=")]
    if not folders:
        return None, others
    setup_globals()
    folder = folders[-1]
    resolved = OmegaConf.create({key: folder})[key] if not Path(folder).exists() else folder
    return user_path(str(resolved)).resolve(), others

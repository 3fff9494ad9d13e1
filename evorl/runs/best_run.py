"""Finds the run that a command names; for a sweep or a search, its best run."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from evorl.config.command_lines import as_arguments, user_path
from evorl.config.values import plain
from evorl.runs.files import RunFolderError, refuse_link
from evorl.runs.folder import RunFolder, trial_name
from evorl.runs.shared_policy import shared_policy
from evorl.runs.sweep_folder import SweepFolder

_MAX_BYTES = 2**26  # size limit of the table of a search


def find_run(which: Path | str, root: Path | str) -> RunFolder:
    """Return the run that ``run=<which>`` names; for a sweep or search, its best run.

    Args:
        which: ``latest``, a path, the name of a folder below ``root``, or a packed policy, see ``shared_policy``.
        root: folder of all runs.

    Raises:
        RunFolderError: no folder matches; a stored sweep, search or packed policy cannot be read; a sweep or search has
            no best run yet; or a sweep is over several environments, whose returns cannot be compared.
        ImportError: ``which`` is an address of the Hugging Face Hub, and the extra ``hub`` is not installed.
    """
    if str(which) != "latest":
        if shared := shared_policy(which, root):
            return shared
        for path in (user_path(which), user_path(root) / which):
            if SweepFolder.exists(path):
                # Trusting the sweep is safe: its command lines are not composed here
                return find_run(_best_run(SweepFolder.open(path, trust=True)).path, root)  # may be a search itself
    folder = RunFolder.find(which, root)
    if folder.sweep_table.is_file():
        best = RunFolder(folder.path / "best")
        if best.config.is_file():
            return best
        raise _without_best(folder.path)
    return _best_trial(folder) if folder.search_table.is_file() else folder


def _best_run(sweep: SweepFolder) -> RunFolder:
    """Return the run with the largest best return; raise ``RunFolderError`` if none, or for several environments."""
    evaluated = [run for run in sweep.runs if run.best_return is not None and sweep.folder_of(run).config.is_file()]
    of_settings: dict[tuple[str, ...], RunFolder] = {}  # by the values of settings that may choose an environment
    for run in sorted(evaluated, key=lambda run: -(run.best_return or 0.0)):
        env = tuple(x for name, x in run.setting.items() if name in ("env", "experiment") or name.startswith("env."))
        of_settings.setdefault(env, sweep.folder_of(run))
    if not of_settings:
        raise _without_best(sweep.path)
    runs = list(of_settings.values())
    if len(runs) > 1:  # settings such as a time limit may differ in the same environment
        of_envs: dict[Any, RunFolder] = {}
        for values, folder in of_settings.items():
            of_envs.setdefault(_env_of(folder) or values, folder)
        runs = list(of_envs.values())
    if len(runs) > 1:
        named = ", ".join(as_arguments({"run": run.path}) for run in runs)
        raise RunFolderError(
            f"{sweep.path} is a sweep over environments, whose returns cannot be compared: name one of its runs. The "
            f"best run of each environment: {named}."
        )
    return runs[0]


def _env_of(run: RunFolder) -> str | None:
    """Return a description of a run's environment, ``None`` if unknown; raise ``RunFolderError`` for a bad config."""
    env = plain(run.load_config(trust=True)).get("env")  # the code that a config may name is not loaded here
    return str([env.get(name) for name in ("library", "name", "factory")]) if isinstance(env, dict) else env


def _best_trial(search: RunFolder) -> RunFolder:
    """Return the last run of the finished trial with the largest best return; raise ``RunFolderError`` if none."""
    refuse_link(search.search_table)
    runs: list[tuple[float, RunFolder]] = []
    try:
        if search.search_table.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES:,} bytes")
        with open(search.search_table, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["state"] == "finished" and row["best_return"]:
                    name = trial_name(int(row["trial"]))
                    folders = [search.path / name, *search.path.glob(f"{name}_*")]
                    folders = [path for path in folders if RunFolder(path).config.is_file()]
                    value = float(row["best_return"])
                    if folders and math.isfinite(value):
                        runs.append((value, RunFolder(max(folders, key=lambda path: (len(path.name), path.name)))))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        reason = f"it has no column {error}" if isinstance(error, KeyError) else error
        raise RunFolderError(f"{search.search_table} is corrupted ({reason}): name one of its trials.") from error
    if not runs:
        raise _without_best(search.path)
    return max(runs, key=lambda pair: pair[0])[1]


def _without_best(path: Path) -> RunFolderError:
    """Return the error for a sweep or search without a best run."""
    return RunFolderError(
        f"{path} is a sweep or search without a best run so far: continue it with evorl train "
        f"{as_arguments({'resume': path})}, or name one of its run folders, if it has any."
    )

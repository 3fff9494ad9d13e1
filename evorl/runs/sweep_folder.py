"""The folder of a sweep: its runs, their progress and their results."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from evorl.config.command_lines import as_arguments, describe_setting, user_path
from evorl.runs.files import PRIVATE, RunFolderError, make_folder, refuse_link, write_atomically, write_text, writing_to
from evorl.runs.folder import RunFolder, new_folder
from evorl.runs.trust import refuse_composed_code

STATES = ("waiting", "running", "stopped", "finished", "failed", "diverged")
_FILE = "sweep.json"  # the stored runs are called jobs, Hydra's term
_MAX_BYTES = 2**26  # size limit of sweep.json
_MAX_RUNS = 100_000
_LONGEST_NAME = 100


@dataclasses.dataclass
class SweptRun:
    """One run of a sweep.

    Attributes:
        overrides: settings of the run on the command line, ``name=value``.
        setting: values of the settings that the sweep varies, by name.
        folder: name of the run folder, inside the folder of the sweep.
        state: one of ``STATES``. A run that was killed is still listed as running.
        best_return: best evaluation return; ``None`` without evaluations.
        last_return: last evaluation return; ``None`` without evaluations.
        timesteps: environment steps at the last row of metrics.
        failure: the error that ended the run; empty if it did not fail.
    """

    overrides: list[str]
    setting: dict[str, str]
    folder: str
    state: str = "waiting"
    best_return: float | None = None
    last_return: float | None = None
    timesteps: int = 0
    failure: str = ""

    @property
    def has_failed(self) -> bool:
        """True if an error ended the run: a divergence, which would recur with the same settings, or another error."""
        return self.state in ("failed", "diverged")

    def describe(self, without: tuple[str, ...] = ()) -> str:
        """Return the varied settings as ``name=value`` pairs, except those named in ``without``."""
        return describe_setting({name: value for name, value in self.setting.items() if name not in without})


@dataclasses.dataclass
class SweepFolder:
    """A sweep on disk.

    Attributes:
        path: the folder.
        flags: Hydra flags of the sweep's command line except ``-m``, shared by all runs.
        runs: the runs, in order.
    """

    path: Path
    flags: list[str]
    runs: list[SweptRun]

    @classmethod
    def create(
        cls,
        root: Path | str,
        flags: Sequence[str],
        runs: Sequence[tuple[list[str], Mapping[str, str]]],
        name: str | None = None,
    ) -> Self:
        """Create the folder of a new sweep below ``root``.

        Args:
            root: folder of all runs, created if missing.
            flags: Hydra flags of the sweep's command line except ``-m``.
            runs: ``overrides`` and ``setting`` of each run, see ``SweptRun``.
            name: name of the new folder; ``None`` for ``sweep_`` and the current time.

        Raises:
            RunFolderError: the folder cannot be created, or ``name`` is already a sweep or a run.
        """
        root = user_path(root)
        with writing_to(root):
            root.mkdir(parents=True, exist_ok=True)
            path = (root / name if name else new_folder(root, "sweep_")).resolve()
            if cls.exists(path) or RunFolder(path).config.exists():
                held = f"{path} already contains a sweep or a run"
                raise RunFolderError(f"{held}: resume it ({as_arguments({'resume': path})}), or choose another folder.")
            make_folder(path, PRIVATE)
        digits = len(str(len(runs) - 1))
        named = [
            SweptRun(overrides, dict(setting), _folder_name(f"{number:0{digits}d}", setting))
            for number, (overrides, setting) in enumerate(runs)
        ]
        sweep = cls(path, list(flags), named)
        sweep.save()
        return sweep

    @classmethod
    def open(cls, path: Path | str, trust: bool = False) -> Self:
        """Read the sweep of a folder, which may come from an untrusted person.

        Args:
            path: the folder.
            trust: True to accept command lines with more than ``name=value``, see ``refuse_composed_code``.

        Raises:
            RunFolderError: the stored sweep is corrupted or invalid, or a command line is rejected.
        """
        path = user_path(path).resolve()
        file = path / _FILE
        stored = _read(file)
        if not isinstance(stored, dict) or set(stored) != {"flags", "jobs"} or not isinstance(stored["jobs"], list):
            raise RunFolderError(f"{file} does not describe a sweep: expected a mapping with the lists flags and jobs.")
        flags = _texts(stored["flags"], "flags", file)
        if len(stored["jobs"]) > _MAX_RUNS:
            raise RunFolderError(
                f"{file} does not describe a sweep: it has {len(stored['jobs']):,} runs, more than {_MAX_RUNS:,}."
            )
        runs = [_run_from(number, run, file) for number, run in enumerate(stored["jobs"])]
        for name, count in collections.Counter(run.folder for run in runs).items():
            if count > 1:
                raise RunFolderError(f"{file} does not describe a sweep: {count} runs have the folder {name!r}.")
            refuse_link(path / name)
        if not trust:
            for arguments in (flags, *(run.overrides for run in runs)):
                refuse_composed_code(arguments, str(file))
        return cls(path, flags, runs)

    @staticmethod
    def exists(path: Path | str) -> bool:
        """Return True if ``path`` is the folder of a sweep."""
        return (user_path(path) / _FILE).is_file()

    @property
    def summary(self) -> Path:
        """Path of the summary, a CSV file with one line per run."""
        return self.path / "summary.csv"

    @property
    def learning_curves(self) -> Path:
        """Path of the plot of the learning curves of all settings, PNG."""
        return self.path / "learning_curves.png"

    @property
    def names(self) -> list[str]:
        """Names of the varied settings."""
        return list(dict.fromkeys(name for run in self.runs for name in run.setting))

    def folder_of(self, run: SweptRun) -> RunFolder:
        """Return the run folder of a run, which may not exist yet."""
        return RunFolder(self.path / run.folder)

    def save(self) -> None:
        """Store the runs with their progress, and the summary.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        stored: dict[str, Any] = {"flags": self.flags, "jobs": [dataclasses.asdict(run) for run in self.runs]}
        with writing_to(self.path):
            write_atomically(self.path / _FILE, json.dumps(stored, indent=1) + "\n")
            write_text(self.summary, self._as_csv())

    def _as_csv(self) -> str:
        columns = ("folder", "state", "timesteps", "best_return", "last_return", "failure")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.names, *columns])
        for run in self.runs:
            shown = (getattr(run, name) for name in columns)
            cells = [run.setting.get(name, "") for name in self.names] + ["" if x is None else x for x in shown]
            writer.writerow(cells)
        return text.getvalue()


def _read(file: Path) -> Any:
    """Read the JSON of a file.

    Raises:
        RunFolderError: the file is a symbolic link, too large, or not JSON.
    """
    refuse_link(file)
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES:,} bytes")
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} does not describe a sweep: {error}.") from error


def _run_from(number: int, stored: Any, file: Path) -> SweptRun:
    """Build a run from its stored form.

    Raises:
        RunFolderError: an entry is missing, unknown, or has the wrong type; the message names the run.
    """
    where = f"jobs[{number}]"
    fields = {field.name for field in dataclasses.fields(SweptRun)}
    if not isinstance(stored, dict) or not {"overrides", "setting", "folder"} <= set(stored) <= fields:
        raise RunFolderError(
            f"{file} does not describe a sweep: {where} needs overrides, setting and folder; it allows only "
            f"{', '.join(sorted(fields))}."
        )
    checked = {
        "overrides": _texts(stored["overrides"], f"{where}.overrides", file),
        "setting": stored["setting"],
        "folder": stored["folder"],
        "state": stored.get("state", STATES[0]),
        "timesteps": stored.get("timesteps", 0),
        "failure": stored.get("failure", ""),
        **{name: stored.get(name) for name in ("best_return", "last_return")},
    }
    setting = checked["setting"]
    fitting = {
        "setting": isinstance(setting, dict) and all(isinstance(value, str) for value in setting.values()),
        "folder": _is_folder_name(checked["folder"]),
        "state": isinstance(checked["state"], str) and checked["state"] in STATES,
        "timesteps": _is_number(checked["timesteps"], int) and checked["timesteps"] >= 0,
        "failure": isinstance(checked["failure"], str),
        **{name: checked[name] is None or _is_number(checked[name]) for name in ("best_return", "last_return")},
    }
    for name, fits in fitting.items():
        if not fits:
            shown = repr(checked[name])[:_LONGEST_NAME]
            raise RunFolderError(f"{file} does not describe a sweep: {where}.{name} cannot be {shown}.")
    return SweptRun(**checked)


def _is_number(value: Any, kind: type = float) -> bool:
    """Return True for an integer below 2**63 in magnitude, or for a float unless ``kind`` is int; never for a bool."""
    return (type(value) is float and kind is float) or (type(value) is int and abs(value) < 2**63)


def _is_folder_name(value: Any) -> bool:
    """Return True if a value is the name of a folder directly below another one."""
    return isinstance(value, str) and value.isprintable() and Path(value).name == value and value not in ("", "..")


def _texts(value: Any, name: str, file: Path) -> list[str]:
    """Return ``value``; raise ``RunFolderError`` unless it is a list of strings."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise RunFolderError(f"{file} does not describe a sweep: {name} must be a list of strings.")
    return value


def _folder_name(number: str, setting: Mapping[str, str]) -> str:
    """Return a name such as ``3-agent_ppo-seed_1``, free of characters with a special meaning in a shell or Hydra."""
    parts = [f"{name.rpartition('.')[2]}_{value}" for name, value in setting.items()]
    return "-".join([number, *(re.sub(r"[^\w.+]+", "_", part).strip("_") for part in parts)])[:_LONGEST_NAME]

"""The folder of a sweep: its runs, their progress and their results."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self

from evorl.config.command_lines import as_arguments, describe_setting, user_path
from evorl.ops.processes import is_first
from evorl.runs.files import PRIVATE, RunFolderError, make_folder, refuse_link, write_atomically, writing_to
from evorl.runs.folder import WITH_PARTS, RunFolder, new_folder
from evorl.runs.run_state import FINISHED, HeldState, read_state
from evorl.runs.trust import needs_trust, refuse_composed_code

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
        failure: the error that ended the run, or the failures of the runs within it; else empty.
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
        """True if an error ended the run, such as a divergence, or an error ended a run within it."""
        return bool(self.failure) or self.state in ("failed", "diverged")

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
        names_code: True if the composed config of a run names code outside evorl.
    """

    path: Path
    flags: list[str]
    runs: list[SweptRun]
    names_code: bool = False

    @classmethod
    def create(
        cls,
        root: Path | str,
        flags: Sequence[str],
        runs: Sequence[tuple[list[str], Mapping[str, str]]],
        name: str | None = None,
        names_code: bool = False,
    ) -> Self:
        """Create the folder of a new sweep below ``root``.

        Args:
            root: folder of all runs, created if missing.
            flags: Hydra flags of the sweep's command line except ``-m``.
            runs: ``overrides`` and ``setting`` of each run, see ``SweptRun``.
            name: name of the new folder; ``None`` for ``sweep_`` and the current time.
            names_code: see ``SweepFolder``.

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
        names = _folder_names([setting for _, setting in runs])
        named = [
            SweptRun(overrides, dict(setting), name) for name, (overrides, setting) in zip(names, runs, strict=True)
        ]
        sweep = cls(path, list(flags), named, names_code)
        sweep.save()
        return sweep

    @classmethod
    def open(cls, path: Path | str, trust: bool = False) -> Self:
        """Read the sweep of a folder; without ``trust``, reject command lines that ``refuse_composed_code`` rejects.

        Raises:
            RunFolderError: the stored sweep is corrupted or invalid, or a command line is rejected.
        """
        path = user_path(path).resolve()
        file = path / _FILE
        refuse_link(file)
        try:
            flags, runs, names_code = _read(file)
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f"{file} does not describe a sweep: {error}.") from error
        for run in runs:
            refuse_link(path / run.folder)
        if not trust:
            for arguments in (flags, *(run.overrides for run in runs)):
                refuse_composed_code(arguments, str(file))
        return cls(path, flags, runs, names_code)

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
        """Path of the PNG plot with the learning curves of all settings."""
        return self.path / "learning_curves.png"

    @property
    def names(self) -> list[str]:
        """Names of the varied settings."""
        return list(dict.fromkeys(name for run in self.runs for name in run.setting))

    @property
    def resume_arguments(self) -> str:
        """Arguments of the command that resumes the sweep, with ``trust=true`` if a command line or config needs it."""
        words = {*self.flags, *(text for run in self.runs for text in run.overrides)}
        trusts = self.names_code or any(map(needs_trust, words))
        return as_arguments({"resume": self.path, **({"trust": "true"} if trusts else {})})

    @property
    def replaced(self) -> set[str]:
        """Names of the folders of runs that had no checkpoint, so that a resume started them again in new folders."""
        names = set[str]()
        for run, first in zip(self.runs, _folder_names([run.setting for run in self.runs]), strict=True):
            name = run.folder
            while name.startswith(f"{first}_"):  # such as 0-seed_1_2_2, the third folder of 0-seed_1
                name = name.rpartition("_")[0]
                names.add(name)
        return names

    def folder_of(self, run: SweptRun) -> RunFolder:
        """Return the run folder of a run, which may not exist yet."""
        return RunFolder(self.path / run.folder)

    def locked(self) -> AbstractContextManager[None]:
        """Return a context in which no other process can train the sweep; only the first process locks it.

        Raises:
            RunFolderError: another process trains the sweep.
        """
        return HeldState(RunFolder(self.path).state) if is_first() else nullcontext()

    def save(self) -> None:
        """Store the runs with their progress, and the summary; raise ``RunFolderError`` on failure."""
        runs = [dataclasses.asdict(run) for run in self.runs]
        stored: dict[str, Any] = {"flags": self.flags, "jobs": runs, "names_code": self.names_code}
        with writing_to(self.path):
            write_atomically(self.path / _FILE, json.dumps(stored, indent=1) + "\n")
            write_atomically(self.summary, self._as_csv())

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


def _read(file: Path) -> tuple[list[str], list[SweptRun], bool]:
    """Read ``flags``, ``runs`` and ``names_code``; raise ``OSError``, ``ValueError`` or ``RecursionError``."""
    if file.stat().st_size > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES:,} bytes")
    stored = json.loads(file.read_text(encoding="utf-8"))
    names_code = stored.pop("names_code", False) if isinstance(stored, dict) else False  # missing in older sweeps
    if not isinstance(stored, dict) or set(stored) != {"flags", "jobs"} or not isinstance(stored["jobs"], list):
        raise ValueError("expected a mapping with the lists flags and jobs")
    if not _are_texts(stored["flags"]) or not isinstance(names_code, bool):
        raise ValueError("flags must be a list of strings, and names_code true or false")
    if len(stored["jobs"]) > _MAX_RUNS:
        raise ValueError(f"it has {len(stored['jobs']):,} runs, more than {_MAX_RUNS:,}")
    runs = [_run_from(f"jobs[{number}]", run) for number, run in enumerate(stored["jobs"])]
    for name, count in collections.Counter(run.folder for run in runs).items():
        if count > 1:
            raise ValueError(f"{count} runs have the folder {name!r}")
    return stored["flags"], runs, names_code


def _run_from(where: str, stored: Any) -> SweptRun:
    """Build a run from its stored form; raise ``ValueError`` for an entry that is missing, unknown or invalid."""
    if not isinstance(stored, dict) or not {"overrides", "setting", "folder"} <= set(stored) <= set(_IS_VALID):
        allowed = ", ".join(sorted(_IS_VALID))
        raise ValueError(f"{where} needs overrides, setting and folder; it allows only {allowed}")
    for name, value in stored.items():
        if not _IS_VALID[name](value):
            raise ValueError(f"{where}.{name} cannot be {repr(value)[:_LONGEST_NAME]}")
    return SweptRun(**stored)


def _is_return(value: Any) -> bool:
    """Return True for ``None``, a finite float, or an integer below 2**63 in magnitude; False for a boolean."""
    return (
        value is None or (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 2**63)
    )


def _is_folder_name(value: Any) -> bool:
    """Return True if a value is the name of a folder directly below another one."""
    return isinstance(value, str) and value.isprintable() and Path(value).name == value and value not in ("", "..")


def _are_texts(value: Any) -> bool:
    """Return True for a list of strings."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


# Checks of the stored fields of a run, which may come from an untrusted source.
_IS_VALID: dict[str, Callable[[Any], bool]] = {
    "overrides": _are_texts,
    "setting": lambda value: isinstance(value, dict) and _are_texts(list(value.values())),
    "folder": _is_folder_name,
    "state": lambda value: isinstance(value, str) and value in STATES,
    "timesteps": lambda value: type(value) is int and 0 <= value < 2**63,
    "failure": lambda value: isinstance(value, str),
    **dict.fromkeys(("best_return", "last_return"), _is_return),
}


def _folder_names(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return names such as ``3-agent_ppo-seed_1``, without characters that have a meaning in a shell or Hydra."""
    digits = len(str(len(settings) - 1))
    names = []
    for number, setting in enumerate(settings):
        parts = [f"{name.rpartition('.')[2]}_{value}" for name, value in setting.items()]
        shown = [re.sub(r"[^\w.+]+", "_", part).strip("_") for part in parts]
        names.append("-".join([f"{number:0{digits}d}", *shown])[:_LONGEST_NAME])
    return names


def find_to_resume(which: Path | str, root: Path | str) -> Path:
    """Return the folder that ``resume=<which>`` names: a run, or the sweep or search that contains the newest run.

    ``latest`` and a folder of runs name the run, or sweep in one program, with the most recent checkpoint. If it
    belongs to a sweep or search, that is resumed as a whole: to resume a part alone, name its own folder. An unfinished
    run of a finished sweep was resumed alone, and is again.

    Raises:
        RunFolderError: see ``RunFolder.find``.
    """
    named = user_path(which).resolve(), user_path(Path(root) / which).resolve()
    if sweep := next((path for path in named if SweepFolder.exists(path)), None):
        return sweep
    run = RunFolder.find(which, root, WITH_PARTS)
    while run.path not in named and (above := RunFolder(run.path.parent)) and _continues_with(above, run):
        run = above
    return run.path


def _continues_with(above: RunFolder, run: RunFolder) -> bool:
    """Return True if ``above`` is the sweep or search of ``run``, and the run was not resumed alone."""
    is_finished = read_state(run.state, run.log).state == FINISHED
    if SweepFolder.exists(above.path):
        return is_finished or any(x.state != FINISHED for x in SweepFolder.open(above.path, trust=True).runs)
    return above.search_table.is_file() or (above.sweep_table.is_file() and is_finished)

"""The folder of a sweep: which jobs it has, how far each is, and what came of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from evorl.runs.files import RunFolderError, refuse_link, write_text, writing_to
from evorl.runs.folder import RunFolder, new_folder

STATES = ("waiting", "running", "stopped", "finished", "failed")
_LONGEST_NAME = 100


@dataclasses.dataclass
class SweepJob:
    """One training of a sweep.

    Attributes:
        overrides: its command line.
        setting: what of it the sweep varies, by name.
        folder: of its run, below that of the sweep.
        state: one of ``STATES``. One that was killed is still said to run.
        best_return: its best evaluation return; ``None`` without one.
        last_return: its last one.
        timesteps: environment steps taken at the last row of metrics.
    """

    overrides: list[str]
    setting: dict[str, str]
    folder: str
    state: str = "waiting"
    best_return: float | None = None
    last_return: float | None = None
    timesteps: int = 0

    def words(self, but: tuple[str, ...] = ()) -> str:
        """The setting as a command line gives it, without some names."""
        return " ".join(f"{name}={value}" for name, value in self.setting.items() if name not in but)


@dataclasses.dataclass
class SweepFolder:
    """A sweep on disk.

    Attributes:
        path: the folder.
        flags: of the command line that started it, which every job has too.
        jobs: in their order.
    """

    path: Path
    flags: list[str]
    jobs: list[SweepJob]

    @classmethod
    def create(
        cls, root: Path | str, flags: Sequence[str], jobs: Sequence[tuple[list[str], Mapping[str, str]]]
    ) -> Self:
        """Make the folder of a new sweep below ``root``.

        Args:
            root: the folder of all runs, made when missing.
            flags: of its command line.
            jobs: the overrides and the setting of each.

        Raises:
            RunFolderError: the folder cannot be made.
        """
        with writing_to(root):
            Path(root).mkdir(parents=True, exist_ok=True)
            path = new_folder(Path(root), "sweep_").resolve()
        digits = len(str(len(jobs) - 1))
        named = [
            SweepJob(overrides, dict(setting), _folder_name(f"{number:0{digits}d}", setting))
            for number, (overrides, setting) in enumerate(jobs)
        ]
        sweep = cls(path, list(flags), named)
        sweep.save()
        return sweep

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """The sweep of a folder.

        Raises:
            RunFolderError: what is stored of it cannot be read.
        """
        path = Path(path).expanduser().resolve()
        try:
            stored = json.loads((path / "sweep.json").read_text(encoding="utf-8"))
            sweep = cls(path, [str(flag) for flag in stored["flags"]], [SweepJob(**job) for job in stored["jobs"]])
            names = [job.folder for job in sweep.jobs]
            if any(Path(name).name != name for name in names) or {job.state for job in sweep.jobs} - set(STATES):
                raise ValueError("a job has a state or a folder that cannot be")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{path / 'sweep.json'} does not describe a sweep: {error}.") from error
        return sweep

    @staticmethod
    def is_there(path: Path | str) -> bool:
        """Whether this is the folder of a sweep."""
        return (Path(path).expanduser() / "sweep.json").is_file()

    @property
    def summary(self) -> Path:
        """A row for each job, CSV."""
        return self.path / "summary.csv"

    @property
    def learning_curves(self) -> Path:
        """The learning curves of all settings, PNG."""
        return self.path / "learning_curves.png"

    @property
    def names(self) -> list[str]:
        """The names of what the sweep varies."""
        return list(dict.fromkeys(name for job in self.jobs for name in job.setting))

    def run_of(self, job: SweepJob) -> RunFolder:
        """The run folder of a job, which may not be there yet."""
        return RunFolder(self.path / job.folder)

    def save(self) -> None:
        """Store how far the jobs are, and the summary.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        stored: dict[str, Any] = {"flags": self.flags, "jobs": [dataclasses.asdict(job) for job in self.jobs]}
        with writing_to(self.path):
            new = self.path / ".sweep.json.new"
            write_text(new, json.dumps(stored, indent=1) + "\n")
            refuse_link(self.path / "sweep.json")
            new.replace(self.path / "sweep.json")  # at once: a kill leaves the one or the other
            write_text(self.summary, self._as_csv())

    def _as_csv(self) -> str:
        told = ("folder", "state", "timesteps", "best_return", "last_return")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.names, *told])
        for job in self.jobs:
            shown = (getattr(job, name) for name in told)
            cells = [job.setting.get(name, "") for name in self.names] + ["" if x is None else x for x in shown]
            writer.writerow(cells)
        return text.getvalue()


def _folder_name(number: str, setting: Mapping[str, str]) -> str:
    """``3-agent_ppo-seed_1``: nothing that a shell or Hydra would read as more than a name."""
    parts = [f"{name.rpartition('.')[2]}_{value}" for name, value in setting.items()]
    return "-".join([number, *(re.sub(r"[^\w.+]+", "_", part).strip("_") for part in parts)])[:_LONGEST_NAME]

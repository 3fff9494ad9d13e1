"""A run as its folder tells it: what was trained, how far it came, what it recorded."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import functools
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evorl.config.command_lines import user_path
from evorl.recorders.row_file import RowFile
from evorl.recorders.run_status import EVALUATION, TRAINING, best_evaluation
from evorl.runs.about import read_starts
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import FINISHED, RUNNING, RunState, read_state

_NO_METRICS = ("iterations", "timesteps")
_RECORDS = ("metrics.csv", "run.log", "state.json")


@dataclasses.dataclass(frozen=True)
class Curve:
    """A metric over a training.

    Attributes:
        steps: environment steps, for each seed, ``[N]``.
        values: finite ones, ``[N]``.
    """

    steps: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """A run folder, read as far as it is asked for.

    Attributes:
        folder: of the run.
        name: by which it is told from the others, the way to it from a folder above them all.
    """

    folder: RunFolder
    name: str

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The stored config, as plain data."""
        from omegaconf import OmegaConf

        config: Any = OmegaConf.to_container(self.folder.load_config(trust=True))  # nothing of it is executed here
        return config

    @functools.cached_property
    def starts(self) -> list[dict[str, Any]]:
        """How it was started each time, see ``evorl.runs.about``; none of a run from before that was written down."""
        return read_starts(self.folder.about)

    @property
    def origin(self) -> str:
        """By whose command it is repeated: its own."""
        return self.name

    @property
    def algorithm(self) -> str:
        """The agent as the command line chose it, ``ppo``; else by its workflow."""
        chosen = self.starts[0].get("agent") if self.starts else None
        workflow = str(self.config.get("workflow")).rpartition(".")[2].removesuffix("Workflow")
        return str(chosen or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", workflow).lower())

    @property
    def env(self) -> str:
        """The environment with its library, ``gymnax/CartPole-v1``."""
        env = self.config.get("env")
        if not isinstance(env, Mapping):
            return str(env)
        named = [str(env[key]) for key in ("library", "name") if env.get(key) is not None]
        return "/".join(named) or str(env.get("factory"))

    @functools.cached_property
    def state(self) -> RunState:
        """Whether it goes on, and how it ended."""
        return read_state(self.folder.state, self.folder.log)

    @property
    def total_timesteps(self) -> int | None:
        """Environment steps it set out for, as far as they are known."""
        return self.state.total_timesteps or self.total_of_config

    @property
    def total_of_config(self) -> int | None:
        """Environment steps of the training as its config says."""
        total = self.config.get("total_timesteps")
        return int(total) if isinstance(total, int | float) and math.isfinite(total) else None

    @property
    def can_be_resumed(self) -> bool:
        """Whether it has a checkpoint to go on from, and steps to go."""
        return self.state.state not in (RUNNING, FINISHED) and self.folder.saved_at is not None

    @functools.cached_property
    def curves(self) -> dict[str, Curve]:
        """Every column of ``metrics.csv`` but the counters.

        Raises:
            RunFolderError: the file cannot be read as a table of numbers.
        """
        return curves_in(_table(self.folder.metrics_csv))

    @functools.cached_property
    def timings(self) -> dict[str, Curve]:
        """The columns ``time/*`` of ``metrics.jsonl``."""
        rows = []
        for line in RowFile(self.folder.metrics_jsonl).lines():
            try:
                row = json.loads(line)
                rows.append({k: float(v) for k, v in row.items() if k == "timesteps" or k.startswith("time/")})
            except (ValueError, TypeError, AttributeError, RecursionError):
                continue  # timings are an extra: a damaged line is left out
        return curves_in(row for row in rows if "timesteps" in row)

    def is_readable(self) -> bool:
        """Whether the config is one of a run; reads it and the metrics.

        Raises:
            RunFolderError: one of them cannot be read.
        """
        return "workflow" in self.config and self.curves is not None

    @functools.cached_property
    def timesteps(self) -> int:
        """Environment steps of its last row, for each seed; 0 before the first."""
        steps = [int(curve.steps[-1]) for curve in self.curves.values()]
        return max(steps, default=0)

    @functools.cached_property
    def seconds(self) -> float | None:
        """What all its trainings took from start to last row; ``None`` where no row has a time.

        Without anything written down of its start, from the first row on.
        """
        clock = self.timings.get("time/clock")
        if clock is None:
            return None
        starts = [at for start in self.starts if (at := _epoch(start.get("time"))) is not None]
        if not starts:
            return float(np.ptp(clock.values))
        taken = 0.0
        for begin, end in itertools.pairwise([*starts, math.inf]):
            rows = clock.values[(clock.values >= begin) & (clock.values < end)]
            taken += float(rows.max() - begin) if rows.size else 0.0
        return taken

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps of all seeds in a second, the median of its rows; ``None`` where nobody timed it."""
        curve = self.timings.get("time/steps_per_second")
        return float(np.median(curve.values)) if curve else None

    @property
    def metric(self) -> str:
        """What it is measured by: the return of evaluations, of training episodes where there are none."""
        return EVALUATION if EVALUATION in self.curves else TRAINING

    def by_seed(self, metric: str | None = None) -> list[Curve]:
        """The curve of each seed that was trained side by side; else the only one; none where nothing was recorded.

        Args:
            metric: a column; by default the return.
        """
        name = metric or self.metric
        numbers = sorted(
            int(m[1]) for column in self.curves if (m := re.fullmatch(f"{re.escape(name)}_seed_(\\d+)", column))
        )
        return [self.curves[f"{name}_seed_{i}"] for i in numbers] or [c for c in [self.curves.get(name)] if c]

    def last(self, metric: str | None = None) -> np.ndarray:
        """The last value of each seed, ``[S]``."""
        return np.array([curve.values[-1] for curve in self.by_seed(metric)])

    def best(self, metric: str | None = None) -> float:
        """Return the best value of the run, the mean over seeds; NaN where only the untrained policy was evaluated."""
        curve = self.curves.get(metric or self.metric)
        return best_evaluation(curve.steps, curve.values) if curve else math.nan

    def mean(self, metric: str | None = None) -> float:
        """The last value of the run, the mean over seeds; NaN where nothing was recorded."""
        last = self.last(metric)
        return float(last.mean()) if last.size else math.nan


def find_runs(folder: Path | str, sweeps: bool = False) -> list[RecordedRun]:
    """The runs in a folder at any depth, the folder itself being one perhaps, by their names.

    A folder is a run if it has a config that names a workflow, and anything that was recorded; a sweep in one program,
    or a search, is none, but holds some.

    Args:
        folder: in which to look.
        sweeps: whether sweeps in one program are found instead of the best of their settings.

    Raises:
        RunFolderError: there is no such folder.
    """
    root = user_path(folder).resolve()
    if not root.is_dir():
        raise RunFolderError(f"There is no folder {folder}: name one that holds runs.")
    places = [config.parent for config in sorted(root.rglob("config.yaml"))]
    if sweeps:
        places = [p for p in places if is_sweep(p) or (_has_records(p) and not is_sweep(p.parent))]
    else:
        places = [place for place in places if _has_records(place)]
    return named([RunFolder(place) for place in places], root)


def named(folders: Sequence[RunFolder], root: Path | None = None) -> list[RecordedRun]:
    """Runs with names that tell them apart, each once, in the order given.

    Args:
        folders: of the runs.
        root: a folder above all of them; by default the lowest one.
    """
    places = list(dict.fromkeys(folder.path for folder in folders))
    if root is None or root in places:
        root = _above(places)
    return [RecordedRun(RunFolder(place), place.relative_to(root).as_posix()) for place in places]


def _above(places: Sequence[Path]) -> Path:
    """The lowest folder above all of them; of a single run the folder of its group's folder, as in ``runs``."""
    if len(places) == 1:
        return places[0].parent.parent
    parents = [set(place.parents) for place in places]
    return max(set.intersection(*parents), key=lambda folder: len(folder.parts), default=Path("/"))


def _epoch(time: Any) -> float | None:
    """Seconds since 1970 of an ISO time; ``None`` for anything else."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError):
        return None


def is_sweep(folder: Path) -> bool:
    """Whether it is the folder of a sweep in one program."""
    return RunFolder(folder).sweep_table.is_file()


def _has_records(folder: Path) -> bool:
    of_many = is_sweep(folder) or RunFolder(folder).search_table.is_file()
    return not of_many and any((folder / name).is_file() for name in _RECORDS)


def _table(path: Path) -> Iterable[dict[str, float]]:
    """The complete rows of a table of numbers; a kill may have torn the last one."""
    file = RowFile(path)
    rows = csv.reader(file.lines())
    header = next(rows, [])
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header) or "timesteps" not in header:
            raise file.damaged(f"line {number} is no row of {len(header)} numbers")
        try:
            yield {name: float(text) for name, text in zip(header, row, strict=True) if text}
        except ValueError as error:
            raise file.damaged(f"line {number}: {error}") from error


def curves_in(rows: Iterable[Mapping[str, float]]) -> dict[str, Curve]:
    """Each column of rows with their ``timesteps``; values that are not finite are left out."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in _NO_METRICS and math.isfinite(value):
                points.setdefault(name, []).append((row["timesteps"], value))
    return {name: Curve(*np.array(pairs, np.float64).T) for name, pairs in points.items()}

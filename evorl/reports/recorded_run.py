"""Reads a run from its folder: config, starts of training, status and recorded metrics."""

from __future__ import annotations

import contextlib
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
from evorl.config.values import plain
from evorl.ops.terminal_text import escaped
from evorl.recorders.learning_curve import Curves, extend_curves
from evorl.recorders.row_file import RowFile
from evorl.recorders.run_status import EVALUATION, TRAINING, best_evaluation
from evorl.runs.about import read_starts
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import FINISHED, RUNNING, RunState, read_state
from evorl.runs.sweep_folder import SweepFolder

_TRIAL = re.compile(r"(trial_\d{4,})(_\d+)?")  # name of a trial's folder; with a number if it was started again
_RECORDS = ("metrics.csv", "run.log", "state.json")


@dataclasses.dataclass(frozen=True)
class Curve:
    """A metric over the course of training.

    Attributes:
        steps: environment steps per seed, ``[N]``.
        values: finite values, ``[N]``.
    """

    steps: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """A run folder, read lazily.

    Attributes:
        folder: the run folder.
        name: unique name, its path relative to a folder that contains all runs.
    """

    folder: RunFolder
    name: str

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The stored config, as plain data."""
        return plain(self.folder.load_config(trust=True), resolve=False)  # nothing in it is executed here

    @functools.cached_property
    def starts(self) -> list[dict[str, Any]]:
        """One entry per start of training, see ``evorl.runs.about``; empty if no starts were recorded."""
        return read_starts(self.folder.about)

    @property
    def origin(self) -> str:
        """Name of the run whose command repeats this run: this run itself."""
        return self.name

    @property
    def title(self) -> str:
        """The run's title, as shown while it trains; empty if its config has no title."""
        return escaped(str(self.config.get("title") or ""), lines=True)

    @property
    def algorithm(self) -> str:
        """The agent as chosen on the command line, such as ``ppo``; if unknown, derived from the workflow's class."""
        chosen = self.starts[0].get("agent") if self.starts else None
        workflow = str(self.config.get("workflow")).rpartition(".")[2].removesuffix("Workflow")
        return str(chosen or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", workflow).lower())

    @property
    def env(self) -> str:
        """The environment with its library, such as ``gymnax/CartPole-v1``."""
        env = self.config.get("env")
        if not isinstance(env, Mapping):
            return str(env)
        named = [str(env[key]) for key in ("library", "name") if env.get(key) is not None]
        return "/".join(named) or str(env.get("factory"))

    @functools.cached_property
    def state(self) -> RunState:
        """The status of the run."""
        return read_state(self.folder.state, self.folder.log)

    @property
    def total_timesteps(self) -> int | None:
        """Environment steps per seed of the whole run; ``None`` if unknown."""
        return _valid_total(self.state.total_timesteps) or self.total_of_config

    @property
    def total_of_config(self) -> int | None:
        """Environment steps per seed of the whole run, from its config; ``None`` if unknown."""
        return _valid_total(self.config.get("total_timesteps"))

    @property
    def can_be_resumed(self) -> bool:
        """True if the run has a checkpoint to resume from, has not finished, and is not in training."""
        return self.state.state not in (RUNNING, FINISHED) and self.folder.saved_at() is not None

    @functools.cached_property
    def curves(self) -> dict[str, Curve]:
        """Every column of ``metrics.csv`` except the counters; raises ``RunFolderError`` if the file is corrupted."""
        return curves_in(RowFile(self.folder.metrics_csv).metrics())

    @functools.cached_property
    def timings(self) -> dict[str, Curve]:
        """Curves of the columns ``time/*`` of ``metrics.jsonl``; empty if the file does not exist."""
        rows = []
        for line in RowFile(self.folder.metrics_jsonl).lines():
            try:
                row = json.loads(line)
                rows.append({k: float(v) for k, v in row.items() if k == "timesteps" or k.startswith("time/")})
            except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                continue  # timings are optional: a corrupted line is skipped
        return curves_in(row for row in rows if math.isfinite(row.get("timesteps", math.nan)))

    def is_readable(self) -> bool:
        """Read config and metrics; return True for a run's config. Unreadable files raise ``RunFolderError``."""
        return "workflow" in self.config and self.curves is not None

    @functools.cached_property
    def timesteps(self) -> int:
        """Environment steps per seed at the last row; 0 without rows."""
        return max((int(curve.steps[-1]) for curve in self.curves.values()), default=0)

    @functools.cached_property
    def seconds(self) -> float | None:
        """Training time in seconds, summed over starts: from a start to its last row; ``None`` if no row has a time.

        Without recorded starts, the time begins at the first row.
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
        """Environment steps per second of all seeds together, median over rows; ``None`` if not recorded."""
        curve = self.timings.get("time/steps_per_second")
        return float(np.median(curve.values)) if curve else None

    @property
    def metric(self) -> str:
        """Metric of the run's score: the evaluation return, or without evaluations the return of training episodes."""
        return EVALUATION if EVALUATION in self.curves else TRAINING

    def by_seed(self, metric: str | None = None) -> list[Curve]:
        """Return the curve of each seed of the run, or the single curve of a run of one seed; empty without records.

        Args:
            metric: a column; by default the return.
        """
        name = metric or self.metric
        matches = (re.fullmatch(f"{re.escape(name)}_seed_(\\d+)", column) for column in self.curves)
        numbers = sorted(int(match[1]) for match in matches if match)
        return [self.curves[f"{name}_seed_{i}"] for i in numbers] or [c for c in [self.curves.get(name)] if c]

    def last(self, metric: str | None = None) -> np.ndarray:
        """Return the last value of the metric of each seed, ``[S]``."""
        return np.array([curve.values[-1] for curve in self.by_seed(metric)])

    def best(self, metric: str | None = None) -> float:
        """Return the largest value of the metric, averaged over seeds, after step 0; NaN if no such value exists."""
        curve = self.curves.get(metric or self.metric)
        return best_evaluation(curve.steps, curve.values) if curve else math.nan

    def mean(self, metric: str | None = None) -> float:
        """Return the mean over seeds of the metric's last values; NaN without records."""
        last = self.last(metric)
        return float(last.mean()) if last.size else math.nan


def find_runs(folder: Path | str, sweeps: bool = False) -> list[RecordedRun]:
    """Return the runs in a folder at any depth, including the folder itself, sorted by path.

    A folder is a run if it has a config and recorded files. The folder of a sweep in one program, or of a search, is
    not a run but contains runs. A run of a sweep or search that was started again in a new folder is not returned.

    Args:
        folder: folder to search.
        sweeps: return each sweep in one program as a run, instead of the run of its best setting.

    Raises:
        RunFolderError: the folder does not exist.
    """
    root = user_path(folder).resolve()
    if not root.is_dir():
        raise RunFolderError(f"There is no folder {folder}: pass a folder with runs.")
    folders = [config.parent for config in sorted(root.rglob("config.yaml"))]
    if sweeps:
        folders = [p for p in folders if is_sweep(p) or (_has_records(p) and not is_sweep(p.parent))]
    else:
        folders = [folder for folder in folders if _has_records(folder)]
    return named([RunFolder(folder) for folder in _last_started(folders, root)], root)


def named(folders: Sequence[RunFolder], root: Path | None = None) -> list[RecordedRun]:
    """Return runs with unique names, without duplicates, in the given order.

    Args:
        folders: the run folders.
        root: folder that contains all runs; if None or a run, the lowest such folder, or two levels above a single run.
    """
    paths = list(dict.fromkeys(folder.path for folder in folders))
    if root is None or root in paths:
        root = _above(paths)
    # Names of folders may have bytes that are not UTF-8, which neither a page nor a chart can contain.
    return [RecordedRun(RunFolder(path), escaped(path.relative_to(root).as_posix(), lines=True)) for path in paths]


def _above(paths: Sequence[Path]) -> Path:
    """Return the lowest folder that contains all paths; for a single run, the folder two levels above."""
    if len(paths) == 1:
        return paths[0].parent.parent
    parents = [set(path.parents) for path in paths]
    return max(set.intersection(*parents), key=lambda folder: len(folder.parts), default=Path("/"))


def _valid_total(total: Any) -> int | None:
    return int(total) if isinstance(total, int | float) and 0 <= total <= 2**53 else None


def _epoch(time: Any) -> float | None:
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError):
        return None


def is_sweep(folder: Path) -> bool:
    """Return True if the folder is a sweep in one program: it has a table of settings."""
    return RunFolder(folder).sweep_table.is_file()


def is_run(folder: Path) -> bool:
    """Return True if the folder is a run: it has a config, and is neither a sweep in one program nor a search."""
    return RunFolder(folder).config.is_file() and not _is_of_many(folder)


def _is_of_many(folder: Path) -> bool:
    return is_sweep(folder) or RunFolder(folder).search_table.is_file()


def _last_started(folders: Sequence[Path], root: Path) -> list[Path]:
    """Omit each run of a sweep or search below ``root`` that a resume started again in a new folder."""
    replaced: set[Path] = set()
    for above in {above for folder in folders for above in folder.parents if above.is_relative_to(root)}:
        with contextlib.suppress(RunFolderError):  # no sweep, or a corrupted one
            replaced |= {above / name for name in SweepFolder.open(above, trust=True).replaced}
    last: dict[Any, Path] = {}
    for folder in sorted(folders, key=lambda path: (len(path.name), path.name)):
        trial = _TRIAL.fullmatch(folder.name) if RunFolder(folder.parent).search_table.is_file() else None
        last[(folder.parent, trial[1]) if trial else folder] = folder
    chosen = set(last.values())
    return [folder for folder in folders if folder in chosen and replaced.isdisjoint((folder, *folder.parents))]


def _has_records(folder: Path) -> bool:
    return not _is_of_many(folder) and any((folder / name).is_file() for name in _RECORDS)


def curves_in(rows: Iterable[Mapping[str, float]]) -> dict[str, Curve]:
    """Return each column of ``rows``, except counters, as a curve over ``timesteps``, without non-finite values."""
    curves: Curves = {}
    for row in sorted(rows, key=lambda row: row.get("timesteps", 0.0)):  # files joined by hand may not be in order
        extend_curves(curves, row)
    return {name: Curve(*np.array(points, np.float64)) for name, points in curves.items()}

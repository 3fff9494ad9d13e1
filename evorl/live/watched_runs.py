"""Monitors run folders during training: list of runs, states, curves and newest images.

This module only reads files, with ``evorl.reports``, so it never affects or delays a training run. Incomplete
rows are ignored.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evorl.config.command_lines import user_path
from evorl.recorders.run_status import spread_column
from evorl.reports.media import KINDS, media_of
from evorl.reports.recorded_run import Curve, RecordedRun, find_runs, is_run, named
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.privacy import shareable_text
from evorl.runs.run_state import RUNNING, read_state

SPEED = "time/steps_per_second"
SERVING = "serving/"
MAX_RUNS = 300  # displayed runs; older ones are omitted
MAX_READ = 12  # runs whose curves are cached in memory
MAX_PICTURE = 32 << 20  # maximum size of a picture in bytes
_PATIENCE = 20.0  # minimum pause after a search for runs, in units of the duration of the search


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """Summary of a run, without its curves.

    Attributes:
        index: index by which requests refer to the run.
        version: version of the last change of this run; every change of any run increases the version.
        data: data for the page, JSON-serializable.
        latest: newest value of every metric.
        picture: path of the newest image or video; ``None`` if the run has no images or videos.
        seen: result of ``_seen_of`` when the run was read.
    """

    index: int
    version: int
    data: dict[str, Any]
    latest: Mapping[str, float]
    picture: Path | None
    seen: tuple[Any, ...]


class WatchedRuns:
    """Reads the runs in folders, and reads a run again when its files have changed.

    Only one thread at a time may call ``refresh``; all other methods are thread-safe.

    Args:
        places: run folders, folders that contain runs at any depth, or names of such folders below ``runs_folder``. If
            empty, ``runs_folder`` itself, which may be created later.
        runs_folder: folder in which names of runs are resolved.

    Raises:
        RunFolderError: a run or folder does not exist.
    """

    def __init__(self, places: Sequence[str] = (), runs_folder: Path | str = "runs") -> None:
        self._places = [str(place) for place in places]
        self._root = user_path(runs_folder)
        self.version = 0
        self.looked = False  # true once all runs were read
        self.notes: list[str] = []
        self._indices: dict[Path, int] = {}
        self._runs: list[RecordedRun] = []
        self._summaries: dict[int, RunSummary] = {}
        self._read: OrderedDict[int, RecordedRun] = OrderedDict()
        self._lock = threading.Lock()
        self._look_again = 0.0
        self._find()

    @property
    def described_places(self) -> str:
        """Displayed names of the folders."""
        return ", ".join(self._places or [str(self._root)])

    def refresh(self) -> bool:
        """Read all runs that changed since the last call; raise ``RunFolderError`` if a folder no longer exists.

        Returns:
            True if any run has changed or was removed.
        """
        before = self.version
        if time.monotonic() >= self._look_again:
            self._find()
        for run in self._runs:
            self._refresh(run)
        self.looked = True
        return self.version > before

    def summaries(self, since: int = 0) -> list[RunSummary]:
        """Return the summaries of the runs that changed after version ``since``, in order of their discovery."""
        return [summary for _, summary in sorted(self._summaries.items()) if summary.version > since]

    def curve(self, index: int, metric: str, most: int | None = None) -> dict[str, Any] | None:
        """Return a curve as JSON data, with the curves of its seeds and a band of one standard deviation (``_band``).

        Args:
            index: index of the run.
            metric: column of the metrics.
            most: approximate maximum number of points, see ``thinned``; ``None`` for all.

        Returns:
            A dict with ``points`` ``[step, value]``, ``seeds`` and ``spread``; ``None`` for an unknown run or metric.
        """
        summary, run = self._summaries.get(index), self._recorded(index)
        try:
            columns = {} if run is None else {**run.timings, **run.curves}
        except RunFolderError:
            return None
        if summary is None or run is None or metric not in columns:
            return None
        seeds = run.by_seed(metric) if metric in run.curves else []
        spread = columns.get(spread_column(run.curves, metric)[0])
        return {
            "run": index,
            "name": metric,
            "version": summary.version,
            "points": as_points(columns[metric], most),
            "seeds": [as_points(seed, most) for seed in seeds] if len(seeds) > 1 else [],
            "spread": [] if spread is None else _band(columns[metric], spread, most),
        }

    def picture(self, index: int) -> tuple[bytes, str] | None:
        """Return content and media type of a run's newest image or video; ``None`` if it is missing or too large."""
        summary = self._summaries.get(index)
        path = summary and summary.picture
        if not path:
            return None
        try:
            # The file was not a symbolic link when it was found, and must not be one now.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
                content = file.read(MAX_PICTURE + 1)
        except OSError:
            return None
        return None if len(content) > MAX_PICTURE else (content, KINDS[path.suffix.lower()])

    def _find(self) -> None:
        """Search for runs, and remove summaries of runs that were deleted or are no longer among the newest."""
        started = time.monotonic()
        folders = [folder for source in self._places for folder in _folders(source, self._root)]
        if not self._places and self._root.is_dir():
            folders = [run.folder for run in find_runs(self._root)]
        for folder in folders:
            self._indices.setdefault(folder.path, len(self._indices))
        newest = sorted(folders, key=lambda folder: _touched(folder.config), reverse=True)[:MAX_RUNS]
        self.notes = [] if len(newest) == len(folders) else [f"Shown: the newest {MAX_RUNS} of {len(folders)} runs."]
        paths = {folder.path for folder in newest}
        only = user_path(self._places[0]) if len(self._places) == 1 else self._root
        root = only.resolve() if len(self._places) < 2 and only.is_dir() else None
        self._runs = named([folder for folder in folders if folder.path in paths], root) if folders else []
        indices = {self._indices[path] for path in paths}
        if self._summaries.keys() - indices:
            self.version += 1
            self._summaries = {index: each for index, each in self._summaries.items() if index in indices}
        now = time.monotonic()
        self._look_again = now + max(2.0, _PATIENCE * (now - started))

    def _refresh(self, run: RecordedRun) -> None:
        index = self._indices[run.folder.path]
        seen = _seen_of(run)
        old = self._summaries.get(index)
        # A killed run changes no file, so its state is checked too.
        ended = old is not None and old.data["state"] == RUNNING and _state(run.folder) != RUNNING
        if old is not None and old.seen == seen and not ended:
            return
        fresh = self._keep(index, RecordedRun(run.folder, run.name))
        picture = old.picture if old is not None and old.seen[2] == seen[2] else _newest_picture(fresh)
        summary, latest = _summary(fresh, picture)
        self.version += 1
        summary = {"index": index, "version": self.version, **summary}
        # A new dict, because other threads may be iterating over the old one.
        self._summaries = {**self._summaries, index: RunSummary(index, self.version, summary, latest, picture, seen)}

    def _recorded(self, index: int) -> RecordedRun | None:
        with self._lock:
            if index in self._read:
                self._read.move_to_end(index)
                return self._read[index]
        matches = (run for run in self._runs if self._indices[run.folder.path] == index and index in self._summaries)
        run = next(matches, None)
        return None if run is None else self._keep(index, RecordedRun(run.folder, run.name))

    def _keep(self, index: int, run: RecordedRun) -> RecordedRun:
        with self._lock:
            self._read[index] = run
            self._read.move_to_end(index)
            while len(self._read) > MAX_READ:
                self._read.popitem(last=False)
        return run


def describe_error(error: Exception) -> str:
    """Return the message of an error, preceded by its type unless evorl wrote the message for users."""
    return str(error) if isinstance(error, RunFolderError) else f"{type(error).__name__}: {error}"


def as_points(curve: Curve, most: int | None = None) -> list[list[float]]:
    """Return the points ``[step, value]`` of a curve, reduced by ``thinned``."""
    shown = thinned(curve.values, most)
    return np.stack([curve.steps[shown], curve.values[shown]], axis=1).tolist()


def thinned(values: np.ndarray, most: int | None) -> np.ndarray:
    """Return the indices of about ``most`` values to draw: first, last, and the extremes of equal intervals.

    Indices are sorted; ``most=None`` selects all.
    """
    if most is None or len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(1, most // 2) + 1).astype(int)
    chosen = {0, len(values) - 1}
    for low, high in itertools.pairwise(edges):
        if high > low:
            chosen |= {low + int(values[low:high].argmin()), low + int(values[low:high].argmax())}
    return np.array(sorted(chosen))


def _band(center: Curve, spread: Curve, most: int | None) -> list[list[float]]:
    """Return ``[step, low, high]``, one standard deviation around the center, for steps with a deviation."""
    wide = dict(zip(spread.steps.tolist(), spread.values.tolist(), strict=True))
    return [[x, y - wide[x], y + wide[x]] for x, y in as_points(center, most) if x in wide]


def _folders(source: str, root: Path) -> list[RunFolder]:
    """Return the runs at a path: a run folder, a folder of runs, or a name below ``root``."""
    for path in (user_path(source), root / source):
        if path.is_dir() and not is_run(path):
            runs = [run.folder for run in find_runs(path)]
            return runs or [RunFolder(path)] * RunFolder(path).config.is_file()  # a new sweep or search is shown itself
    return [RunFolder.find(source, root)]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return values that change when a file is written, or the content of a folder changes; ``None`` without either."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _touched(path: Path) -> float:
    return (_stamp(path) or (0,))[0] / 1e9


def _seen_of(run: RecordedRun) -> tuple[Any, ...]:
    """Return the name of a run, and values that change with its records and with the files in its image folders."""
    at = run.folder
    records = (at.config, at.metrics_csv, at.metrics_jsonl, at.state, at.about, at.log)
    pictures = (at.path, at.learning_curve, at.videos, at.plots, at.episodes)
    return run.name, [*map(_stamp, records)], [*map(_stamp, pictures)]


def _state(folder: RunFolder) -> str:
    try:
        return read_state(folder.state, folder.log).state
    except RunFolderError:
        return "?"


def _summary(run: RecordedRun, picture: Path | None) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the data of a run for the page, and its newest values; the key ``problem`` explains an unreadable run."""
    summary: dict[str, Any] = {"name": run.name, "state": "?", "metrics": [], "serving": {}, "picture": None}
    try:
        columns = {**run.timings, **run.curves}
        latest = {name: float(curve.values[-1]) for name, curve in columns.items()}
        summary |= _course(run, latest) | {"metrics": _chosen_from(columns)}
    except Exception as error:  # a file with unexpected content must not hide the other runs
        return summary | {"problem": describe_error(error)}, {}
    summary["serving"] = {name: value for name, value in latest.items() if name.startswith(SERVING)}
    if picture is not None:
        summary["picture"] = {
            "name": picture.relative_to(run.folder.path).as_posix(),
            "type": KINDS[picture.suffix.lower()],
            "version": int(_touched(picture) * 1e3),
        }
    return summary, latest


def _course(run: RecordedRun, latest: Mapping[str, float]) -> dict[str, Any]:
    known = run.config.get("num_seeds")
    seeds = max(1, known if isinstance(known, int) else 1, len(run.by_seed()))  # training metrics are not split by seed
    pace, total = latest.get(SPEED), run.total_timesteps
    running = run.state.state == RUNNING
    left = None if not (pace and total and running) else max(0, total - run.timesteps) * seeds / pace
    value = run.mean()
    return {
        "algorithm": run.algorithm,
        "env": run.env,
        "state": run.state.state,
        "failure": run.state.failure and shareable_text(run.state.failure),
        "timesteps": run.timesteps,
        "total": total,
        "seeds": seeds,
        "steps_per_second": pace,
        "seconds_left": left,
        "metric": run.metric,
        "return": None if np.isnan(value) else value,
        "updated": _touched(run.folder.metrics_csv),
    }


def _chosen_from(columns: Mapping[str, Curve]) -> list[str]:
    """Return the selectable metrics; columns of seeds and deviations are drawn with their metric instead."""
    parts = {f"{name}_std" for name in columns} | {f"{name}_std_over_seeds" for name in columns}
    of_seed = {name for name in columns if "_seed_" in name and name.rpartition("_seed_")[0] in columns}
    return sorted(columns.keys() - parts - of_seed - {"time/clock"})


def _newest_picture(run: RecordedRun) -> Path | None:
    try:
        paths = [medium.path for medium in media_of(run)]
    except OSError:  # a file was removed meanwhile
        return None
    curve = run.folder.learning_curve
    if curve.is_file() and not curve.is_symlink():
        paths.append(curve)
    return max(paths, key=_touched, default=None)

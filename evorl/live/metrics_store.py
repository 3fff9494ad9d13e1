"""Store for metrics of clients: curves and histograms by name, in memory and in a folder.

The folder contains ``scalars.jsonl``, with a point per line, which is read when the store is opened again, and events
for TensorBoard in ``tensorboard``. No file is created before the first metric.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evorl.config.values import LARGEST_FLOAT, checked_value
from evorl.recorders.row_file import RowFile
from evorl.recorders.tensorboard_recorder import TensorBoardRecorder

STEP = "timesteps"  # entry of a recorded row that contains its step
LONGEST_NAME = 200  # maximum number of characters of a name
MAX_VALUES = 100_000  # maximum number of values of a histogram
MAX_BINS = 40
GREATEST_VALUE = 1e100  # largest absolute value in a histogram: its square is finite
KEPT_HISTOGRAMS = 50  # maximum number of histograms per name
MAX_POINTS = 20_000  # maximum points of a curve in memory; beyond it every second point is dropped, but not in the file
_FURTHEST = 2.0**53  # largest step: float64 represents all integers up to here


class MetricsRefusedError(ValueError):
    """Raised for a rejected metric; the message states the reason and the expected value."""


@dataclasses.dataclass(frozen=True)
class EnabledMetrics:
    """Selection of the metrics that a store accepts.

    Attributes:
        enable_unknown_metrics: True if metrics missing in ``metrics`` are accepted.
        metrics: for each name, True if the metric is accepted, False if it is dropped.

    Raises:
        ValueError: a setting has the wrong type.
    """

    enable_unknown_metrics: bool = True
    metrics: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_value(self.enable_unknown_metrics, bool, "enable_unknown_metrics")
        if not isinstance(self.metrics, Mapping):
            raise ValueError(f"metrics: expected names with true or false, as in {{loss: false}}, got {self.metrics!r}")
        for name, enabled in self.metrics.items():
            checked_value(enabled, bool, f"metrics.{name}")

    def __contains__(self, name: str) -> bool:
        return bool(self.metrics.get(name, self.enable_unknown_metrics))

    def as_json(self) -> dict[str, Any]:
        """Return the selection as JSON data for clients, which then do not send disabled metrics."""
        return {"enable_unknown_metrics": self.enable_unknown_metrics, "metrics": dict(self.metrics)}


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Histogram of values at one step.

    Attributes:
        x: step.
        edges: bin edges, ``[K + 1]``.
        counts: number of values per bin, ``[K]``.
    """

    x: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


class MetricsStore:
    """Thread-safe store of curves and histograms.

    A point without a step gets the largest step so far, of any client or of ``advance``. If no step is known yet, it
    gets the number of earlier points of its metric.

    Args:
        folder: folder of the files; ``None`` to store in memory only.
        enabled: selection of metrics; others are dropped silently. ``None`` enables all.
        most_names: maximum number of metrics.
        most_bytes: maximum size of ``scalars.jsonl`` in bytes.
        log: callback for a log line per point or histogram; ``None`` for no log.

    Raises:
        RunFolderError: the files in the folder cannot be read.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        enabled: EnabledMetrics | None = None,
        most_names: int = 1000,
        most_bytes: int = 1 << 30,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.enabled = enabled or EnabledMetrics()
        self.version = 0  # number of accepted points and histograms
        self._lock = threading.RLock()
        self._most_names, self._most_bytes, self._log = most_names, most_bytes, log
        self._curves: dict[str, list[tuple[float, float]]] = {}
        self._counts: dict[str, int] = {}
        self._histograms: dict[str, list[Histogram]] = {}
        self._step: float | None = None
        self._file = None if folder is None else RowFile(Path(folder) / "scalars.jsonl")
        self._events = None if folder is None else TensorBoardRecorder(Path(folder) / "tensorboard")
        self._bytes = 0
        for name, x, y in self._stored_points():
            self._remember(name, x, y)

    @property
    def step(self) -> float | None:
        """Largest known step; ``None`` before the first one."""
        return self._step

    def advance(self, step: float) -> None:
        """Set ``self.step``, used for points without a step, to the ``step`` of a training run, if that is larger."""
        with self._lock:
            self._step = max(_finite(step, "step"), -math.inf if self._step is None else self._step)

    def scalar(self, name: str, y: float, x: float | None = None, client: str | None = None) -> bool:
        """Add a point to a curve; return True if it was stored, False if the metric is disabled.

        Args:
            name: name of the metric.
            y: value, finite.
            x: step; ``None`` for the largest known step.
            client: name of the client, for the log.

        Raises:
            MetricsRefusedError: ``y`` or ``x`` is not finite or too large, the name is invalid, or a limit is reached.
            RunFolderError: the point cannot be written.
        """
        number = _finite(y, "y")
        with self._lock:
            step = self._step_of(name, x)
            if step is None:
                return False
            self._write(name, step, number)
            self._remember(name, step, number)
        if self._log is not None:
            self._log(f"{name} {number:.6g} at {step:.16g}{'' if client is None else f' from {client}'}")
        return True

    def histogram(
        self, name: str, values: Sequence[float] | np.ndarray, x: float | None = None, client: str | None = None
    ) -> bool:
        """Add a histogram of 1 to 100,000 finite numbers; other arguments, result and errors as in ``scalar``."""
        try:
            numbers = np.asarray(values, np.float64).reshape(-1)
        except (TypeError, ValueError, OverflowError) as error:
            raise MetricsRefusedError(f"a histogram needs a list of numbers, got {str(values)[:60]!r}.") from error
        fitting = np.abs(numbers) <= GREATEST_VALUE  # false for NaN
        if not 1 <= numbers.size <= MAX_VALUES or not fitting.all():
            raise MetricsRefusedError(
                f"a histogram needs 1 to {MAX_VALUES:,} finite numbers up to {GREATEST_VALUE:g}, got "
                f"{numbers.size:,} numbers, {np.count_nonzero(~fitting):,} of them not finite or too large."
            )
        with self._lock:
            step = self._step_of(name, x)
            if step is None:
                return False
            binned = _binned(step, numbers)
            if self._events is not None:
                self._events.write_histogram(name, int(step), numbers, binned.edges, binned.counts)
            self._histograms.setdefault(name, []).append(binned)
            del self._histograms[name][:-KEPT_HISTOGRAMS]
            self.version += 1
        if self._log is not None:
            self._log(f"{name}: {numbers.size} values at {step:.16g}{'' if client is None else f' from {client}'}")
        return True

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return (step, value) of the points in memory in order of arrival; empty for an unknown metric."""
        with self._lock:
            return list(self._curves.get(name, ()))

    def histograms(self, name: str) -> list[Histogram]:
        """Return the last ``KEPT_HISTOGRAMS`` histograms of a metric, the newest last; empty for an unknown metric."""
        with self._lock:
            return list(self._histograms.get(name, ()))

    def names(self) -> list[str]:
        """Return the names of all curves, sorted."""
        with self._lock:
            return sorted(self._curves)

    def histogram_names(self) -> list[str]:
        """Return the names of all histograms, sorted."""
        with self._lock:
            return sorted(self._histograms)

    def latest(self) -> dict[str, float]:
        """Return the newest value of every curve by name."""
        with self._lock:
            return {name: curve[-1][1] for name, curve in sorted(self._curves.items())}

    def flush(self) -> None:
        """Flush the buffered TensorBoard events."""
        with self._lock:
            if self._events is not None:
                self._events.flush()

    def close(self) -> None:
        """Close the files; they are reopened when needed."""
        with self._lock:
            for file in (self._file, self._events):
                if file is not None:
                    file.close()

    def _step_of(self, name: str, x: float | None) -> float | None:
        """Check a name; return and store the step of its new point, or ``None`` if the metric is disabled."""
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or name == STEP:
            raise MetricsRefusedError(
                f"the name of a metric must have 1 to {LONGEST_NAME} printable characters and not be {STEP!r}, got "
                f"{str(name)[:60]!r}."
            )
        step = None if x is None else _finite(x, "x")
        if name not in self.enabled:
            return None
        known = self._curves.keys() | self._histograms.keys()
        if name not in known and len(known) >= self._most_names:
            raise MetricsRefusedError(
                f"{name!r} exceeds the limit of {len(known):,} metrics: reuse names, or start with another folder."
            )
        if step is None:
            return float(self._counts.get(name, 0)) if self._step is None else self._step
        self._step = step if self._step is None else max(step, self._step)
        return step

    def _remember(self, name: str, x: float, y: float) -> None:
        curve = self._curves.setdefault(name, [])
        curve.append((x, y))
        self._counts[name] = self._counts.get(name, 0) + 1
        self.version += 1
        if len(curve) > MAX_POINTS:
            del curve[1:-1:2]  # the first and last point remain

    def _write(self, name: str, x: float, y: float) -> None:
        if self._file is None or self._events is None:
            return
        line = json.dumps({"name": name, "x": x, "y": y, "time": round(time.time(), 3)})
        if self._bytes + len(line) >= self._most_bytes:
            raise MetricsRefusedError(
                f"{self._file.path} has reached its limit of {self._most_bytes:,} bytes: move the file, or "
                "start with another folder."
            )
        self._file.append(line)
        self._bytes += len(line) + 1
        self._events.write({STEP: int(x), name: y})

    def _stored_points(self) -> Iterator[tuple[str, float, float]]:
        """Yield (name, step, value) of the enabled points in the file; corrupted lines are skipped."""
        for line in self._file.lines() if self._file is not None else ():
            self._bytes += len(line) + 1
            try:
                point = json.loads(line)
                name, x, y = point["name"], _finite(point["x"], "x"), _finite(point["y"], "y")
                step = self._step_of(name, x)
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if step is not None:
                yield name, step, y


def _finite(value: Any, what: str) -> float:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    most = LARGEST_FLOAT if what == "y" else _FURTHEST  # TensorBoard events store float32
    if not is_number or not abs(value) <= most:  # also rejects NaN; an integer may be of any size
        raise MetricsRefusedError(f"{what}: expected a finite number within +-{most:.6g}, got {str(value)[:60]}.")
    return float(value)


def _binned(step: float, numbers: np.ndarray) -> Histogram:
    low, high = float(numbers.min()), float(numbers.max())
    if high - low <= max(1e-300, 1e-12 * abs(low), 1e-12 * abs(high)):  # the range is too small for several bins
        return Histogram(step, (low, high), (numbers.size,))
    counts, edges = np.histogram(numbers, bins=min(MAX_BINS, max(1, numbers.size)), range=(low, high))
    return Histogram(step, tuple(edges.tolist()), tuple(counts.tolist()))

"""Settings of a sweep as runs, each with the sweep's config, its own values, and the evaluations of its seeds."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from pathlib import Path
from typing import Any

from evorl.config.values import dotted_keys, plain
from evorl.config.yaml_text import read_yaml
from evorl.recorders.row_file import RowFile
from evorl.recorders.run_status import EVALUATION
from evorl.reports.recorded_run import Curve, RecordedRun, curves_in, is_sweep
from evorl.runs.files import RunFolderError
from evorl.runs.run_state import FINISHED, RUNNING, RunState

_SHOWN = 80  # maximum number of characters of a cell in a message


@dataclasses.dataclass(frozen=True)
class SweptSetting(RecordedRun):
    """One setting of a sweep in one program, which shares the sweep's folder.

    Attributes:
        sweep: the sweep.
        number: number of the setting in ``sweep.csv``.
        values: values of the varied settings by path in the config, as text of ``sweep.csv``.
    """

    sweep: RecordedRun
    number: int
    values: tuple[tuple[str, str], ...]

    @property
    def origin(self) -> str:
        """Name of the sweep, whose command repeats this setting."""
        return self.sweep.name

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Config of the sweep with the setting's values; raises ``RunFolderError`` for corrupted values."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        table = self.folder.sweep_table
        config: Any = OmegaConf.create({**self.sweep.config, "sweep": None})
        for path, cell in self.values:
            try:
                (value,) = read_yaml(f"[{cell or 'null'}]", str(table))
                if "${" in f"{value}":
                    raise ValueError("interpolations are not allowed in a stored run")
                OmegaConf.update(config, path, value, merge=False)
            except (ValueError, OmegaConfBaseException) as error:
                raise RunFolderError(
                    f"{table} is corrupted: setting {self.number} has {path}={cell[:_SHOWN]!r} ({error})."
                ) from error
        return plain(config, resolve=False)

    @functools.cached_property
    def state(self) -> RunState:
        """Status of the sweep, which is finished if it stored its best setting or logged its results."""
        state = self.sweep.state.state
        has_best = state != RUNNING and (self.folder.path / "best").exists()
        return RunState(FINISHED if has_best else state, self.total_of_config)

    @functools.cached_property
    def curves(self) -> dict[str, Curve]:
        """Curves of every evaluation metric: its mean over seeds, and the value of each seed; none if it diverged.

        Raises:
            RunFolderError: the table of evaluations is corrupted.
        """
        path = self.folder.sweep_evaluations
        rows = _evaluations(path, path.stat().st_mtime_ns) if path.is_file() else ()
        rows = [row for row in rows if row["setting"] == self.number]
        if rows and not math.isfinite(rows[-1].get("eval_return", math.nan)):
            return {}
        return curves_in({_metric(name): x for name, x in row.items() if name != "setting"} for row in rows)


def expand_sweep(sweep: RecordedRun) -> list[RecordedRun]:
    """Return the settings of a sweep in one program, or the run itself if it is not such a sweep.

    Raises:
        RunFolderError: the sweep's table is corrupted.
    """
    if not is_sweep(sweep.folder.path):
        return [sweep]
    varied = sweep.config.get("sweep") or {}
    over = varied.get("over", varied) if isinstance(varied, dict) else {}
    known = dotted_keys(over) if isinstance(over, dict) else []  # paths may be nested
    settings: list[RecordedRun] = []
    for row in RowFile(sweep.folder.sweep_table).records():
        columns = list(row)
        paths = columns[1 : columns.index("timesteps")] if "timesteps" in columns else []
        is_number = re.fullmatch(r"\d{1,9}", row.get("setting", ""), re.ASCII)
        if not paths or not set(paths) <= set(known) or not is_number:
            raise RunFolderError(f"{sweep.folder.sweep_table} is not a table of the settings of {sweep.name}.")
        values = tuple((path, row[path]) for path in paths)
        number = int(row["setting"])
        settings.append(SweptSetting(sweep.folder, f"{sweep.name} {number}", sweep, number, values))
    return settings


def _metric(column: str) -> str:
    """Return the metric's name in ``metrics.csv`` for a column of ``evaluations.csv``."""
    if column == "eval_return":
        return EVALUATION
    return f"{EVALUATION}_{column}" if column.startswith("seed_") else column


@functools.lru_cache(maxsize=8)
def _evaluations(path: Path, changed: int) -> list[dict[str, float]]:
    """Return the rows of ``evaluations.csv``, cached until ``changed``, its time of modification, differs."""
    rows = RowFile(path).metrics()
    if not all("setting" in row for row in rows):
        raise RowFile(path).damaged("a row has no setting")
    return rows

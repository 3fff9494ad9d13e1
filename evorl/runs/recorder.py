"""Interface of recorders: the run plan, rows of metrics, messages and charts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from evorl.config.names import no_such

if TYPE_CHECKING:
    from evorl.metrics import EvaluationMetrics  # imports JAX

Row: TypeAlias = Mapping[str, float | int]


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """Values on a regular grid over two columns of a chart, ``x`` and ``y`` of the panel.

    Attributes:
        values: values of the cells of the grid, ``[X, Y]``; NaN for missing values.
        low: lower ends of the grid in ``x`` and ``y``.
        high: upper ends of the grid in ``x`` and ``y``.
        label: label of the values.
    """

    values: np.ndarray
    low: tuple[float, float]
    high: tuple[float, float]
    label: str


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot of a table: a point per row, or a heat map.

    Attributes:
        x: column along the horizontal axis.
        y: column along the vertical axis.
        marked: column that is nonzero in the rows whose points a line connects; ``None`` for no line.
        log: True if the vertical axis is logarithmic.
        color: column that colors the points; ``None`` for one color.
        heat: heat map drawn instead of points.
    """

    x: str
    y: str
    marked: str | None = None
    log: bool = False
    color: str | None = None
    heat: HeatMap | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """A table and its plots.

    Attributes:
        columns: columns by name, ``[N]`` each.
        panels: plots, from top to bottom.

    Raises:
        ValueError: columns differ in length, or a panel names a missing column.
    """

    columns: Mapping[str, np.ndarray]
    panels: tuple[Panel, ...]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of a chart must have equal lengths, got {lengths}.")
        for panel in self.panels:
            for name in filter(None, (panel.x, panel.y, panel.marked, panel.color)):
                if name not in self.columns:
                    raise ValueError(no_such("column", name, self.columns))


def for_each_seed(name: str, num_seeds: int | None, chart_of: Callable[[Any], Chart]) -> dict[str, Chart]:
    """Return ``{<name>_seed_<i>: chart_of(i)}`` of all seeds; ``{name: chart_of(Ellipsis)}`` if ``num_seeds=None``."""
    if num_seeds is None:
        return {name: chart_of(...)}
    return {f"{name}_seed_{i}": chart_of(i) for i in range(num_seeds)}


def algorithm_name(workflow: str) -> str:
    """Return an algorithm's name from its workflow class: ``PPO`` for ``evorl.algorithms.ppo.PPOWorkflow``."""
    return workflow.rpartition(".")[2].removesuffix("Workflow")


def run_title(algorithm: str, env: str | None, seed: int | None, num_seeds: int = 1) -> str:
    """Return the title of a run: ``PPO on CartPole-v1, seed 0``, or ``seeds 0 to 3``; unknown parts are omitted."""
    where = f" on {env}" if env else ""
    if seed is None:
        return f"{algorithm}{where}"
    return f"{algorithm}{where}, " + (f"seeds {seed} to {seed + num_seeds - 1}" if num_seeds > 1 else f"seed {seed}")


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """Title, length and parallelism of a run, passed to recorders at the start.

    Attributes:
        name: title, see ``run_title``.
        total_timesteps: environment steps of the whole run, per seed.
        first_timesteps: environment steps completed before the start, per seed; 0 unless resumed.
        first_iterations: iterations completed before the start; 0 unless resumed.
        num_seeds: number of seeds trained in parallel.
        num_devices: number of devices in use.
        side_by_side: description of a run that trains more than seeds in parallel, such as "4 settings x 3 seeds".
    """

    name: str
    total_timesteps: int
    first_timesteps: int
    first_iterations: int
    num_seeds: int
    num_devices: int
    side_by_side: str | None = None


class Recorder:
    """Base class of recorders, which does nothing; recorders override the methods they need.

    Rows are flat: ``iterations`` and ``timesteps`` (integers), then any of ``train/*``, ``eval/*``, ``time/*`` and
    ``serving/*``. Their values are numbers on the host, so no recorder waits for a device.
    """

    def resume_at(self, iterations: int) -> None:
        """Discard records after this iteration, which the resumed run writes again; -1 discards all.

        Called before ``start``.
        """

    def start(self, plan: RunPlan) -> None:
        """Handle the start of the run."""

    def write(self, row: Row) -> None:
        """Record one row of metrics."""

    def progress(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        """Report the steps per seed so far, the speed over all seeds, and the latest value of every metric."""

    def message(self, text: str) -> None:
        """Record a message about the run."""

    def evaluation(self, iterations: int, timesteps: int, episodes: EvaluationMetrics) -> None:
        """Record the episodes of an evaluation, if the run stores them; with several seeds, arrays are ``[S, ...]``."""

    def chart(self, name: str, chart: Chart) -> None:
        """Record the chart called ``name``, which shows the final state of the run."""

    def complete(self) -> None:
        """Handle the completion of training before its last step, see ``evorl.execution.early_stop``."""

    def failure(self, error: Exception) -> None:
        """Handle the error that ends the run; it is raised after this call."""

    def close(self) -> None:
        """Handle the end of the run; may be called twice."""

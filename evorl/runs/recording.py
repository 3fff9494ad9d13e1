"""What a run tells its recorders: the plan, rows of metrics, messages, charts."""

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
    """Values over the plane of two columns.

    Attributes:
        values: ``[X, Y]``, equal rectangles of the plane; NaN where there is none.
        low: of the first and the second column, where the plane begins.
        high: where it ends.
        told: what a value is, in words.
    """

    values: np.ndarray
    low: tuple[float, float]
    high: tuple[float, float]
    told: str


@dataclasses.dataclass(frozen=True)
class Panel:
    """One picture of a table: a point for each row, or a heat map.

    Attributes:
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        marked: a column that is not 0 in the rows to be joined by a line; ``None`` for no line.
        log: whether the vertical axis is logarithmic.
        colour: a column that the points are coloured by; ``None`` for one colour.
        heat: drawn in place of points.
    """

    x: str
    y: str
    marked: str | None = None
    log: bool = False
    colour: str | None = None
    heat: HeatMap | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """A table and its pictures.

    Attributes:
        columns: by name, all of one length ``[N]``.
        panels: drawn below one another.

    Raises:
        ValueError: columns differ in length, or a panel names one that is not there.
    """

    columns: Mapping[str, np.ndarray]
    panels: tuple[Panel, ...]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of a chart are of one length, got {lengths}.")
        for panel in self.panels:
            for name in filter(None, (panel.x, panel.y, panel.marked, panel.colour)):
                if name not in self.columns:
                    raise ValueError(no_such("column", name, self.columns))


def for_each_seed(name: str, num_seeds: int | None, chart_of: Callable[[Any], Chart]) -> dict[str, Chart]:
    """Charts ``name_seed_i``, made by ``chart_of(i)``; without an axis of seeds ``name``, made by ``chart_of(...)``."""
    if num_seeds is None:
        return {name: chart_of(...)}
    return {f"{name}_seed_{i}": chart_of(i) for i in range(num_seeds)}


def algorithm_name(workflow: str) -> str:
    """The name of an algorithm, out of its workflow's class: ``PPO`` for ``evorl.algorithms.ppo.PPOWorkflow``."""
    return workflow.rpartition(".")[2].removesuffix("Workflow")


def run_title(algorithm: str, env: str | None, seed: int | None, num_seeds: int = 1) -> str:
    """What a run is, in a few words: ``PPO on CartPole-v1, seed 0``, or ``seeds 0 to 3``; parts may be unknown."""
    where = f" on {env}" if env else ""
    if seed is None:
        return f"{algorithm}{where}"
    return f"{algorithm}{where}, " + (f"seeds {seed} to {seed + num_seeds - 1}" if num_seeds > 1 else f"seed {seed}")


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What a run sets out to do; recorders are told at the start.

    Attributes:
        name: what it is, see ``run_title``.
        total_timesteps: environment steps of the whole run, for each seed.
        first_timesteps: environment steps already taken when it starts (0 unless resumed).
        first_iterations: iterations already done.
        num_seeds: seeds that run side by side.
        num_devices: devices in use.
        side_by_side: description of what runs side by side if not seeds alone, such as "4 settings x 3 seeds".
    """

    name: str
    total_timesteps: int
    first_timesteps: int
    first_iterations: int
    num_seeds: int
    num_devices: int
    side_by_side: str | None = None


class Recorder:
    """A recorder that does nothing; recorders override what concerns them.

    Rows are flat: ``iterations`` and ``timesteps`` (integers), then ``train/*``, ``eval/*`` and ``time/*`` as far as
    there are any. Their values are on the host already, so no recorder waits for a device.
    """

    def resume_at(self, iterations: int) -> None:
        """Forget what was recorded after this iteration: it will be computed again. Called before ``start``."""

    def start(self, plan: RunPlan) -> None:
        """The run begins."""

    def write(self, row: Row) -> None:
        """One row of metrics."""

    def progress(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        """A sign of life between rows, with the latest value of every metric."""

    def message(self, text: str) -> None:
        """A line on the course of the run."""

    def evaluation(self, iterations: int, timesteps: int, episodes: EvaluationMetrics) -> None:
        """The episodes of an evaluation, where more is kept of them than metrics; with several seeds ``[S, ...]``."""

    def chart(self, name: str, chart: Chart) -> None:
        """A table that describes the end of the run, and how to draw it."""

    def failure(self, error: Exception) -> None:
        """The run ends by an error, which is raised after this."""

    def close(self) -> None:
        """The run is over; may be called twice."""

"""Animation of an archive that MAP-Elites fills: ``python -m benchmarks.gallery`` writes it into ``docs/assets``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.task import TASKS
from evorl.assembly import workflow_from_config
from evorl.cli.composition import compose_config
from evorl.execution.collector import iterate
from evorl.recorders.pictures import white_figure
from evorl.rendering.animation import write_animation

TASK = TASKS["map_elites_pendulum"]
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "gallery" / "archive.webp"
ITERATIONS_PER_FRAME = 2
LAST_FRAME_REPEATS = 10  # holds the final archive before the animation starts again
SECONDS_PER_FRAME = 0.12


def archives() -> Iterator[tuple[int, np.ndarray]]:
    """Train one seed of the learning task; yield environment steps and the fitness of each cell ``[256]``."""
    config = compose_config([*TASK.overrides, "eval_interval=0"])
    workflow = workflow_from_config(config)
    state = workflow.init(config.seed)
    steps = 0
    while steps < config.total_timesteps:
        _, state = iterate(workflow, state, ITERATIONS_PER_FRAME)
        steps = round(float(state.timesteps.as_float()))
        yield steps, np.asarray(state.archive_state.fitness)
    workflow.close()


def draw(steps: int, fitness: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the image uint8 ``[240, 300, 3]`` of an archive of 16 x 16 cells; empty cells are gray.

    Args:
        steps: environment steps so far.
        fitness: fitness of the elites ``[256]``, minus infinity for empty cells.
        low: fitness of the darkest color.
        high: fitness of the brightest color.
    """
    filled = np.isfinite(fitness)
    figure = white_figure(3.0, 2.4, dpi=100)
    axes = figure.add_axes((0.15, 0.2, 0.8, 0.66))
    axes.set_facecolor("#d8dce2")
    cells = np.where(filled, fitness, np.nan).reshape(16, 16).T
    axes.imshow(cells, origin="lower", extent=(-1, 1, -6, 6), aspect="auto", vmin=low, vmax=high, cmap="viridis")
    axes.set_title(f"{steps:,} steps: {filled.mean():.0%} filled", fontsize=9)
    axes.set_xlabel("mean cosine of the angle", fontsize=8)
    axes.set_ylabel("mean velocity", fontsize=8)
    axes.tick_params(labelsize=7)
    canvas: Any = figure.canvas
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def write_archive_picture(path: Path = PICTURE) -> None:
    """Train, and write the animation of the archive."""
    history = list(archives())
    last = history[-1][1]
    low, high = np.quantile(last[np.isfinite(last)], [0.05, 0.95])
    frames = [draw(steps, fitness, float(low), float(high)) for steps, fitness in history]
    write_animation(path, np.stack(frames + frames[-1:] * LAST_FRAME_REPEATS), SECONDS_PER_FRAME, lossless=False)


if __name__ == "__main__":
    write_archive_picture()

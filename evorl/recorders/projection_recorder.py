"""Plots of evaluation episodes: their paths through goals or observations, one PNG per evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evorl.envs.env import Env
from evorl.episodes.recorder import forget_later_files, recorded_episodes
from evorl.episodes.saved_episode import SavedEpisode
from evorl.metrics import EvaluationMetrics
from evorl.recorders.learning_curve import BLUE, GRAY, GREEN, label_axes
from evorl.recorders.pictures import white_figure, write_png
from evorl.runs.files import make_folder, writing_to
from evorl.runs.recorder import Recorder, RunPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RED = "#c0453b"
MANY = 24  # minimum number of episodes for thinner lines


class ProjectionRecorder(Recorder):
    """Draws ``<steps>.png`` for each evaluation; ``<steps>`` are the environment steps in 12 digits.

    Args:
        folder: output folder; created when the first image is written.
        env: environment of the evaluation, which draws the background (``Env.draw_background``).
        num_episodes: number of episodes drawn per seed.
        of: drawn quantity, ``"goal"`` (achieved goals) or ``"observation"``.
        dimensions: indices of one or two components of the quantity.
        suffix: appended to the number of steps in file names, for evaluations outside of training.

    Raises:
        RunFolderError: the folder cannot be written.
    """

    def __init__(
        self, folder: Path | str, env: Env, num_episodes: int, of: str, dimensions: tuple[int, ...], suffix: str = ""
    ) -> None:
        self.folder, self._env, self._num_episodes = Path(folder), env, num_episodes
        self._of, self._dimensions, self._suffix = of, dimensions, suffix

    def start(self, plan: RunPlan) -> None:
        forget_later_files(self.folder, plan.first_timesteps)

    def evaluation(self, iterations: int, timesteps: int, episodes: EvaluationMetrics) -> None:
        recorded = [episode for _, _, episode in recorded_episodes(episodes, self._num_episodes)]
        if recorded:
            path = self.folder / f"{timesteps:012d}{self._suffix}.png"
            draw_episodes(path, recorded, self._of, self._dimensions, self._env, f"after {timesteps:,} steps")


def draw_episodes(
    path: Path | str,
    episodes: list[SavedEpisode],
    of: str,
    dimensions: tuple[int, ...],
    env: Env | None = None,
    title: str = "",
) -> None:
    """Plot episodes in one or two components of their achieved goals or observations.

    Two components span a plane; a single one is plotted over the steps of the episode.

    Args:
        path: path of the PNG.
        episodes: episodes with all their steps.
        of, dimensions: see ``ProjectionRecorder``.
        env: environment that draws the background; ``None`` for no background.
        title: title of the plot.

    Raises:
        RunFolderError: the image cannot be written.
    """
    is_plane = len(dimensions) == 2
    figure = white_figure(*((6.4, 6.4) if is_plane else (8.0, 4.4)), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c8ced6")
    axes.tick_params(colors=GRAY, labelsize=8, length=3)
    if env is not None:
        env.draw_background(axes, of, dimensions)
    for episode in episodes:
        _draw_episode(axes, episode, of, dimensions, width=1.6 if len(episodes) < MANY else 0.9)
    has_background = bool(axes.collections)
    if is_plane and (of == "goal" or has_background):  # components of other observations have different units
        axes.set_aspect("equal", adjustable="box" if has_background else "datalim")
    _label(axes, episodes, of, dimensions, title)
    with writing_to(Path(path).parent):
        make_folder(Path(path).parent)
    write_png(figure, path)


def points_of(episode: SavedEpisode, of: str, dimensions: tuple[int, ...]) -> np.ndarray:
    """Return components ``dimensions`` of an episode's achieved goals or observations, ``[T + 1, 1 or 2]``."""
    names = ("obs.achieved_goal",) if of == "goal" else ("obs.observation", "obs")
    points = next(episode.arrays[name] for name in names if name in episode.arrays)
    return points.reshape(len(points), -1)[:, list(dimensions)]


def _draw_episode(axes: Axes, episode: SavedEpisode, of: str, dimensions: tuple[int, ...], width: float) -> None:
    path = points_of(episode, of, dimensions)
    color = _color(episode)
    is_plane = len(dimensions) == 2
    x, y = (path[:, 0], path[:, 1]) if is_plane else (np.arange(len(path)), path[:, 0])
    axes.plot(x, y, color=color, linewidth=width, alpha=0.75, solid_joinstyle="round", zorder=3)
    axes.plot(x[0], y[0], "o", color="white", markeredgecolor=GRAY, markersize=5.5, zorder=4)
    axes.plot(x[-1], y[-1], "o", color=color, markersize=5.5, markeredgecolor="white", markeredgewidth=0.6, zorder=5)
    if of == "goal":
        goal = episode.arrays["obs.desired_goal"][-1].reshape(-1)[list(dimensions)]
        marker_position = goal if is_plane else (x[-1], goal[0])
        axes.plot(
            *marker_position, "*", color=color, markersize=13, markeredgecolor="white", markeredgewidth=0.8, zorder=6
        )
        dots = ([x[-1], goal[0]], [y[-1], goal[1]]) if is_plane else ([x[0], x[-1]], [goal[0]] * 2)
        axes.plot(*dots, ":", color=color, linewidth=0.9, alpha=0.6, zorder=2)


def _color(episode: SavedEpisode) -> str:
    if "success" not in episode.about:
        return BLUE
    if episode.about["success"]:
        return GREEN
    return "#d99a2b" if episode.about["success_ever"] else RED


def _label(axes: Axes, episodes: list[SavedEpisode], of: str, dimensions: tuple[int, ...], title: str) -> None:
    from matplotlib.lines import Line2D

    quantity = "achieved goal" if of == "goal" else "observation"
    names = [f"{quantity} [{i}]" for i in dimensions]
    across, up = names if len(names) == 2 else ("step of the episode", names[0])
    label_axes(axes, across, up, _headline(episodes, title), pad=10)
    colors = {_color(episode) for episode in episodes}
    meanings = {GREEN: "ended at its goal", "#d99a2b": "was at its goal", RED: "never at its goal", BLUE: "an episode"}
    handles = [Line2D([], [], color=c, linewidth=2, label=text) for c, text in meanings.items() if c in colors]
    handles += [_mark("o", "white", GRAY, 6, "start"), _mark("o", GRAY, "white", 6, "end")]
    if of == "goal":
        handles.append(_mark("*", GRAY, "white", 11, "goal"))
    axes.figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8, labelcolor=GRAY
    )


def _headline(episodes: list[SavedEpisode], title: str) -> str:
    successes = [episode.about["success"] for episode in episodes if "success" in episode.about]
    if not successes:
        return title
    return f"{title}: {sum(successes)} of {len(successes)} episodes end at their goal"


def _mark(marker: str, color: str, edge: str, size: float, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=marker, color=color, markeredgecolor=edge, markersize=size, label=label)

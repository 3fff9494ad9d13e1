"""Images of evaluations with goals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from evorl.envs.goals.point_maze import make_point_maze
from evorl.episodes.recorder import recorded_episodes
from evorl.recorders.projection_recorder import ProjectionRecorder, draw_episodes, points_of
from tests.support.recorded_runs import LENGTHS, kept_episodes, make_plan

MAZE = make_point_maze("open")
GREEN = np.array([0x1A, 0x7F, 0x5A]) / 255


def has_color(path: Path, color: np.ndarray) -> bool:
    return bool((np.abs(imread(path)[..., :3] - color).max(axis=-1) < 0.02).any())


@pytest.mark.parametrize("dimensions", [(0, 1), (1, 0), (0,)])
@pytest.mark.parametrize("of", ["goal", "observation"])
def test_one_picture_for_each_evaluation(tmp_path: Path, of: str, dimensions: tuple[int, ...]) -> None:
    recorder = ProjectionRecorder(tmp_path / "plots", MAZE, 3, of, dimensions)
    recorder.start(make_plan())
    recorder.evaluation(1, 1000, kept_episodes())
    (path,) = (tmp_path / "plots").iterdir()
    assert path.name == "000000001000.png"
    assert imread(path).ndim == 3
    assert has_color(path, GREEN)  # the only episode that reaches its goal


def test_walls_are_drawn_where_there_are_any(tmp_path: Path) -> None:
    episodes = [episode for _, _, episode in recorded_episodes(kept_episodes(), 3)]
    draw_episodes(tmp_path / "with.png", episodes, "goal", (0, 1), MAZE)
    draw_episodes(tmp_path / "without.png", episodes, "goal", (0, 1))
    with_walls, without = (_share_of_grey(tmp_path / f"{name}.png") for name in ("with", "without"))
    assert with_walls > 0.2 > 0.1 > without


def _share_of_grey(path: Path) -> float:
    colors = imread(path)[..., :3]
    return float(((np.ptp(colors, axis=-1) < 0.01) & (colors[..., 0] < 0.9)).mean())


def test_points_are_those_of_the_episode() -> None:
    _, _, episode = next(iter(recorded_episodes(kept_episodes(), 1)))
    points = points_of(episode, "goal", (1, 0))
    assert points.shape == (LENGTHS[0] + 1, 2)
    np.testing.assert_allclose(points[:, 1], 0.1 * np.arange(7), atol=1e-6)
    assert not points[:, 0].any()


def test_a_resume_forgets_later_pictures(tmp_path: Path) -> None:
    for steps in (100, 300):
        ProjectionRecorder(tmp_path, MAZE, 1, "goal", (0,)).evaluation(1, steps, kept_episodes())
    ProjectionRecorder(tmp_path, MAZE, 1, "goal", (0,)).start(make_plan(first_iterations=1))
    assert [path.name for path in tmp_path.iterdir()] == ["000000000100.png"]

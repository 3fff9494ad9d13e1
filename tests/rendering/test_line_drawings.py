"""Images of environments without a renderer: positions and colors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evorl.rendering.line_drawings import drawing_of, grid_picture

SIZE = 60


def places_of(picture: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """Return rows and columns of the pixels of about this color, ``[N, 2]``."""
    return np.argwhere(np.abs(picture.astype(int) - color).max(axis=-1) < 40)


ARM, BODY, GOAL = (214, 122, 44), (52, 101, 164), (60, 150, 90)


def test_a_cart_is_where_it_is_and_its_pole_leans() -> None:
    arrays = {"x": np.array([-1.5, 0.0, 1.5]), "theta": np.array([-0.5, 0.0, 0.5]), "theta_dot": np.zeros(3)}
    draw = drawing_of(arrays, SIZE)
    pictures = [draw(moment) for moment in range(3)]
    assert all(picture.shape == (SIZE, 120, 3) for picture in pictures)
    carts = [places_of(picture, BODY)[:, 1].mean() for picture in pictures]
    assert carts[0] < 35 < 50 < carts[1] < 70 < 85 < carts[2]
    leans = []
    for picture in pictures:
        pole = places_of(picture, ARM)
        top, foot = pole[pole[:, 0] < np.median(pole[:, 0])], pole[pole[:, 0] > np.median(pole[:, 0])]
        leans.append(top[:, 1].mean() - foot[:, 1].mean())
    assert leans[0] < -3
    assert abs(leans[1]) < 1
    assert leans[2] > 3


@pytest.mark.parametrize(
    ("angle", "above", "left"), [(0.0, True, None), (math.pi, False, None), (math.pi / 2, None, True)]
)
def test_a_pendulum_stands_at_zero_and_turns_to_the_left(angle: float, above: bool | None, left: bool | None) -> None:
    arm = places_of(drawing_of({"theta": np.array([angle])}, SIZE)(0), ARM).mean(axis=0)
    if above is not None:
        assert (arm[0] < SIZE / 2) == above
    if left is not None:
        assert (arm[1] < SIZE / 2) == left


def test_an_acrobot_hangs_at_zero() -> None:
    arrays = {"joint_angle1": np.array([0.0, math.pi]), "joint_angle2": np.zeros(2)}
    draw = drawing_of(arrays, SIZE)
    hanging, standing = (places_of(draw(moment), ARM)[:, 0].mean() for moment in range(2))
    assert standing < SIZE / 4 < 3 * SIZE / 4 < hanging


def test_a_car_climbs_to_its_flag() -> None:
    draw = drawing_of({"position": np.array([-math.pi / 6, 0.5]), "velocity": np.zeros(2)}, SIZE)
    in_the_valley, at_the_goal = (places_of(draw(moment), BODY).mean(axis=0) for moment in range(2))
    assert at_the_goal[0] < in_the_valley[0]
    assert at_the_goal[1] > in_the_valley[1]
    assert len(places_of(draw(0), GOAL))


def test_channels_have_colors_and_later_ones_are_in_front() -> None:
    grid = np.zeros((4, 5, 3), np.bool_)
    grid[0, 0, 0] = grid[1, 1, 1] = grid[2, 2] = True
    picture = drawing_of({"obs": np.stack([grid, grid])}, 8)(1)
    assert picture.shape == (8, 10, 3)
    cells = picture[::2, ::2]
    assert (picture == cells.repeat(2, 0).repeat(2, 1)).all()
    assert (cells[3] == 24).all()
    colors = {tuple(cells[i, i].tolist()) for i in range(2)}
    assert len(colors) == 2
    assert tuple(cells[2, 2].tolist()) not in colors  # the color of the third channel


def test_pictures_stay_as_they_are() -> None:
    colors = np.random.default_rng(0).integers(0, 256, (6, 6, 3)).astype(np.uint8)
    np.testing.assert_array_equal(grid_picture(colors, 6), colors)
    gray = grid_picture(colors[..., :1], 6)
    np.testing.assert_array_equal(gray, colors[..., :1].repeat(3, axis=2))
    stack = np.stack([colors[..., 0]] * 3 + [colors[..., 1]])
    np.testing.assert_array_equal(grid_picture(stack, 6), colors[..., 1:2].repeat(3, axis=2))
    ball = np.zeros((3, 3), np.float32)
    ball[1, 1] = 2.0
    assert grid_picture(ball, 3)[..., 0].tolist() == [[0, 0, 0], [0, 255, 0], [0, 0, 0]]


def test_numbers_are_bars_as_long_as_they_reach_in_the_episode() -> None:
    obs = np.array([[1.0, -2.0], [0.5, 2.0]])
    draw = drawing_of({"obs": obs, "reward": np.zeros(1)}, 48)
    first, second = draw(0), draw(1)
    assert len(places_of(first, ARM)) > 0  # below zero
    assert len(places_of(second, ARM)) == 0
    left = [places_of(picture[:, : picture.shape[1] // 2], BODY) for picture in (first, second)]
    assert len(left[1]) == pytest.approx(len(left[0]) / 2, rel=0.2)


@pytest.mark.parametrize("names", [("position",), ("theta",), ("x", "theta"), ("joint_angle1", "joint_angle2")])
@pytest.mark.parametrize("shape", [(3, 2), (3, 1), (3, 2, 2)])
def test_positions_of_several_numbers_are_not_classic_control(names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    observations = {"obs": np.ones((3, 4))}
    arrays = {**observations, **{name: np.zeros(3) for name in names}, names[-1]: np.ones(shape)}
    np.testing.assert_array_equal(drawing_of(arrays, SIZE)(0), drawing_of(observations, SIZE)(0))

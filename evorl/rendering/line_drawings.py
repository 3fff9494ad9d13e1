"""Pictures of what has no renderer of its own: classic control by lines, grids by colours, all else as bars.

Drawn from an episode's arrays. Lines are drawn three times as large and made smaller, which smooths them.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Point = tuple[float, float]
Draw = Callable[[int], np.ndarray]

_LARGER = 3
_PAPER, _INK, _GREY = (250, 250, 247), (40, 44, 52), (168, 172, 178)
_BODY, _ARM, _GOAL = (52, 101, 164), (214, 122, 44), (60, 150, 90)
_MOST_BARS = 64


class Sheet:
    """A sheet that is drawn on in the units of what is shown, y upwards.

    Args:
        size: its height in pixels.
        low: what its lower left corner stands for.
        high: what its upper right corner stands for; the width follows.
    """

    def __init__(self, size: int, low: Point, high: Point) -> None:
        from PIL import Image, ImageDraw

        self._scale = _LARGER * size / (high[1] - low[1])
        self._low, self._high = low, high
        self._size = round(size * (high[0] - low[0]) / (high[1] - low[1])), size
        self._image = Image.new("RGB", (_LARGER * self._size[0], _LARGER * self._size[1]), _PAPER)
        self._pen: Any = ImageDraw.Draw(self._image)

    def line(self, points: list[Point], width: float, colour: tuple[int, int, int]) -> None:
        """A line through points, round at its ends; ``width`` in the units of the sheet."""
        places = [self._place(point) for point in points]
        self._pen.line(places, fill=colour, width=max(1, round(width * self._scale)), joint="curve")
        for point in (points[0], points[-1]):
            self.disc(point, width / 2, colour)

    def disc(self, centre: Point, radius: float, colour: tuple[int, int, int]) -> None:
        """A filled circle."""
        (x, y), r = self._place(centre), radius * self._scale
        self._pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def box(self, low: Point, high: Point, colour: tuple[int, int, int]) -> None:
        """A filled rectangle between two corners, lower left and upper right."""
        (left, bottom), (right, top) = self._place(low), self._place(high)
        self._pen.rectangle((left, top, max(left, right), max(top, bottom)), fill=colour)

    def picture(self) -> np.ndarray:
        """What was drawn, uint8 ``[height, width, 3]``."""
        from PIL import Image

        return np.asarray(self._image.resize(self._size, Image.Resampling.LANCZOS))

    def _place(self, point: Point) -> Point:
        return (point[0] - self._low[0]) * self._scale, (self._high[1] - point[1]) * self._scale


def drawing_of(arrays: Mapping[str, np.ndarray], size: int) -> Draw:
    """How an episode is drawn, of which there are these arrays: from the number of a moment to a picture.

    Bodies of classic control, by the names that gymnax gives their positions; else what the agent observes: pictures as
    they are, grids with a colour for each channel, numbers as bars.

    Args:
        arrays: as those of a ``SavedEpisode``, ``[T + 1, ...]``.
        size: height of the pictures, in pixels.

    Returns:
        A function to uint8 ``[size, width, 3]``.
    """
    for names, draw in _BODIES.items():
        if all(name in arrays for name in names):
            return lambda moment: draw(size, *(float(arrays[name][moment]) for name in names))
    observed = {name: x for name, x in arrays.items() if name.partition(".")[0] == "obs"}
    grids = [x for x in observed.values() if x.ndim == 4 or (x.ndim == 3 and min(x.shape[1:]) > 1)]
    if grids:
        return lambda moment: grid_picture(grids[0][moment], size)
    numbers = np.concatenate([np.float64(x).reshape(len(x), -1) for x in observed.values()], axis=1)[:, :_MOST_BARS]
    reach = np.maximum(np.abs(numbers).max(axis=0), 1e-6)
    return lambda moment: _bars(size, numbers[moment] / reach)


def grid_picture(grid: np.ndarray, size: int) -> np.ndarray:
    """A grid ``[H, W]`` or ``[H, W, C]`` as a picture uint8 ``[size, width, 3]``, each cell a square.

    Three channels of bytes are red, green and blue, and one channel is grey. Else each channel has a colour, and a cell
    that of its last channel that is not 0. Of a stack ``[4, H, W]`` of pictures the last one is shown.
    """
    from PIL import Image

    if grid.ndim == 3 and grid.shape[0] <= 4 < min(grid.shape[1:]):
        grid = grid[-1]
    channels = grid[..., None] if grid.ndim == 2 else grid
    if channels.dtype == np.uint8 and channels.shape[2] in (1, 3):
        pixels = np.broadcast_to(channels, (*channels.shape[:2], 3))
    elif channels.shape[2] == 1:
        values = np.float64(channels)
        low, high = min(values.min(), 0.0), max(values.max(), 1e-6)
        shades = np.asarray(255 * (values - low) / (high - low)).astype(np.uint8)
        pixels = np.broadcast_to(shades, (*values.shape[:2], 3))
    else:
        pixels = np.full((*channels.shape[:2], 3), 24, np.uint8)
        for number in range(channels.shape[2]):
            colour = colorsys.hsv_to_rgb(number / channels.shape[2], 0.65, 0.95)
            pixels[channels[..., number] != 0] = (255 * np.array(colour)).astype(np.uint8)
    width = max(1, round(size * channels.shape[1] / channels.shape[0]))
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((width, size), Image.Resampling.NEAREST))


def _cart_pole(size: int, x: float, angle: float) -> np.ndarray:
    sheet = Sheet(size, (-2.7, -0.7), (2.7, 2.0))
    sheet.line([(-2.7, 0.0), (2.7, 0.0)], 0.02, _GREY)
    for border in (-2.4, 2.4):
        sheet.line([(border, -0.12), (border, 0.12)], 0.03, _GREY)
    sheet.box((x - 0.35, -0.18), (x + 0.35, 0.18), _BODY)
    sheet.line([(x, 0.1), (x + 1.3 * math.sin(angle), 0.1 + 1.3 * math.cos(angle))], 0.12, _ARM)
    sheet.disc((x, 0.1), 0.05, _INK)
    return sheet.picture()


def _pendulum(size: int, angle: float) -> np.ndarray:
    sheet = Sheet(size, (-1.4, -1.4), (1.4, 1.4))
    sheet.line([(0.0, 0.0), (-math.sin(angle), math.cos(angle))], 0.18, _ARM)
    sheet.disc((0.0, 0.0), 0.06, _INK)
    return sheet.picture()


def _acrobot(size: int, first: float, second: float) -> np.ndarray:
    sheet = Sheet(size, (-2.4, -2.4), (2.4, 2.4))
    sheet.line([(-2.4, 1.0), (2.4, 1.0)], 0.02, _GOAL)  # to be reached by the end of the second arm
    elbow = math.sin(first), -math.cos(first)
    end = elbow[0] + math.sin(first + second), elbow[1] - math.cos(first + second)
    sheet.line([(0.0, 0.0), elbow], 0.2, _BODY)
    sheet.line([elbow, end], 0.2, _ARM)
    for joint in ((0.0, 0.0), elbow):
        sheet.disc(joint, 0.07, _INK)
    return sheet.picture()


def _mountain_car(size: int, x: float) -> np.ndarray:
    def ground(place: float) -> Point:
        return place, 0.45 * math.sin(3 * place) + 0.55

    sheet = Sheet(size, (-1.25, 0.0), (0.65, 1.25))
    sheet.line([ground(place) for place in np.linspace(-1.25, 0.65, 96)], 0.012, _INK)
    flag = ground(0.5)
    sheet.line([flag, (0.5, flag[1] + 0.16)], 0.01, _GREY)
    sheet.box((0.5, flag[1] + 0.1), (0.58, flag[1] + 0.16), _GOAL)
    slope = math.atan(1.35 * math.cos(3 * x))
    along, up = (math.cos(slope), math.sin(slope)), (-math.sin(slope), math.cos(slope))

    def above(forward: float, height: float) -> Point:
        place = ground(x)
        return place[0] + forward * along[0] + height * up[0], place[1] + forward * along[1] + height * up[1]

    sheet.line([above(-0.06, 0.06), above(0.06, 0.06)], 0.05, _BODY)
    for wheel in (-0.05, 0.05):
        sheet.disc(above(wheel, 0.025), 0.025, _INK)
    return sheet.picture()


def _bars(size: int, shares: np.ndarray) -> np.ndarray:
    """Numbers from -1 to 1, each as a bar up or down."""
    sheet = Sheet(size, (-0.5, -1.2), (2.9, 1.2))
    width = 2.8 / len(shares)
    for number, share in enumerate(shares.tolist()):
        left = -0.2 + number * width
        low, high = min(share, 0.0), max(share, 0.0)
        sheet.box((left, low), (left + 0.8 * width, high), _BODY if share >= 0 else _ARM)
    sheet.line([(-0.3, 0.0), (2.7, 0.0)], 0.01, _INK)
    return sheet.picture()


# By the names of positions, those of more names first.
_BODIES: dict[tuple[str, ...], Callable[..., np.ndarray]] = {
    ("x", "theta"): _cart_pole,
    ("joint_angle1", "joint_angle2"): _acrobot,
    ("theta",): _pendulum,
    ("position",): _mountain_car,
}

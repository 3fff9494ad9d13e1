"""Draws environments that have no renderer: classic control with lines, grids with colors, others as bars.

The drawings need only an episode's arrays. Lines and bars are drawn at three times the size and downsampled.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Point = tuple[float, float]
Draw = Callable[[int], np.ndarray]

_SUPERSAMPLING = 3
_PAPER, _INK, _GRAY = (250, 250, 247), (40, 44, 52), (168, 172, 178)
_BODY, _ARM, _GOAL = (52, 101, 164), (214, 122, 44), (60, 150, 90)
_MAX_BARS = 64


class Sheet:
    """A drawing canvas in world coordinates; the y axis points up.

    Args:
        size: height in pixels.
        low: world coordinates of the lower left corner.
        high: world coordinates of the upper right corner; they determine the width.
    """

    def __init__(self, size: int, low: Point, high: Point) -> None:
        from PIL import Image, ImageDraw

        self._scale = _SUPERSAMPLING * size / (high[1] - low[1])
        self._low, self._high = low, high
        self._size = round(size * (high[0] - low[0]) / (high[1] - low[1])), size
        self._image = Image.new("RGB", (_SUPERSAMPLING * self._size[0], _SUPERSAMPLING * self._size[1]), _PAPER)
        self._pen: Any = ImageDraw.Draw(self._image)

    def line(self, points: list[Point], width: float, color: tuple[int, int, int]) -> None:
        """Draw a line through points, with round ends; ``width`` is in world units."""
        pixels = [self._to_pixels(point) for point in points]
        self._pen.line(pixels, fill=color, width=max(1, round(width * self._scale)), joint="curve")
        for point in (points[0], points[-1]):
            self.disc(point, width / 2, color)

    def disc(self, center: Point, radius: float, color: tuple[int, int, int]) -> None:
        """Draw a filled circle; ``radius`` is in world units."""
        (x, y), r = self._to_pixels(center), radius * self._scale
        self._pen.ellipse((x - r, y - r, x + r, y + r), fill=color)

    def box(self, low: Point, high: Point, color: tuple[int, int, int]) -> None:
        """Draw a filled rectangle from its lower left corner ``low`` to its upper right corner ``high``."""
        (left, bottom), (right, top) = self._to_pixels(low), self._to_pixels(high)
        self._pen.rectangle((left, top, max(left, right), max(top, bottom)), fill=color)

    def picture(self) -> np.ndarray:
        """Return the drawing, uint8 ``[height, width, 3]``."""
        from PIL import Image

        return np.asarray(self._image.resize(self._size, Image.Resampling.LANCZOS))

    def _to_pixels(self, point: Point) -> Point:
        return (point[0] - self._low[0]) * self._scale, (self._high[1] - point[1]) * self._scale


def drawing_of(arrays: Mapping[str, np.ndarray], size: int) -> Draw:
    """Return a function from a step, 0 to T, of a ``SavedEpisode``'s arrays to an image, uint8 ``[size, width, 3]``.

    Classic control is drawn if there are arrays ``[T + 1]`` with gymnax's names of positions. Otherwise the observation
    is drawn: an image or a grid by ``grid_picture``, other observations as bars of their first 64 numbers.
    """
    for names, draw in _BODIES.items():
        if all(name in arrays and arrays[name].ndim == 1 for name in names):
            return lambda moment: draw(size, *(float(arrays[name][moment]) for name in names))
    observed = {name: x for name, x in arrays.items() if name.partition(".")[0] == "obs"}
    grids = [x for x in observed.values() if x.ndim == 4 or (x.ndim == 3 and min(x.shape[1:]) > 1)]
    if grids:
        return lambda moment: grid_picture(grids[0][moment], size)
    numbers = np.concatenate([np.float64(x).reshape(len(x), -1) for x in observed.values()], axis=1)[:, :_MAX_BARS]
    reach = np.maximum(np.abs(numbers).max(axis=0), 1e-6)
    return lambda moment: _bars(size, numbers[moment] / reach)


def grid_picture(grid: np.ndarray, size: int) -> np.ndarray:
    """Draw a grid ``[H, W]`` or ``[H, W, C]`` with square cells, uint8 ``[size, width, 3]``.

    Three uint8 channels are red, green and blue, and a single channel is gray. Otherwise each channel has a color, and
    a cell has the color of its last nonzero channel. In a stack of up to 4 images ``[K, H, W]``, the last is drawn.
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
            color = colorsys.hsv_to_rgb(number / channels.shape[2], 0.65, 0.95)
            pixels[channels[..., number] != 0] = (255 * np.array(color)).astype(np.uint8)
    width = max(1, round(size * channels.shape[1] / channels.shape[0]))
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((width, size), Image.Resampling.NEAREST))


def _cart_pole(size: int, x: float, angle: float) -> np.ndarray:
    sheet = Sheet(size, (-2.7, -0.7), (2.7, 2.0))
    sheet.line([(-2.7, 0.0), (2.7, 0.0)], 0.02, _GRAY)
    for border in (-2.4, 2.4):
        sheet.line([(border, -0.12), (border, 0.12)], 0.03, _GRAY)
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
    sheet.line([(-2.4, 1.0), (2.4, 1.0)], 0.02, _GOAL)  # height that the end of the second arm must reach
    elbow = math.sin(first), -math.cos(first)
    end = elbow[0] + math.sin(first + second), elbow[1] - math.cos(first + second)
    sheet.line([(0.0, 0.0), elbow], 0.2, _BODY)
    sheet.line([elbow, end], 0.2, _ARM)
    for joint in ((0.0, 0.0), elbow):
        sheet.disc(joint, 0.07, _INK)
    return sheet.picture()


def _mountain_car(size: int, x: float) -> np.ndarray:
    def ground(position: float) -> Point:
        return position, 0.45 * math.sin(3 * position) + 0.55

    sheet = Sheet(size, (-1.25, 0.0), (0.65, 1.25))
    sheet.line([ground(position) for position in np.linspace(-1.25, 0.65, 96)], 0.012, _INK)
    flag = ground(0.5)
    sheet.line([flag, (0.5, flag[1] + 0.16)], 0.01, _GRAY)
    sheet.box((0.5, flag[1] + 0.1), (0.58, flag[1] + 0.16), _GOAL)
    slope = math.atan(1.35 * math.cos(3 * x))
    along, up = (math.cos(slope), math.sin(slope)), (-math.sin(slope), math.cos(slope))

    def above(forward: float, height: float) -> Point:
        position = ground(x)
        return position[0] + forward * along[0] + height * up[0], position[1] + forward * along[1] + height * up[1]

    sheet.line([above(-0.06, 0.06), above(0.06, 0.06)], 0.05, _BODY)
    for wheel in (-0.05, 0.05):
        sheet.disc(above(wheel, 0.025), 0.025, _INK)
    return sheet.picture()


def _bars(size: int, values: np.ndarray) -> np.ndarray:
    """Draw numbers from -1 to 1 as bars: positive ones up, negative ones down."""
    sheet = Sheet(size, (-0.5, -1.2), (2.9, 1.2))
    width = 2.8 / len(values)
    for number, value in enumerate(values.tolist()):
        left = -0.2 + number * width
        color = _BODY if value >= 0 else _ARM
        sheet.box((left, min(value, 0.0)), (left + 0.8 * width, max(value, 0.0)), color)
    sheet.line([(-0.3, 0.0), (2.7, 0.0)], 0.01, _INK)
    return sheet.picture()


# Keys are names of position arrays that must all exist; hence ("x", "theta") must come before ("theta",).
_BODIES: dict[tuple[str, ...], Callable[..., np.ndarray]] = {
    ("x", "theta"): _cart_pole,
    ("joint_angle1", "joint_angle2"): _acrobot,
    ("theta",): _pendulum,
    ("position",): _mountain_car,
}

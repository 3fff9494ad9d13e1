"""Draws several episodes, with captions, in the grid of one animation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evorl.episodes.saved_episode import SavedEpisode
from evorl.rendering.animation import frame_numbers

_PAPER, _INK, _GRAY = (255, 255, 255), (34, 38, 46), (140, 144, 150)
_LARGEST_LETTERS, _SMALLEST_LETTERS = 15, 8
_MARGIN = 4


@dataclasses.dataclass(frozen=True)
class Shown:
    """An episode of T steps with its renderer.

    Attributes:
        title: title of the episode.
        rewards: reward of each step, float ``[T]``.
        draw: function from the index of a step, 0 to T, to its image, uint8 ``[height, width, 3]``, of constant size.
        episode: arrays of the episode, possibly of more than T steps; ``None`` if only images were stored.
        is_whole: True if the episode ends after T steps; False if it is longer and only its first T steps are shown.
    """

    title: str
    rewards: np.ndarray
    draw: Callable[[int], np.ndarray]
    episode: SavedEpisode | None = None
    is_whole: bool = True

    @property
    def length(self) -> int:
        """Number of steps T."""
        return len(self.rewards)

    def caption(self, moment: int) -> str:
        """Return the caption at step ``moment``, 0 to T: the title, the step, and the undiscounted return so far."""
        end = " (end)" if moment == self.length and self.is_whole else ""
        return f"{self.title}  step {moment}{end}  return {figures(self.rewards[:moment].sum())}"

    def first(self, num_steps: int) -> Shown:
        """Return this episode, shown for its first ``num_steps`` steps only."""
        is_whole = self.is_whole and self.length <= num_steps
        return dataclasses.replace(self, rewards=self.rewards[:num_steps], is_whole=is_whole)


def moments_of(shown: Sequence[Shown], num_frames: int) -> np.ndarray:
    """Return up to ``num_frames`` evenly spaced steps to draw, from 0 to the length of the longest episode."""
    return frame_numbers(max(each.length for each in shown) + 1, num_frames)


def picture_grid(shown: Sequence[Shown], num_frames: int) -> np.ndarray:
    """Draw all episodes at the same K steps, uint8 ``[K, height, width, 3]`` with even height and width.

    Args:
        shown: episodes to draw, at least one; after its end, an episode keeps showing its last step.
        num_frames: maximum of K.
    """
    columns = len(shown) if len(shown) <= 3 else math.ceil(math.sqrt(len(shown)))
    first = [each.draw(0) for each in shown]
    height, width = max(x.shape[0] for x in first), max(x.shape[1] for x in first)
    longest = [each.caption(each.length) for each in shown]
    font, band = _font_for(longest, width)
    rows = math.ceil(len(shown) / columns)
    tile = height + band + _MARGIN, width + _MARGIN
    size = [
        2 * math.ceil((number * extent + _MARGIN) / 2) for number, extent in zip((rows, columns), tile, strict=True)
    ]
    still: dict[int, np.ndarray] = {}  # last tiles of ended episodes
    frames = []
    for moment in moments_of(shown, num_frames):
        sheet = np.empty((*size, 3), np.uint8)
        sheet[:] = _PAPER
        for number, each in enumerate(shown):
            if number not in still:
                at = min(int(moment), each.length)
                drawn = _tile(each, at, (height, width), font, band)
                if at == each.length:
                    still[number] = drawn
            else:
                drawn = still[number]
            top, left = _MARGIN + number // columns * tile[0], _MARGIN + number % columns * tile[1]
            sheet[top : top + drawn.shape[0], left : left + drawn.shape[1]] = drawn
        frames.append(sheet)
    return np.stack(frames)


def _tile(each: Shown, moment: int, size: tuple[int, int], font: Any, band: int) -> np.ndarray:
    from PIL import Image, ImageDraw

    height, width = size
    image = Image.new("RGB", (width, band + height), _PAPER)
    color = _GRAY if moment == each.length and each.is_whole else _INK
    ImageDraw.Draw(image).text((1, 1), each.caption(moment), fill=color, font=font)
    picture = Image.fromarray(np.ascontiguousarray(each.draw(moment)))
    image.paste(picture, ((width - picture.width) // 2, band + (height - picture.height) // 2))
    return np.asarray(image)


def _font_for(captions: Sequence[str], width: int) -> tuple[Any, int]:
    """Return the largest font, within limits, in which every caption fits the width in pixels; and the line height."""
    from PIL import ImageFont

    size = _LARGEST_LETTERS
    font = ImageFont.load_default(size)
    while size > _SMALLEST_LETTERS and max(font.getlength(text) for text in captions) > width - 2:
        size -= 1
        font = ImageFont.load_default(size)
    return font, size + 5


def figures(value: float) -> str:
    """Format a number with one decimal, or with three if its absolute value is between 0 and 1."""
    return f"{value:.3f}" if 0 < abs(value) < 1 else f"{value:.1f}"

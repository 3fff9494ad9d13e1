"""Pictures of games, made small: a part of them, in grey, with fewer pixels. Needs numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GREY = np.array([0.299, 0.587, 0.114])  # how bright red, green and blue look (ITU-R BT.601)


def small_frame(
    frame: np.ndarray, size: int | None = 84, grey: bool = True, crop: Sequence[int] | None = None
) -> np.ndarray:
    """A picture as an agent sees it.

    Args:
        frame: ``[height, width, channels]`` or ``[height, width]``, 0 to 255.
        size: height and width of the result; ``None`` leaves them.
        grey: whether colours are made one channel.
        crop: ``[top, left, height, width]`` of the part that is seen; ``None`` for all of it.

    Returns:
        ``[size, size, channels]``, uint8: each pixel the mean of those it stands for.
    """
    pixels = np.asarray(frame, np.float32)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if crop is not None:
        top, left, height, width = crop
        pixels = pixels[top : top + height, left : left + width]
    if grey and pixels.shape[-1] == 3:
        pixels = (pixels @ _GREY)[..., None]
    if size is not None:
        pixels = _resized(_resized(pixels, size, 0), size, 1)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def _resized(pixels: np.ndarray, size: int, axis: int) -> np.ndarray:
    """An axis with ``size`` entries: means of what falls together where there are fewer, the nearest where more."""
    length = pixels.shape[axis]
    if length < size:
        return np.take(pixels, np.arange(size) * length // size, axis=axis)
    starts = np.arange(size + 1) * length // size
    return np.add.reduceat(pixels, starts[:-1], axis=axis) / _along(np.diff(starts), axis, pixels.ndim)


def _along(numbers: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    return numbers.reshape([-1 if each == axis else 1 for each in range(ndim)])

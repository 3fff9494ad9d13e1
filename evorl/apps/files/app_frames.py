"""Preprocessing of image observations: crop, grayscale, resize. Requires numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GRAY = np.array([0.299, 0.587, 0.114])  # luma coefficients of red, green and blue (ITU-R BT.601)


def small_frame(
    frame: np.ndarray, size: int | None = 84, grey: bool = True, crop: Sequence[int] | None = None
) -> np.ndarray:
    """Crop, convert to grayscale and resize a frame.

    Args:
        frame: ``[height, width, channels]`` or ``[height, width]``, 0 to 255.
        size: height and width of the result; ``None`` keeps the size of the crop.
        grey: True to convert frames of three channels to one; other frames keep their channels.
        crop: ``[top, left, height, width]`` of the region to keep; ``None`` keeps the whole frame.

    Returns:
        uint8 ``[height, width, channels]``. Shrinking averages the covered pixels, enlarging repeats the nearest one.
    """
    pixels = np.asarray(frame, np.float32)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if crop is not None:
        top, left, height, width = crop
        if min(crop) < 0 or top + height > len(pixels) or left + width > pixels.shape[1]:
            raise ValueError(f"crop, [top, left, height, width], is {[*crop]}, beyond the frame {[*pixels.shape[:2]]}")
        pixels = pixels[top : top + height, left : left + width]
    if grey and pixels.shape[-1] == 3:
        pixels = (pixels @ _GRAY)[..., None]
    if size is not None:
        pixels = _resized(_resized(pixels, size, 0), size, 1)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def _resized(pixels: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Resize one axis to ``size`` entries: area mean when shrinking, nearest neighbor when enlarging."""
    length = pixels.shape[axis]
    if length < size:
        return np.take(pixels, np.arange(size) * length // size, axis=axis)
    starts = np.arange(size + 1) * length // size
    sizes = np.diff(starts).reshape([-1 if each == axis else 1 for each in range(pixels.ndim)])
    return np.add.reduceat(pixels, starts[:-1], axis=axis) / sizes

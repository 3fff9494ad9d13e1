"""Resized frames."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.apps.files.app_frames import small_frame
from tests.support.errors import raises_naming


def test_pixels_are_means_of_what_they_stand_for() -> None:
    frame = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert small_frame(frame, size=2)[..., 0].tolist() == [[2, 4], [10, 12]]  # 2.5 and 4.5, rounded to even
    assert small_frame(frame, size=8).shape == (8, 8, 1)
    assert small_frame(frame, size=None)[..., 0].tolist() == frame.tolist()


def test_a_part_of_it_in_grey() -> None:
    frame = np.zeros((210, 160, 3), np.uint8)
    frame[34:194] = (255, 0, 0)
    small = small_frame(frame, size=42, crop=[34, 0, 160, 160])
    assert small.shape == (42, 42, 1)
    assert small.dtype == np.uint8
    assert np.unique(small).tolist() == [76]  # 0.299 of 255
    assert small_frame(frame, size=42, grey=False).shape == (42, 42, 3)


@pytest.mark.parametrize("crop", [[34, 0, 194, 160], [0, 1, 210, 160], [210, 0, 1, 1], [-10, 0, 20, 20], [0, -1, 1, 1]])
def test_a_crop_outside_of_the_frame_is_rejected(crop: list[int]) -> None:
    with raises_naming(ValueError, str(crop), "210"):
        small_frame(np.zeros((210, 160, 3), np.uint8), crop=crop)

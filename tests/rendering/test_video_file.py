"""Video files contain every frame in its place, for the requested duration."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest

from evorl.rendering.animation import write_animation
from evorl.rendering.video_file import require_encoder
from tests.support.errors import raises_naming
from tests.support.optional_packages import need

COLORS = np.array([[220, 30, 30], [30, 200, 30], [30, 30, 220], [240, 240, 240]], np.uint8)


@pytest.mark.skipif(importlib.util.find_spec("av") is not None, reason="PyAV is installed")
def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    with raises_naming(ImportError, "format=mp4", "pip install av"):
        require_encoder()
    with raises_naming(ImportError, "pip install av"):
        write_animation(tmp_path / "a.mp4", np.zeros((2, 16, 16, 3), np.uint8))
    assert not list(tmp_path.iterdir())


def test_every_picture_is_in_the_film(tmp_path: Path) -> None:
    need("av", "video")
    import av

    frames = np.broadcast_to(COLORS[:, None, None], (4, 33, 49, 3))
    write_animation(tmp_path / "film.mp4", frames, seconds_per_frame=0.25)
    with av.open(io.BytesIO((tmp_path / "film.mp4").read_bytes())) as container:
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.duration is not None
        assert container.duration / av.time_base == pytest.approx(1.0, abs=0.01)
    assert [picture.shape for picture in decoded] == [(32, 48, 3)] * 4
    for picture, color in zip(decoded, COLORS, strict=True):
        assert np.abs(picture.astype(int) - color).max() < 30

"""Encodes videos as H.264 in MP4 with PyAV, an optional package that is imported when needed."""

from __future__ import annotations

import fractions
import io
from typing import Any

import numpy as np

from evorl.config.names import explain_missing_package

_QUALITY = "23"  # H.264's constant rate factor, libx264's default


def require_encoder() -> None:
    """Raise ``ImportError``, whose message has the install command, if PyAV is not installed."""
    _av()


def encoded(frames: np.ndarray, seconds_per_frame: float) -> bytes:
    """Encode a video as the bytes of an MP4 file.

    Args:
        frames: uint8 ``[K, height, width, 3]``; with an odd height or width, the last row or column is dropped.
        seconds_per_frame: duration of each frame, in seconds.

    Raises:
        ImportError: PyAV is not installed.
    """
    av = _av()
    height, width = (2 * (extent // 2) for extent in frames.shape[1:3])
    file = io.BytesIO()
    rate = fractions.Fraction(1 / seconds_per_frame).limit_denominator(1000)
    with av.open(file, mode="w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=rate, options={"crf": _QUALITY})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return file.getvalue()


def _av() -> Any:
    with explain_missing_package("videos (format=mp4)", "av"):
        import av
    return av

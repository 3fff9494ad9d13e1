"""Moving pictures as films: H.264 in MP4, by PyAV, which is imported when a film is asked for."""

from __future__ import annotations

import fractions
import io
from typing import Any

import numpy as np

from evorl.config.names import missing_in_words

_QUALITY = "23"  # H.264's constant rate factor: the usual one


def require_encoder() -> None:
    """Raises ``ImportError``, with what to install, where there is nothing that writes films."""
    _av()


def encoded(frames: np.ndarray, seconds_per_frame: float) -> bytes:
    """A film as the bytes of an MP4 file.

    Args:
        frames: uint8 ``[K, height, width, 3]``; a last row or column that makes an odd number is left out.
        seconds_per_frame: how long each is seen.

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
    with missing_in_words("films (format=mp4)", "av"):
        import av
    return av

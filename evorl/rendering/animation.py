"""Renders the MuJoCo bodies of saved episodes, and encodes images as animations."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from evorl.envs.env import Env
from evorl.envs.mujoco_frames import IMAGE_SIZE, BodyRenderer
from evorl.episodes.physics import physics_in
from evorl.episodes.saved_episode import SavedEpisode
from evorl.rendering.video_file import encoded as encoded_video
from evorl.rendering.video_file import require_encoder
from evorl.runs.files import make_folder, write_atomically, writing_to

MAX_FRAMES = 50
SECONDS_PER_FRAME = 0.06
_KINDS = {".gif": "GIF", ".webp": "WEBP", ".png": "PNG"}


def frame_numbers(num_moments: int, num_frames: int = MAX_FRAMES) -> np.ndarray:
    """Return up to ``num_frames`` evenly spaced indices, from 0 to ``num_moments - 1``; only 0 for one frame."""
    return np.unique(np.linspace(0, num_moments - 1, min(num_moments, num_frames)).round().astype(np.int64))


def frames_of(episode: SavedEpisode, env: Env, num_frames: int = MAX_FRAMES, size: int = IMAGE_SIZE) -> np.ndarray:
    """Render an episode's MuJoCo bodies at K evenly spaced steps, uint8 ``[K, size, size, 3]``.

    Args:
        episode: an episode with recorded MuJoCo positions and velocities.
        env: an environment with the model of the episode; only the model is used.
        num_frames: maximum of K, see ``frame_numbers``.
        size: width and height, in pixels.

    Raises:
        ValueError: the episode has no positions and velocities, or they do not match the environment's model.
        HostEnvError: no graphics library works.
    """
    qpos, qvel = physics_in(episode, env)
    renderer = BodyRenderer(env.mujoco_model, size)
    try:
        return np.stack([renderer.frame_of(qpos[i], qvel[i]) for i in frame_numbers(len(qpos), num_frames)])
    finally:
        renderer.close()


def checked_path(path: Path | str) -> Path:
    """Check the path of an animation before it is rendered, and return it; see ``write_animation`` for errors."""
    path = Path(path)
    if path.suffix.lower() == ".mp4":
        require_encoder()
    elif path.suffix.lower() not in _KINDS:
        raise ValueError(f"an animation must be a .gif, .webp, .png or .mp4 file, got {path.name}.")
    return path


def write_animation(
    path: Path | str, frames: np.ndarray, seconds_per_frame: float = SECONDS_PER_FRAME, lossless: bool = True
) -> None:
    """Write images uint8 ``[K, height, width, 3]`` as an animation in the format of the file extension.

    Each image of a GIF is quantized to its best 256 colors, and shown for at least 0.02 s. An MP4 loses the last row or
    column of an odd size.

    Args:
        path: output file; its folder is created.
        frames: the images.
        seconds_per_frame: average duration of a frame, in seconds.
        lossless: write a lossless WebP, several times as large as a lossy one; ignored for other formats.

    Raises:
        ValueError: the file extension is not .gif, .webp, .png or .mp4.
        ImportError: the extension is .mp4, and no video encoder is installed.
        RunFolderError: the file cannot be written.
    """
    path = checked_path(path)
    if path.suffix.lower() == ".mp4":
        encoded = encoded_video(frames, seconds_per_frame)
    else:
        encoded = animation_bytes(frames, _KINDS[path.suffix.lower()], seconds_per_frame, lossless)
    with writing_to(path.parent):
        make_folder(path.parent)
        write_atomically(path, encoded)


def animation_bytes(
    frames: np.ndarray, kind: str, seconds_per_frame: float = SECONDS_PER_FRAME, lossless: bool = False
) -> bytes:
    """Encode a looping animation as the bytes of a file.

    Args:
        frames: images uint8 ``[K, height, width, 3]``.
        kind: ``GIF``, ``WEBP`` or ``PNG``.
        seconds_per_frame: average duration of a frame, in seconds.
        lossless: encode a lossless WebP; ignored for other formats.
    """
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    if kind == "GIF":
        pictures = [picture.quantize(256, dither=Image.Dither.NONE) for picture in pictures]
    options: dict[str, Any] = {"lossless": lossless, "quality": 60, "minimize_size": True} if kind == "WEBP" else {}
    file = io.BytesIO()
    # The unit of GIF is 10 ms, and browsers slow down frames that are shorter than 20 ms.
    unit, duration = (10, max(1000 * seconds_per_frame, 20)) if kind == "GIF" else (1, 1000 * seconds_per_frame)
    durations = (unit * np.diff(np.round(np.arange(len(frames) + 1) * duration / unit))).astype(int).tolist()
    pictures[0].save(
        file, format=kind, save_all=True, append_images=pictures[1:], duration=durations, loop=0, **options
    )
    return file.getvalue()

"""Saved episodes as moving pictures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from evorl.config.names import load
from evorl.envs.env import Env
from evorl.envs.mujoco_frames import IMAGE_SIZE, BodyRenderer
from evorl.runs.files import make_folder, open_to_write, writing_to
from evorl.runs.saved_episode import SavedEpisode

PHYSICS = (("qpos", "qvel"), ("q", "qd"))  # MuJoCo's names, and brax's, of positions and velocities
MOST_FRAMES = 50
SECONDS_PER_FRAME = 0.06
_KINDS = {".gif": "GIF", ".webp": "WEBP", ".png": "PNG"}


def physics_of(episode: SavedEpisode) -> tuple[np.ndarray, np.ndarray] | None:
    """Positions ``[T + 1, nq]`` and velocities ``[T + 1, nv]`` of an episode's bodies; ``None`` where it has none."""
    arrays = episode.arrays
    return next(((arrays[q], arrays[v]) for q, v in PHYSICS if q in arrays and v in arrays), None)


def frame_numbers(num_moments: int, num_frames: int = MOST_FRAMES) -> np.ndarray:
    """Which of so many moments are shown, the first and the last among them: all, or so many at equal distances."""
    return np.unique(np.linspace(0, num_moments - 1, min(num_moments, num_frames)).round().astype(np.int64))


def physics_in(episode: SavedEpisode, env: Env) -> tuple[np.ndarray, np.ndarray]:
    """Positions and velocities of an episode's bodies, which are those of the environment's model.

    Raises:
        ValueError: the episode has none, or they are not; in words.
    """
    physics, model = physics_of(episode), env.mujoco_model
    if physics is None or model is None:
        raise ValueError(
            "Only episodes of bodies that MuJoCo's models describe can be replayed (brax, host, Gymnasium's MuJoCo "
            "environments); this one has no positions of bodies."
        )
    qpos, qvel = physics
    if qpos.shape[1:] != (model.nq,) or qvel.shape[1:] != (model.nv,):
        raise ValueError(
            f"The episode has {qpos.shape[1]} coordinates and {qvel.shape[1]} velocities, and the model of its "
            f"environment {model.nq} and {model.nv}: it was saved with another version of it."
        )
    return qpos, qvel


def frames_of(episode: SavedEpisode, env: Env, num_frames: int = MOST_FRAMES, size: int = IMAGE_SIZE) -> np.ndarray:
    """Pictures of an episode's bodies, uint8 ``[K, size, size, 3]``.

    Args:
        episode: with physics.
        env: an environment like that it was played in, of which only the model is looked at.
        num_frames: K at most, see ``frame_numbers``.
        size: width and height, in pixels.

    Raises:
        ValueError: the episode has no physics, or they are not those of the environment's model; in words.
        HostEnvError: nothing here can draw.
    """
    qpos, qvel = physics_in(episode, env)
    renderer = BodyRenderer(env.mujoco_model, size)
    try:
        return np.stack([renderer.frame_of(qpos[i], qvel[i]) for i in frame_numbers(len(qpos), num_frames)])
    finally:
        renderer.close()


def write_animation(
    path: Path | str, frames: np.ndarray, seconds_per_frame: float = SECONDS_PER_FRAME, lossless: bool = True
) -> None:
    """Write pictures uint8 ``[K, height, width, 3]`` as an animation, a GIF or what else the name ends with.

    Each picture of a GIF has the 256 colours that fit it best. An MP4 is a film, for which height and width are even.

    Args:
        path: of the file; its folder is made.
        frames: the pictures.
        seconds_per_frame: how long each is seen.
        lossless: whether a WebP keeps every pixel, which makes it several times as large.

    Raises:
        ValueError: the name ends with a format that has no animations.
        ImportError: it is .mp4, and what writes films is not installed.
        RunFolderError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() == ".mp4":
        encoded = load("evorl.rendering.video_file:encoded")(frames, seconds_per_frame)
    elif path.suffix.lower() in _KINDS:
        encoded = animation_bytes(frames, _KINDS[path.suffix.lower()], seconds_per_frame, lossless)
    else:
        raise ValueError(f"An animation is a .gif, .webp, .png or .mp4, got {path.name}.")
    with writing_to(path.parent):
        make_folder(path.parent)
        with open_to_write(path, "wb") as file:
            file.write(encoded)


def animation_bytes(
    frames: np.ndarray, kind: str, seconds_per_frame: float = SECONDS_PER_FRAME, lossless: bool = False
) -> bytes:
    """An animation that repeats itself, as the bytes of a file.

    Args:
        frames: pictures uint8 ``[K, height, width, 3]``.
        kind: ``GIF``, ``WEBP`` or ``PNG``.
        seconds_per_frame: how long each is seen.
        lossless: whether a WebP keeps every pixel.
    """
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    if kind == "GIF":
        pictures = [picture.quantize(256, dither=Image.Dither.NONE) for picture in pictures]
    options: dict[str, Any] = {"lossless": lossless, "quality": 60} if kind == "WEBP" else {}
    file = io.BytesIO()
    duration = round(1000 * seconds_per_frame)
    pictures[0].save(file, format=kind, save_all=True, append_images=pictures[1:], duration=duration, loop=0, **options)
    return file.getvalue()

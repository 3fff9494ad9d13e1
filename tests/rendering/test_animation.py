"""Saved episodes as animations."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evorl.envs import create_env
from evorl.episodes.saved_episode import SavedEpisode
from evorl.rendering.animation import animation_bytes, frame_numbers, frames_of, write_animation
from tests.support.errors import raises_naming

FRAMES = np.random.default_rng(0).integers(0, 256, (5, 24, 24, 3)).astype(np.uint8) // 64 * 64  # few colors
# Runs in a separate process, where MuJoCo is imported only after its renderer was chosen.
REPLAY = """
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from evorl.cli.show_episode import show_episode_from_arguments
from evorl.envs.host.host_vector_env import HostEnvError

path = Path(sys.argv[1])
try:
    gif = show_episode_from_arguments([f"episode={path}", "size=96", "frames=4"])
except HostEnvError as error:
    print("no picture:", error)
    sys.exit()

import mujoco
from evorl.envs.mujoco import make_mujoco_simulators
from evorl.envs.mujoco_frames import BodyRenderer
from evorl.rendering.animation import frame_numbers

renderer = BodyRenderer(make_mujoco_simulators("halfcheetah", 1).mujoco_model, 96)
with np.load(path) as stored, Image.open(gif) as animation:
    numbers = frame_numbers(len(stored["qpos"]), 4)
    assert animation.n_frames == len(numbers) == 4
    for k, number in enumerate(numbers):
        animation.seek(k)
        drawn = renderer.frame_of(stored["qpos"][number], stored["qvel"][number])
        expected = Image.fromarray(drawn).quantize(256, dither=Image.Dither.NONE).convert("RGB")
        assert (np.asarray(animation.convert("RGB")) == np.asarray(expected)).all()
        assert np.abs(np.asarray(expected, int) - drawn).mean() < 4  # and those 256 colors fit well
renderer.close()
print("equal")
"""


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png"])
def test_every_frame_is_in_the_animation(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"animation{suffix}"
    write_animation(path, FRAMES)
    with Image.open(path) as animation:
        assert animation.n_frames == len(FRAMES)
        for k, frame in enumerate(FRAMES):
            animation.seek(k)
            np.testing.assert_array_equal(np.asarray(animation.convert("RGB")), frame)


@pytest.mark.parametrize(
    ("kind", "fps", "durations"),
    [("GIF", 30, {30, 40}), ("GIF", 60, {20}), ("GIF", 100, {20}), ("WEBP", 30, {33, 34}), ("PNG", 100, {10})],
)
@pytest.mark.parametrize("repeats", [1, 2])
def test_browsers_play_an_animation_at_its_rate(kind: str, fps: int, durations: set[int], repeats: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (30 // repeats, 8, 8, 3), np.uint8).repeat(repeats, axis=0)
    total = 0
    with Image.open(io.BytesIO(animation_bytes(frames, kind, 1 / fps, lossless=True))) as animation:
        for k in range(animation.n_frames):
            animation.seek(k)
            animation.load()
            total += animation.info["duration"]
            assert repeats > 1 or animation.info["duration"] in durations
    assert total == pytest.approx(30 * 1000 / min(fps, 50 if kind == "GIF" else 100), abs=1)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with raises_naming(ValueError, ".gif, .webp, .png or .mp4", "a.avi"):
        write_animation(tmp_path / "a.avi", FRAMES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("moments", "frames", "expected"), [(4, 50, [0, 1, 2, 3]), (101, 5, [0, 25, 50, 75, 100])])
def test_the_first_and_the_last_moment_are_shown(moments: int, frames: int, expected: list[int]) -> None:
    assert frame_numbers(moments, frames).tolist() == expected


def test_an_episode_without_bodies_has_no_frames() -> None:
    plain = SavedEpisode({}, {"obs": np.zeros((3, 4))})
    with raises_naming(ValueError, "positions of bodies"):
        frames_of(plain, create_env("gymnax/CartPole-v1"))


def test_frame_k_is_the_picture_of_position_k(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"qpos": rng.uniform(-0.3, 0.3, (9, 9)), "qvel": np.zeros((9, 9))}
    about = {"env": {"library": "host", "name": "halfcheetah"}, "length": 8, "return": 1.0}
    SavedEpisode(about, arrays).save(tmp_path / "episode")
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(tmp_path / "episode.npz")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("equal\n") or "apt-get install libegl1" in done.stdout

"""Rendered images of bodies, or the reason for their absence."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from evorl.envs import mujoco_frames
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.mujoco import make_mujoco_simulators
from evorl.envs.mujoco_frames import BodyRenderer, draw_without_screen


@pytest.mark.usefixtures("few_objects")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # MuJoCo, after a failed creation
def test_a_picture_shows_where_bodies_are_or_the_reason_names_packages() -> None:
    model = make_mujoco_simulators("inverted_pendulum", 1).mujoco_model
    upright, tilted = np.zeros(model.nq), np.array([0.0, 0.8])
    renderer, reason = None, ""
    try:
        renderer = BodyRenderer(model, size=64)
    except HostEnvError as error:
        reason = str(error)
    gc.collect()
    if renderer is None:  # no renderer on this machine
        assert all(text in reason for text in ("MuJoCo cannot draw", "MUJOCO_GL=egl", "apt-get install libegl1"))
        return
    first, other, again = (renderer.frame_of(qpos, np.zeros(model.nv)) for qpos in (upright, tilted, upright))
    renderer.close()
    assert (first.shape, first.dtype) == ((64, 64, 3), np.uint8)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize(
    ("installed", "before", "chosen"),
    [
        (("EGL", "OSMesa"), {}, "egl"),
        (("OSMesa",), {}, "osmesa"),
        ((), {}, None),
        (("EGL",), {"MUJOCO_GL": "glfw"}, "glfw"),
        (("EGL",), {"DISPLAY": ":0"}, None),
    ],
)
def test_without_a_screen_another_library_draws(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], before: dict[str, str], chosen: str | None
) -> None:
    environ = dict(before)
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(mujoco_frames.ctypes.util, "find_library", lambda name: name if name in installed else None)
    draw_without_screen()
    assert environ.get("MUJOCO_GL") == chosen


def test_a_library_that_is_not_here_is_told_in_words() -> None:
    """A missing rendering library, which MuJoCo loads at import, causes a readable error."""
    code = (
        "import ctypes.util\nfrom evorl.envs import mujoco_frames\n"
        "try:\n    mujoco_frames.draw_without_screen()\nexcept OSError as error:\n    print(error)\n"
        "print(ctypes.util.find_library('OSMesa'))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    environ["MUJOCO_GL"] = "osmesa"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert "MuJoCo cannot draw anything here" in done.stdout or "libOSMesa" in done.stdout

"""Pictures of bodies that MuJoCo simulates, or that its model describes: brax's too."""

from __future__ import annotations

import ctypes.util
import os
import sys
from typing import Any

import numpy as np

from evorl.envs.host.host_vector_env import HostEnvError

IMAGE_SIZE = 480
_DISTANCE = 4.0  # of the camera from the first body, in metres; smaller models are seen from as far as they reach
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # that draw without a screen


class BodyRenderer:
    """Draws a model from a camera that follows its first body.

    Args:
        model: a ``mujoco.MjModel``.
        size: width and height of pictures, in pixels.

    Raises:
        HostEnvError: nothing here can draw; in words.
    """

    def __init__(self, model: Any, size: int = IMAGE_SIZE) -> None:
        self._model, self._name = model, model.names.split(b"\0", 1)[0].decode() or "this model"
        try:
            import mujoco as engine

            mujoco: Any = engine  # its names come from compiled modules, which a type checker does not see
            self._renderer = mujoco.Renderer(model, size, size)
        except Exception as error:  # of several graphics libraries, each with errors of its own
            raise self._failed(error) from error
        self._mujoco, self._data = mujoco, mujoco.MjData(model)
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid, camera.elevation = 1, -20.0
        camera.distance = min(_DISTANCE, float(model.stat.extent))
        self._camera = camera

    def frame(self, data: Any) -> np.ndarray:
        """A picture of a ``mujoco.MjData`` that is up to date, uint8 ``[size, size, 3]``.

        Raises:
            HostEnvError: it cannot be drawn.
        """
        try:
            self._renderer.update_scene(data, self._camera)
            return self._renderer.render().copy()
        except Exception as error:
            raise self._failed(error) from error

    def frame_of(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """A picture of bodies with these coordinates ``[nq]`` and velocities ``[nv]``."""
        self._data.qpos[:], self._data.qvel[:] = qpos, qvel
        self._mujoco.mj_forward(self._model, self._data)
        return self.frame(self._data)

    def close(self) -> None:
        """Give back what the graphics library holds."""
        self._renderer.close()

    def _failed(self, error: Exception) -> HostEnvError:
        return HostEnvError(
            f"MuJoCo cannot draw {self._name} here ({type(error).__name__}: {error}). Without a screen set "
            "MUJOCO_GL=egl or MUJOCO_GL=osmesa, and install that library: on Debian and Ubuntu apt-get install libegl1 "
            "libegl-mesa0, or libosmesa6."
        )


def draw_without_screen() -> None:
    """Let MuJoCo draw by a library that needs no screen, where there is none; to be called before it is imported.

    ``MUJOCO_GL`` wins, if it is set.
    """
    has_screen = not sys.platform.startswith("linux") or os.environ.get("DISPLAY")
    if has_screen or "MUJOCO_GL" in os.environ:
        return
    for name, library in _LIBRARIES.items():
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return

"""Pictures of bodies that MuJoCo simulates, or that its model describes: brax's too."""

from __future__ import annotations

import ctypes.util
import importlib
import os
import sys
import warnings
from typing import Any

import numpy as np

from evorl.envs.host.host_vector_env import HostEnvError

IMAGE_SIZE = 480
_DISTANCE = 4.0  # of the camera from the first body, in metres; smaller models are seen from as far as they reach
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # that draw without a screen
_NO_WINDOW = r"\((65537|65550)\)"  # not initialized, no display


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
            if mujoco.GLContext.__module__.endswith("glfw") and not _has_screen():
                raise RuntimeError("there is no screen")
            with warnings.catch_warnings():
                # A screen that cannot be reached: GLFW only warns, and MuJoCo would end the process.
                warnings.filterwarnings("error", message=_NO_WINDOW)
                self._renderer = mujoco.Renderer(model, size, size)
        except Exception as error:  # of several graphics libraries, each with errors of its own
            raise _cannot_draw(self._name, error) from error
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
            raise _cannot_draw(self._name, error) from error

    def frame_of(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """A picture of bodies with these coordinates ``[nq]`` and velocities ``[nv]``."""
        self._data.qpos[:], self._data.qvel[:] = qpos, qvel
        self._mujoco.mj_forward(self._model, self._data)
        return self.frame(self._data)

    def close(self) -> None:
        """Give back what the graphics library holds."""
        self._renderer.close()


def draw_without_screen(is_needed: bool = True) -> None:
    """Import MuJoCo so that it draws by a library that needs no screen, where there is none.

    ``MUJOCO_GL`` wins, if it is set.

    Args:
        is_needed: whether MuJoCo draws. Otherwise MuJoCo is imported without a graphics library if the configured one
            cannot be loaded.

    Raises:
        HostEnvError: the graphics library is needed and cannot be loaded.
    """
    if not _has_screen() and "MUJOCO_GL" not in os.environ:
        found = [name for name, library in _LIBRARIES.items() if ctypes.util.find_library(library)]
        if found:
            os.environ["MUJOCO_GL"] = found[0]
    try:
        importlib.import_module("mujoco")
    except ImportError:
        raise
    except Exception as error:  # of the graphics library's Python side
        if is_needed:
            raise _cannot_draw("anything", error) from error
        os.environ["MUJOCO_GL"] = "disable"
        for name in [name for name in sys.modules if name.partition(".")[0] == "mujoco" and "._" not in name]:
            del sys.modules[name]  # half imported; its compiled parts are not imported twice
        importlib.import_module("mujoco")


def _has_screen() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in names)


def _cannot_draw(what: str, error: Exception) -> HostEnvError:
    return HostEnvError(
        f"MuJoCo cannot draw {what} here ({type(error).__name__}: {error}). Without a screen set MUJOCO_GL=egl or "
        "MUJOCO_GL=osmesa, and install that library: on Debian and Ubuntu apt-get install libegl1 libegl-mesa0, or "
        "libosmesa6."
    )

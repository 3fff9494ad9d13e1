"""Renders images of MuJoCo models, which also describe the bodies of brax environments."""

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
_DISTANCE = 4.0  # distance of the camera from the first body, in meters; smaller models use their extent
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # off-screen renderers
_NO_WINDOW = r"\((65537|65550)\)"  # not initialized, no display


class BodyRenderer:
    """Renders a model from a camera that follows its first body.

    Args:
        model: a ``mujoco.MjModel``.
        size: width and height of the images, in pixels.

    Raises:
        HostEnvError: no graphics library works; the message lists libraries to install.
    """

    def __init__(self, model: Any, size: int = IMAGE_SIZE) -> None:
        self._model, self._name = model, model.names.split(b"\0", 1)[0].decode() or "this model"
        try:
            import mujoco as engine

            mujoco: Any = engine  # its names come from compiled modules, which type checkers cannot see
            if mujoco.GLContext.__module__.endswith("glfw") and not _has_screen():
                raise RuntimeError("no display is available")
            with warnings.catch_warnings():
                # If the screen cannot be reached, GLFW only warns, and MuJoCo would exit the process.
                warnings.filterwarnings("error", message=_NO_WINDOW)
                self._renderer = mujoco.Renderer(model, size, size)
        except Exception as error:  # graphics libraries raise various types
            raise _cannot_draw(self._name, error) from error
        self._mujoco, self._data = mujoco, mujoco.MjData(model)
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid, camera.elevation = 1, -20.0
        camera.distance = min(_DISTANCE, float(model.stat.extent))
        self._camera = camera

    def frame(self, data: Any) -> np.ndarray:
        """Return an image, uint8 ``[size, size, 3]``, of ``MjData`` after ``mj_forward``, or raise ``HostEnvError``."""
        try:
            self._renderer.update_scene(data, self._camera)
            return self._renderer.render().copy()
        except Exception as error:
            raise _cannot_draw(self._name, error) from error

    def frame_of(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """Return an image of bodies at positions ``qpos`` ``[nq]`` with velocities ``qvel`` ``[nv]``; see ``frame``."""
        self._data.qpos[:], self._data.qvel[:] = qpos, qvel
        self._mujoco.mj_forward(self._model, self._data)
        return self.frame(self._data)

    def close(self) -> None:
        """Release the resources of the graphics library."""
        self._renderer.close()


def draw_without_screen(is_needed: bool = True) -> None:
    """Import MuJoCo; on a machine without a screen, choose an installed off-screen renderer, EGL or OSMesa.

    If the environment variable ``MUJOCO_GL`` is set, the renderer that it names is used.

    Args:
        is_needed: true if MuJoCo will render; if false, a graphics library that cannot be loaded is skipped.

    Raises:
        ImportError: MuJoCo is not installed.
        HostEnvError: the graphics library is needed and cannot be loaded.
    """
    if not _has_screen() and "MUJOCO_GL" not in os.environ:
        available = [name for name, library in _LIBRARIES.items() if ctypes.util.find_library(library)]
        if available:
            os.environ["MUJOCO_GL"] = available[0]
    try:
        importlib.import_module("mujoco")
    except ImportError:
        raise
    except Exception as error:  # raised by the Python bindings of the graphics library
        if is_needed:
            raise _cannot_draw("anything", error) from error
        os.environ["MUJOCO_GL"] = "disable"
        for name in [name for name in sys.modules if name.partition(".")[0] == "mujoco" and "._" not in name]:
            del sys.modules[name]  # partially imported; compiled modules cannot be imported twice
        importlib.import_module("mujoco")


def _has_screen() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in names)


def _cannot_draw(subject: str, error: Exception) -> HostEnvError:
    return HostEnvError(
        f"MuJoCo cannot draw {subject} here ({type(error).__name__}: {error}). Without a screen, set MUJOCO_GL=egl or "
        "MUJOCO_GL=osmesa, and install that library: on Debian and Ubuntu apt-get install libegl1 libegl-mesa0, or "
        "libosmesa6."
    )

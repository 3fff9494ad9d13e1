"""Shapes and poses of the bodies of MuJoCo models, for drawing them in replay pages."""

from __future__ import annotations

from typing import Any

import numpy as np

# MuJoCo's geometry types (mjtGeom).
KINDS = {0: "plane", 1: "box", 2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box", 7: "box"}
_BOUNDED = (1, 7)  # height fields and meshes: drawn as their bounding boxes
_HIDDEN_FROM_GROUP = 3  # MuJoCo draws groups 0 to 2; the others are collision geometry
_DEFAULT_COLOR = (0.5, 0.5, 0.5, 1.0)


def moving_bodies(model: Any) -> np.ndarray:
    """Return the ids of the bodies of a ``mujoco.MjModel`` that are not fixed to the world, int ``[M]``."""
    return np.flatnonzero(model.body_weldid != 0)


def shapes_of(model: Any) -> list[dict[str, Any]]:
    """Return the visible shapes of a ``mujoco.MjModel`` as JSON data.

    Returns:
        A dict per shape. ``kind`` is a value of ``KINDS``. ``size`` is half of the extent along each axis, in meters
        (capsule, cylinder: the radius twice, half of the straight length; plane: 0 along infinite axes, then the grid
        spacing). ``body`` is an index in ``moving_bodies``, or -1 for the world. ``pos`` and ``quat`` (w first) are in
        the frame of that body. ``color`` is RGBA, from 0 to 1. ``bounds`` is true if ``size`` is a bounding box.
    """
    indices = {int(body): index for index, body in enumerate(moving_bodies(model))}
    at_rest = _poses(model, model.qpos0)
    shapes = []
    for geom in range(model.ngeom):
        kind, color = int(model.geom_type[geom]), _color_of(model, geom)
        if kind not in KINDS or color[3] == 0 or model.geom_group[geom] >= _HIDDEN_FROM_GROUP:
            continue
        body = int(model.geom_bodyid[geom])
        pos, quat = np.array(model.geom_pos[geom]), np.array(model.geom_quat[geom])
        size, is_bound = _half_extent(model, geom, kind), kind in _BOUNDED
        if is_bound:
            pos = pos + _rotated(quat, model.geom_aabb[geom, :3])
        if body not in indices:  # fixed, so in the frame of the world
            pos = at_rest[body, :3] + _rotated(at_rest[body, 3:], pos)
            quat = _product(at_rest[body, 3:], quat)
        shapes.append(
            {
                "kind": KINDS[kind],
                "size": _rounded(size),
                "body": indices.get(body, -1),
                "pos": _rounded(pos),
                "quat": _rounded(quat),
                "color": _rounded(color),
                "bounds": is_bound,
            }
        )
    return shapes


def poses_of(model: Any, qpos: np.ndarray) -> np.ndarray:
    """Return position and quaternion (w first) of the moving bodies for each ``qpos`` ``[K, nq]``: ``[K, M, 7]``."""
    bodies = moving_bodies(model)
    return np.stack([_poses(model, row)[bodies] for row in qpos])


def _poses(model: Any, qpos: np.ndarray) -> np.ndarray:
    import mujoco as engine

    mujoco: Any = engine  # its names come from compiled modules, which type checkers cannot see
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    return np.concatenate([data.xpos, data.xquat], axis=1)


def _half_extent(model: Any, geom: int, kind: int) -> np.ndarray:
    if kind in _BOUNDED:
        return np.array(model.geom_aabb[geom, 3:])
    size = np.array(model.geom_size[geom])
    if KINDS[kind] == "sphere":
        return np.repeat(size[:1], 3)
    if KINDS[kind] in ("capsule", "cylinder"):
        return size[[0, 0, 1]]
    return size


def _color_of(model: Any, geom: int) -> np.ndarray:
    """Return the color of a shape, or of its material if the shape has the default color, as RGBA ``[4]``."""
    color, material = np.array(model.geom_rgba[geom], np.float64), int(model.geom_matid[geom])
    if material >= 0 and np.allclose(color, _DEFAULT_COLOR):
        color = np.array(model.mat_rgba[material], np.float64)
    return color


def _rotated(quat: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate a vector ``[3]`` by a quaternion ``[4]``, w first."""
    axis = quat[1:]
    return vector + 2 * np.cross(axis, np.cross(axis, vector) + quat[0] * vector)


def _product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the quaternion of the rotation by ``second``, then by ``first``."""
    scalar = first[0] * second[0] - first[1:] @ second[1:]
    vector = first[0] * second[1:] + second[0] * first[1:] + np.cross(first[1:], second[1:])
    return np.concatenate([[scalar], vector])


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in values]

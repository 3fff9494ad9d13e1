"""Shapes of MuJoCo's bodies for replay pages."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from evorl.envs.mujoco_shapes import moving_bodies, poses_of, shapes_of

XML = """
<mujoco>
  <asset><material name="red" rgba="1 0 0 1"/></asset>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="post" pos="1 0 0" quat="0.7071068 0 0 0.7071068">
      <geom type="box" size="0.1 0.2 0.3" pos="1 0 0"/>
      <body name="arm" pos="0 0 1">
        <joint type="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.05 0.4" material="red"/>
        <geom type="sphere" size="0.1" pos="0 0 1" rgba="0 1 0 0.5"/>
        <geom type="sphere" size="0.3" group="3"/>
        <geom type="sphere" size="0.2" rgba="0 0 0 0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(XML)


def test_shapes_that_can_be_seen(model: mujoco.MjModel) -> None:
    shapes = shapes_of(model)
    assert [shape["kind"] for shape in shapes] == ["plane", "box", "capsule", "sphere"]
    floor, box, capsule, sphere = shapes
    assert [shape["body"] for shape in shapes] == [-1, -1, 0, 0]
    # A static body, in the world frame: rotated by 90 degrees and shifted by one meter along the former x axis.
    np.testing.assert_allclose(box["pos"], [1, 1, 0], atol=1e-3)
    np.testing.assert_allclose(box["quat"], [0.7071, 0, 0, 0.7071], atol=1e-3)
    assert box["size"] == [0.1, 0.2, 0.3]
    assert capsule["size"] == [0.05, 0.05, 0.4]
    assert sphere["size"] == [0.1] * 3
    assert capsule["color"] == [1, 0, 0, 1]
    assert sphere["color"] == [0, 1, 0, 0.5]
    assert not any(shape["bounds"] for shape in shapes)
    assert floor["size"][:2] == [0, 0]


def test_poses_are_mujocos(model: mujoco.MjModel) -> None:
    qpos = np.linspace(-1.0, 1.0, 5)[:, None]
    poses = poses_of(model, qpos)
    assert poses.shape == (5, 1, 7)
    data = mujoco.MjData(model)
    for row, pose in zip(qpos, poses, strict=True):
        data.qpos[:] = row
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(pose[0], np.concatenate([data.xpos[2], data.xquat[2]]))
    assert moving_bodies(model).tolist() == [2]


def test_meshes_are_shown_as_the_boxes_around_them() -> None:
    points = "0 0 0  2 0 0  0 4 0  0 0 6"
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><asset><mesh name="wedge" vertex="{points}"/></asset>'
        '<worldbody><body><freejoint/><geom type="mesh" mesh="wedge"/></body></worldbody></mujoco>'
    )
    (shape,) = shapes_of(model)
    assert (shape["kind"], shape["bounds"]) == ("box", True)
    # The box contains every vertex, which MuJoCo stores in the mesh's own frame.
    corners = model.mesh_vert - model.geom_aabb[0, :3]
    assert (np.abs(corners) <= np.asarray(shape["size"]) + 1e-3).all()
    np.testing.assert_allclose(np.abs(corners).max(axis=0), shape["size"], atol=1e-3)

"""Contacts of capsules with planes equal MuJoCo's C engine in any orientation."""

from __future__ import annotations

import jax
import mujoco
import numpy as np
from mujoco import mjx
from mujoco.mjx._src import collision_driver

from evorl.envs.mjx_contacts import tangents_along_capsules

MODEL = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1" euler="5 -10 0"/>
    <body pos="0 0 0.3"><freejoint/><geom type="capsule" size="0.1 0.2"/></body>
    <body pos="1 0 0.3"><freejoint/><geom type="capsule" size="0.1 0.2"/></body>
  </worldbody>
</mujoco>
"""


def test_frames_and_forces_are_those_of_c() -> None:
    model = mujoco.MjModel.from_xml_string(MODEL)  # pyright: ignore[reportAttributeAccessIssue]
    data = mujoco.MjData(model)  # pyright: ignore[reportAttributeAccessIssue]
    ours = mjx.put_model(model, impl="jax")
    blank = mjx.make_data(model, impl="jax")

    @jax.jit
    def contacts(qpos: jax.Array, qvel: jax.Array):
        with tangents_along_capsules():
            found = mjx.forward(ours, blank.replace(qpos=qpos, qvel=qvel))
        return found.qacc, found._impl.contact

    rng = np.random.default_rng(0)
    steepest = []
    for _ in range(20):
        mujoco.mj_resetData(model, data)  # pyright: ignore[reportAttributeAccessIssue]
        turned = rng.normal(0, 0.3, (2, 4)) + np.array([1, 0, 0, 0])
        data.qpos[:] = np.concatenate([data.qpos.reshape(2, 7)[:, :3] - [0, 0, 0.05], turned], axis=1).ravel()
        data.qpos[:] = np.float32(data.qpos)
        data.qvel[:] = np.float32(rng.normal(size=12))
        mujoco.mj_forward(model, data)  # pyright: ignore[reportAttributeAccessIssue]
        qacc, contact = contacts(np.float32(data.qpos), np.float32(data.qvel))
        touching = np.asarray(contact.dist) < 0
        theirs = {tuple(g): f for g, f in zip(data.contact.geom, data.contact.frame)}
        for geoms, frame in zip(np.asarray(contact.geom)[touching], np.asarray(contact.frame)[touching]):
            np.testing.assert_allclose(frame.ravel(), theirs[tuple(geoms)], atol=1e-5)
            steepest.append(abs(frame[0] @ data.geom_xmat[geoms[1]].reshape(3, 3)[:, 2]))
        np.testing.assert_allclose(qacc, data.qacc, rtol=1e-3, atol=1e-2)
    assert max(steepest) > 0.95, "one stands"
    assert min(steepest) < 0.8, "one leans"


def test_mjx_is_itself_again_afterwards() -> None:
    before = dict(collision_driver._COLLISION_FUNC)
    with tangents_along_capsules():
        assert before != collision_driver._COLLISION_FUNC
    assert before == collision_driver._COLLISION_FUNC

"""Control the CartPole of MuJoCo Playground in MuJoCo, in a window or without one.

``python mujoco_cartpole.py policy.onnx`` opens the viewer; ``--headless`` runs without a screen, and ``--real-time``
keeps the rate of 50 Hz there, too.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from control_loop import ControlLoop, OnnxPolicy, Report

HZ = 50.0


def cartpole_model() -> mujoco.MjModel:
    """Return the model that Playground trains with."""
    from mujoco_playground._src import mjx_env
    from mujoco_playground._src.dm_control_suite import common

    path = mjx_env.ROOT_PATH / "dm_control_suite" / "xmls" / "cartpole.xml"
    return mujoco.MjModel.from_xml_string(path.read_text(), common.get_assets())


class Simulation:
    """A robot in MuJoCo: observations as in Playground's ``CartpoleBalance``, and torques.

    Args:
        model: the model.
        seed: seed of the initial pose.
        now: clock that observations are stamped with.
    """

    def __init__(self, model: mujoco.MjModel, seed: int = 0, now: Callable[[], float] = time.perf_counter) -> None:
        self.model, self.data = model, mujoco.MjData(model)
        rng = np.random.default_rng(seed)
        self.data.qpos[:] = rng.uniform(-1, 1, model.nq) * [0.1, 0.034]
        mujoco.mj_forward(model, self.data)
        self.now = now
        self.upright: list[float] = []

    def observe(self) -> tuple[np.ndarray, float]:
        """Return the position of the cart, the cosine and sine of the pole's angle, and both velocities."""
        pole = self.data.xmat[2:].reshape(-1, 3, 3)
        return np.concatenate([self.data.qpos[:1], pole[:, 2, 2], pole[:, 0, 2], self.data.qvel]), self.now()

    def send(self, action: np.ndarray) -> None:
        """Set the torque and simulate one period of control."""
        self.data.ctrl[:] = action
        for _ in range(round(1 / HZ / self.model.opt.timestep)):
            mujoco.mj_step(self.model, self.data)
        self.upright.append(float(self.data.xmat[2, 8]))


class VirtualClock:
    """A clock that only sleeping advances: the simulation runs as fast as possible, and never late."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Advance the time."""
        self.time += seconds


@contextlib.contextmanager
def window(simulation: Simulation) -> Iterator[Any]:
    """Show the simulation in MuJoCo's passive viewer; needs a screen."""
    import mujoco.viewer

    with mujoco.viewer.launch_passive(simulation.model, simulation.data) as viewer:
        send = simulation.send

        def send_and_show(action: np.ndarray) -> None:
            with viewer.lock():
                send(action)
            viewer.sync()
            if not viewer.is_running():
                raise KeyboardInterrupt

        simulation.send = send_and_show
        yield


def run(policy: Any, ticks: int, headless: bool = True, real_time: bool = False, seed: int = 0) -> tuple[Report, float]:
    """Control the pole; return the measurements, and the mean cosine of its angle, 1 if it is upright."""
    virtual = VirtualClock()
    clock: dict[str, Any] = {"now": virtual.now, "sleep": virtual.sleep} if headless and not real_time else {}
    simulation = Simulation(cartpole_model(), seed, clock.get("now", time.perf_counter))
    with contextlib.nullcontext() if headless else window(simulation):
        try:
            loop = ControlLoop(policy, simulation.observe, lambda a: simulation.send(a), np.zeros(1), hz=HZ, **clock)
            report = loop.run(ticks)
        except KeyboardInterrupt:  # the window was closed
            report = Report(stopped="closed")
    return report, float(np.mean(simulation.upright))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", type=Path)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--real-time", action="store_true")
    parser.add_argument("--ticks", type=int, default=500)
    options = parser.parse_args()
    report, upright = run(OnnxPolicy(options.policy), options.ticks, options.headless, options.real_time)
    print(f"{report.describe()}\nmean cosine of the pole's angle: {upright:.3f}")


if __name__ == "__main__":
    main()

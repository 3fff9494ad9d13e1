"""A ROS 2 node that runs an exported policy: joint states in, commands out, at 50 Hz.

``python3 ros2_node.py --ros-args -p policy:=policy.onnx`` in an environment of ROS 2 with NumPy and onnxruntime. The
logic is in ``PolicyBridge``, which does not use ROS and is tested without it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from control_loop import ControlLoop, OnnxPolicy, Report

HZ = 50.0


def cartpole_observation(positions: np.ndarray, velocities: np.ndarray) -> np.ndarray:
    """Return the observation of Playground's ``CartpoleBalance`` from the positions and velocities of both joints."""
    cart, angle = positions
    return np.array([cart, np.cos(angle), np.sin(angle), *velocities], np.float32)


class PolicyBridge:
    """Turns the latest joint states into observations, and actions into the message of a command.

    Args:
        policy: the policy.
        joints: names of the joints, in the order of the training.
        publish: publishes the numbers of a command.
        observation: returns the observation of the training from positions and velocities in the order of ``joints``.
        now: clock in seconds.
        options: options of ``ControlLoop``.

    Attributes:
        report: measurements of the loop.
    """

    def __init__(
        self,
        policy: Any,
        joints: Sequence[str],
        publish: Callable[[list[float]], None],
        observation: Callable[[np.ndarray, np.ndarray], np.ndarray] = cartpole_observation,
        *,
        now: Callable[[], float] = time.perf_counter,
        options: Mapping[str, Any] = {},
    ) -> None:
        self._joints, self._observation, self._now = list(joints), observation, now
        self._obs: np.ndarray | None = None
        self._measured_at = -float("inf")
        self._safe = np.clip(np.zeros(policy.low.shape), policy.low, policy.high)
        self._publish = lambda action: publish([float(x) for x in action])
        self._loop = ControlLoop(policy, self._observe, self._publish, self._safe, hz=HZ, now=now, **options)
        self.report = Report()

    def on_joint_states(self, names: Sequence[str], positions: Sequence[float], velocities: Sequence[float]) -> None:
        """Store a message; one without all joints is ignored, so that its age stops the robot."""
        order = {name: i for i, name in enumerate(names)}
        if not set(self._joints) <= order.keys() or not len(names) == len(positions) == len(velocities):
            return
        chosen = [order[name] for name in self._joints]
        self._obs = self._observation(np.asarray(positions)[chosen], np.asarray(velocities)[chosen])
        self._measured_at = self._now()

    def on_timer(self) -> bool:
        """Run one tick; return False after the watchdog stopped the robot."""
        if not self.report.stopped:
            self._loop.tick(self.report)
        if self.report.stopped:
            self._publish(self._safe)
        return not self.report.stopped

    def stop(self) -> None:
        """Publish the safe action."""
        self._publish(self._safe)

    def _observe(self) -> tuple[np.ndarray | None, float]:
        return self._obs, self._measured_at


def main() -> None:
    """Run the node until it is interrupted."""
    import rclpy
    from rclpy.node import Node
    from rclpy.qos import qos_profile_sensor_data
    from rclpy.signals import SignalHandlerOptions
    from sensor_msgs.msg import JointState
    from std_msgs.msg import Float64MultiArray

    # The handlers of rclpy would shut ROS down before the safe action is published.
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    for signum in (signal.SIGINT, signal.SIGTERM):  # a launcher may have started this process with SIGINT ignored
        signal.signal(signum, signal.default_int_handler)  # raises KeyboardInterrupt
    node = Node("evorl_policy")
    path = node.declare_parameter("policy", "policy.onnx").value
    joints = node.declare_parameter("joints", ["slider", "hinge_1"]).value
    commands = node.create_publisher(Float64MultiArray, "/effort_controller/commands", 1)
    bridge = PolicyBridge(OnnxPolicy(path), joints, lambda action: commands.publish(Float64MultiArray(data=action)))

    def on_joint_states(message: JointState) -> None:
        bridge.on_joint_states(message.name, message.position, message.velocity)

    node.create_subscription(JointState, "/joint_states", on_joint_states, qos_profile_sensor_data)
    node.create_timer(1.0 / HZ, bridge.on_timer)
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        bridge.stop()
        node.get_logger().info(bridge.report.describe())
        node.destroy_node()
        rclpy.shutdown()


if __name__ == "__main__":
    main()

"""The node of ``examples/robot`` for ROS 2, with a replacement for rclpy."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.examples.test_robot import Clock, Policy
from tests.support.errors import assert_names


def test_the_node_acts_on_the_latest_joint_states(robot: Callable[[str], Any]) -> None:
    clock = Clock()
    policy = Policy(clock)
    policy.obs_shape, published = (5,), []
    bridge = robot("ros2_node").PolicyBridge(
        policy, ["slider", "hinge_1"], published.append, now=clock.now, options={"max_faults": 3}
    )
    assert bridge.on_timer()  # no message yet
    assert published == [[0.0, 0.0]]
    bridge.on_joint_states(["hinge_1", "other", "slider"], [0.1, 7.0, 0.3], [1.0, 7.0, 2.0])
    assert bridge.on_timer()
    assert published[-1] == [0.5, 2.0]
    assert np.allclose(policy.seen[-1], [0.3, np.cos(0.1), np.sin(0.1), 2.0, 1.0])
    bridge.on_joint_states(["slider"], [0.3], [0.0])  # incomplete: ignored
    assert bridge.on_timer()
    clock.time += 1.0
    assert [bridge.on_timer() for _ in range(3)] == [True, True, False]
    assert published[-1] == [0.0, 0.0]
    assert_names(bridge.report.stopped, "old observation")
    bridge.on_joint_states(["slider", "hinge_1"], [0.0, 0.0], [0.0, 0.0])
    assert not bridge.on_timer()  # a stopped robot is started again by a person
    assert published[-1] == [0.0, 0.0]


class FakeRos:
    """The parts of rclpy that the node uses; by default, a signal shuts it down, after which it cannot publish."""

    def __init__(self, signum: int) -> None:
        self.signum, self.is_valid, self.published = signum, False, []
        self.signals = SimpleNamespace(SignalHandlerOptions=SimpleNamespace(NO="no", ALL="all"))
        self.node = SimpleNamespace(Node=lambda name: self)
        self.qos = SimpleNamespace(qos_profile_sensor_data=None)

    def init(self, signal_handler_options: str = "all") -> None:
        self.is_valid, self.options = True, signal_handler_options

    def shutdown(self) -> None:
        assert self.is_valid, "rcl_shutdown already called"
        self.is_valid = False

    def spin(self, node: Any) -> None:
        handler = signal.getsignal(self.signum)
        if self.options != "no":
            self.is_valid = False
            raise KeyboardInterrupt
        assert callable(handler), "the signal ends the process"
        handler(self.signum, None)

    def publish(self, message: Any) -> None:
        assert self.is_valid, "publisher's context is invalid"
        self.published.append(message.data)

    def declare_parameter(self, name: str, default: Any) -> Any:
        return SimpleNamespace(value=default)

    def create_publisher(self, *args: Any) -> Any:
        return self

    def create_subscription(self, *args: Any) -> None:
        pass

    def create_timer(self, period: float, tick: Callable[[], object]) -> None:
        pass

    def get_logger(self) -> Any:
        return SimpleNamespace(info=print)

    def destroy_node(self) -> None:
        pass


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_node_publishes_the_safe_action_when_it_is_stopped(
    signum: int, robot: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ros = FakeRos(signum)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signum, signal.SIG_IGN)  # as in a process in the background
    messages = SimpleNamespace(JointState=None, Float64MultiArray=lambda data: SimpleNamespace(data=data))
    parts = {"rclpy": ros, "rclpy.node": ros.node, "rclpy.qos": ros.qos, "rclpy.signals": ros.signals}
    for name in ("sensor_msgs", "std_msgs"):
        parts |= {name: ModuleType(name), f"{name}.msg": messages}
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)
    node = robot("ros2_node")
    monkeypatch.setattr(node, "OnnxPolicy", lambda path: Policy(Clock()))
    try:
        node.main()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert ros.published == [[0.0, 0.0]]
    assert not ros.is_valid

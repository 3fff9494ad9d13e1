"""Run an exported policy at a fixed rate on a robot: plain Python with NumPy and onnxruntime, without evorl.

Every tick reads an observation, runs the policy, and sends an action that is clipped to the action space. The safe
action is sent instead if the observation is old or not finite, if the action is not finite, or if the policy was too
late. After ``max_faults`` such ticks in a row the loop stops, and the last command is the safe action.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TIMES_KEPT = 100_000  # number of latest ticks whose times a report keeps, so that a loop can run without end
Observe = Callable[[], "tuple[Any, float]"]  # the latest observation, and its time in seconds of the loop's clock


class OnnxPolicy:
    """A policy of one robot in onnxruntime, with its memory; the file includes the normalization of observations.

    Args:
        path: a file of ``evorl export format=onnx`` with one observation array and a bounded continuous action.

    Attributes:
        action_repeat: number of steps of the training's environment per action.
    """

    def __init__(self, path: str | Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # a small network; idle threads add jitter
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        about = json.loads(self._session.get_modelmeta().custom_metadata_map["evorl"])
        space = about["action_space"]
        if space["kind"] != "box" or space["low"] is None or space["high"] is None:
            raise ValueError(f"{path} has the action space {space}: expected a box with bounds.")
        self.low = np.broadcast_to(np.asarray(space["low"], np.float32), space["shape"])
        self.high = np.broadcast_to(np.asarray(space["high"], np.float32), space["shape"])
        self.action_repeat = int(about["action_repeat"])
        ports = {port["name"]: port for port in about["inputs"]}
        self.obs_shape = tuple(ports["obs"]["shape"][1:])
        self._next = about["memory"]  # name of an input -> name of the output with its next value
        self._fresh = {name: np.zeros((1, *ports[name]["shape"][1:]), ports[name]["dtype"]) for name in self._next}
        self._dtype = ports["obs"]["dtype"]
        self.reset()

    def reset(self) -> None:
        """Start an episode: forget the memory."""
        self._memory = dict(self._fresh)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return the action for one observation."""
        inputs = {"obs": np.asarray(obs, self._dtype)[None], **self._memory}
        action, *memory = self._session.run(["action", *self._next.values()], inputs)
        self._memory = dict(zip(self._next, memory, strict=True))
        return action[0]


@dataclass
class Report:
    """Measurements of a loop; times, in seconds, cover the latest ``TIMES_KEPT`` ticks.

    Attributes:
        ticks: number of ticks.
        late: number of ticks whose policy finished after ``deadline``.
        missed: number of ticks that were skipped, because a tick took longer than a period.
        faults: number of ticks that sent the safe action, by reason.
        compute: time from the start of a tick to its command.
        jitter: delay of the start of a tick after its scheduled time.
        stopped: reason why the watchdog stopped the loop; empty if it did not.
    """

    ticks: int = 0
    late: int = 0
    missed: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    compute: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))
    jitter: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))
    stopped: str = ""

    def describe(self) -> str:
        """Return the counts and the median, 99th percentile and maximum of the times."""
        times = "; ".join(f"{name} {percentiles(getattr(self, name))}" for name in ("compute", "jitter"))
        faults = ", ".join(f"{count} {reason}" for reason, count in self.faults.items()) or "no faults"
        stopped = f"; stopped: {self.stopped}" if self.stopped else ""
        return f"{self.ticks} ticks, {self.late} late, {self.missed} missed, {faults}; {times}{stopped}"


class ControlLoop:
    """Sends one action per period; the policy computes every ``action_repeat``-th, which is sent again in between.

    Args:
        policy: maps an observation to an action; has ``low``, ``high`` and ``obs_shape``, and may have
            ``action_repeat``, by default 1.
        observe: returns the latest observation and its time; it must not block.
        send: sends an action to the motors.
        safe_action: action that makes the robot safe, such as zero torque or the present pose.
        hz: ticks per second; 1 / ``ctrl_dt`` of the training.
        deadline: share of the period in which the action has to be computed; a later one is not sent.
        max_age: maximum age of an observation, in seconds. Times further in the future, as of another clock, and NaN
            are rejected as well.
        max_faults: number of faults in a row after which the loop stops, at least 1.
        now: clock in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        policy: Any,
        observe: Observe,
        send: Callable[[np.ndarray], None],
        safe_action: Sequence[float] | np.ndarray,
        *,
        hz: float = 50.0,
        deadline: float = 0.5,
        max_age: float = 0.1,
        max_faults: int = 5,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._policy, self._observe, self._send = policy, observe, send
        self._safe = np.asarray(safe_action, np.float32)
        if self._safe.shape != policy.low.shape or not np.all((policy.low <= self._safe) & (self._safe <= policy.high)):
            raise ValueError(
                f"safe_action is {self._safe.tolist()}, but it must have the shape {list(policy.low.shape)} and lie "
                f"within {policy.low.tolist()} and {policy.high.tolist()}."
            )
        if max_faults < 1:
            raise ValueError(f"max_faults is {max_faults}: the loop stops after that many faults in a row, at least 1.")
        self._period, self._deadline = 1.0 / hz, deadline / hz
        self._max_age, self._max_faults = max_age, max_faults
        self._now, self._sleep = now, sleep
        self._in_a_row = 0
        self._repeats, self._repeats_left = getattr(policy, "action_repeat", 1), 0
        self._action_sent = self._safe

    def run(self, ticks: int | None = None) -> Report:
        """Run until ``ticks`` have passed (``None`` for no end), the watchdog stops, or an exception is raised.

        The safe action is the last command in each case. Each run starts an episode of the policy.
        """
        report = Report()
        self._in_a_row = self._repeats_left = 0
        try:
            self._policy.reset()
            scheduled = self._now()
            while (ticks is None or report.ticks < ticks) and not report.stopped:
                while (wait := scheduled - self._now()) > 0:
                    self._sleep(wait)
                report.jitter.append(self._now() - scheduled)
                self.tick(report)
                scheduled += self._period
                if (behind := self._now() - scheduled) > 0:  # skip ticks; to catch up would send actions in a burst
                    skipped = int(behind / self._period) + 1
                    report.missed += skipped
                    self._repeats_left = max(0, self._repeats_left - skipped)
                    scheduled += skipped * self._period
        finally:
            self._send(self._safe)
        return report

    def tick(self, report: Report) -> None:
        """Compute and send one action."""
        start = self._now()
        action, fault = self._action(start)
        if not fault and self._now() - start > self._deadline:
            fault = "late action"
            report.late += 1
        self._send(self._safe if fault else action)
        report.compute.append(self._now() - start)
        report.ticks += 1
        self._in_a_row = self._in_a_row + 1 if fault else 0
        if fault:
            report.faults[fault] = report.faults.get(fault, 0) + 1
            self._policy.reset()  # its memory missed a step
            self._repeats_left = 0
        if self._in_a_row >= self._max_faults:
            report.stopped = f"{self._in_a_row} faults in a row, the last one: {fault}"

    def _action(self, start: float) -> tuple[np.ndarray, str]:
        """Return the action, or the safe one and the fault."""
        obs, measured_at = self._observe()
        if obs is None or not abs(start - measured_at) <= self._max_age:  # false for NaN
            return self._safe, "old observation"
        obs = np.asarray(obs, np.float32)
        if obs.shape != self._policy.obs_shape or not np.isfinite(obs).all():
            return self._safe, "invalid observation"
        if self._repeats_left:
            self._repeats_left -= 1
            return self._action_sent, ""
        action = self._policy(obs)
        if not np.isfinite(action).all():
            return self._safe, "invalid action"
        self._action_sent, self._repeats_left = np.clip(action, self._policy.low, self._policy.high), self._repeats - 1
        return self._action_sent, ""


def percentiles(seconds: Collection[float]) -> str:
    """Return the median, the 99th percentile and the maximum of times, in milliseconds."""
    if not seconds:
        return "not measured"
    median, high, most = np.percentile(seconds, [50, 99, 100]) * 1e3
    return f"median {median:.3f} ms, 99 % {high:.3f} ms, maximum {most:.3f} ms"

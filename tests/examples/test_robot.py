"""The files of ``examples/robot``: a control loop with a fake clock, and MuJoCo without a screen."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evorl
from evorl.export.artifacts import export_policy
from tests.support.command_line import QUIET
from tests.support.errors import assert_names, raises_naming
from tests.support.optional_packages import need
from tests.support.portable import stored

need("onnxruntime", "onnx")


class Clock:
    """A fake clock; sleeping takes ``oversleep`` longer than requested."""

    def __init__(self, oversleep: float = 0.0) -> None:
        self.time, self.oversleep = 100.0, oversleep

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds + self.oversleep


class Policy:
    """A policy that acts as scripted, and takes ``seconds`` for it."""

    low, high, obs_shape = np.full(2, -1.0, np.float32), np.full(2, 2.0, np.float32), (3,)

    def __init__(self, clock: Clock, action: Any = (0.5, 9.0), seconds: float = 0.001) -> None:
        self.clock, self.action, self.seconds, self.resets = clock, action, seconds, 0
        self.seen: list[np.ndarray] = []

    def reset(self) -> None:
        self.resets += 1

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        self.clock.time += self.seconds
        self.seen.append(obs)
        return np.asarray(self.action, np.float32)


SAFE = [0.0, 0.25]


class Setup:
    """A loop of a scripted policy with a fake clock."""

    def __init__(
        self, robot: Callable[[str], Any], clock: Clock | None = None, action_repeat: int | None = None, **options: Any
    ) -> None:
        self.clock = clock or Clock()
        self.policy: Any = Policy(self.clock)
        if action_repeat is not None:
            self.policy.action_repeat = action_repeat
        self.obs: Any = np.zeros(3)
        self.age = 0.0
        self.sent: list[tuple[float, list[float]]] = []
        loop = robot("control_loop").ControlLoop
        observe = lambda: (self.obs, self.clock.time - self.age)  # noqa: E731
        options = {"now": self.clock.now, "sleep": self.clock.sleep, **options}
        self.loop = loop(self.policy, observe, self.send, SAFE, **options)

    def send(self, action: np.ndarray) -> None:
        self.sent.append((self.clock.time, action.tolist()))


def test_actions_are_clipped_and_sent_at_the_rate(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot)
    report = setup.loop.run(5)
    times, actions = zip(*setup.sent, strict=True)
    assert actions[:5] == ([0.5, 2.0],) * 5
    assert actions[5] == SAFE  # the last command
    assert np.allclose(np.diff(times[:5]), 0.02)
    assert (report.ticks, report.late, report.missed, report.faults) == (5, 0, 0, {})
    assert np.allclose(report.compute, 0.001)
    assert np.allclose(report.jitter, 0.0)


def test_jitter_does_not_add_up(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot, Clock(oversleep=0.003))
    report = setup.loop.run(100)
    assert np.allclose(list(report.jitter)[1:], 0.003)
    assert setup.sent[99][0] == pytest.approx(100.0 + 99 * 0.02 + 0.004)
    assert_names(report.describe(), "100 ticks", "no faults", "median 3.000 ms")


def test_repeated_actions_are_computed_once_and_sent_in_every_period(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot, Clock(), action_repeat=3)
    report = setup.loop.run(8)
    assert (report.ticks, report.faults, len(setup.policy.seen)) == (8, {}, 3)
    times, actions = zip(*setup.sent, strict=True)
    assert actions == (*([0.5, 2.0],) * 8, SAFE)
    assert np.allclose(np.diff(times[1:3]), 0.02)


def test_a_fault_ends_the_repetition(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot, Clock(), action_repeat=3)
    report, ages = robot("control_loop").Report(), [0.0, 1.0, 0.0, 0.0]
    for setup.age in ages:
        setup.loop.tick(report)
    assert [action for _, action in setup.sent] == [[0.5, 2.0], SAFE, [0.5, 2.0], [0.5, 2.0]]
    assert (len(setup.policy.seen), setup.policy.resets) == (2, 1)


def test_missed_ticks_count_as_repetitions(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot, Clock(), action_repeat=4, deadline=9.0)
    setup.policy.seconds = 0.05  # two periods are missed, so that one repetition is left
    assert setup.loop.run(4).missed == 4
    assert len(setup.policy.seen) == 2


def test_a_late_action_is_not_sent(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot, deadline=0.5)
    setup.policy.seconds = 0.011
    report = setup.loop.run(3)
    assert [action for _, action in setup.sent] == [SAFE] * 4
    assert (report.late, report.faults) == (3, {"late action": 3})
    assert setup.policy.resets == 4  # at the start, and after each safe action
    setup.policy.seconds = 0.0099
    assert setup.loop.run(3).late == 0


def test_missed_ticks_are_skipped_and_not_caught_up(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot)
    setup.policy.seconds = 0.05  # two and a half periods
    report = setup.loop.run(2)
    assert report.missed == 4
    starts = [time - 0.05 for time, _ in setup.sent[:2]]
    assert np.allclose(np.diff(starts), 0.06)


@pytest.mark.parametrize(
    ("obs", "age", "fault"),
    [
        ([0.0, np.nan, 0.0], 0.0, "invalid observation"),
        ([0.0, np.inf, 0.0], 0.0, "invalid observation"),
        ([0.0, 0.0], 0.0, "invalid observation"),
        (None, 0.0, "old observation"),
        ([0.0, 0.0, 0.0], 0.11, "old observation"),
        ([0.0, 0.0, 0.0], -1e9, "old observation"),  # a time of another clock
        ([0.0, 0.0, 0.0], np.nan, "old observation"),
    ],
)
def test_the_watchdog_stops_after_faults_in_a_row(
    obs: Any, age: float, fault: str, robot: Callable[[str], Any]
) -> None:
    setup = Setup(robot, max_faults=4)
    setup.obs, setup.age = obs, age
    report = setup.loop.run(100)
    assert report.ticks == 4
    assert [action for _, action in setup.sent] == [SAFE] * 5
    assert report.faults == {fault: 4}
    assert_names(report.stopped, "4 faults", fault)


def test_a_second_run_starts_an_episode_and_counts_its_faults_from_zero(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot, max_faults=4)
    setup.age = 1.0
    assert setup.loop.run(100).ticks == 4
    assert_names(setup.loop.run(100).stopped, "4 faults")
    setup.age, setup.policy.resets = 0.0, 0
    for num_resets in (1, 2):
        assert setup.loop.run(3).faults == {}
        assert setup.policy.resets == num_resets


def test_one_fault_is_survived(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot, max_faults=2)
    send = setup.send

    def alternate(action: np.ndarray) -> None:
        send(action)
        setup.policy.action = [np.nan, 0.0] if len(setup.sent) % 2 else [1.0, 1.0]

    setup.loop._send = alternate
    report = setup.loop.run(10)
    assert (report.ticks, report.stopped, report.faults) == (10, "", {"invalid action": 5})
    assert [action for _, action in setup.sent[:3]] == [[0.5, 2.0], SAFE, [1.0, 1.0]]


@pytest.mark.parametrize("max_faults", [0, -1])
def test_max_faults_below_one_is_rejected(max_faults: int, robot: Callable[[str], Any]) -> None:
    with raises_naming(ValueError, "max_faults", str(max_faults), "at least 1"):
        Setup(robot, max_faults=max_faults)


def test_a_loop_without_an_end_keeps_a_bounded_number_of_times(
    robot: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robot("control_loop"), "TIMES_KEPT", 10)
    report = Setup(robot).loop.run(25)
    assert report.ticks == 25
    assert len(report.compute) == len(report.jitter) == 10


def test_an_exception_leaves_the_robot_safe(robot: Callable[[str], Any]) -> None:
    setup = Setup(robot)
    setup.policy.action = "broken"
    with pytest.raises(ValueError, match="broken"):
        setup.loop.run(3)
    assert [action for _, action in setup.sent] == [SAFE]


@pytest.mark.parametrize("safe", [[0.0], [0.0, 2.5], [0.0, np.nan]])
def test_a_safe_action_outside_of_the_space_is_an_error(safe: list[float], robot: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="safe_action"):
        robot("control_loop").ControlLoop(Policy(Clock()), None, None, safe)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Export untrained policies of Pendulum: with a normalizer, with memory, and one of discrete actions."""
    paths = {}
    for name in ("ppo_normalized", "ppo_gru_history", "ppo_discrete"):
        policy = stored(name, tmp_path_factory.mktemp(name))
        if name == "ppo_gru_history":
            policy = dataclasses.replace(policy, policy=dataclasses.replace(policy.policy, action_repeat=2))
        ((path, _),) = export_policy(policy, ["onnx"], tmp_path_factory.mktemp(name) / "policy.onnx")
        paths[name] = path
    return paths


def test_an_exported_policy_normalizes_and_acts_in_its_space(
    exported: dict[str, Path], robot: Callable[[str], Any]
) -> None:
    policy = robot("control_loop").OnnxPolicy(exported["ppo_normalized"])
    assert (policy.low.tolist(), policy.high.tolist(), policy.obs_shape) == ([-2.0], [2.0], (3,))
    action = policy(np.array([1.0, 0.0, 0.5]))
    assert action.shape == (1,)
    assert np.array_equal(action, policy([1.0, 0.0, 0.5]))


def test_memory_is_kept_until_a_reset(exported: dict[str, Path], robot: Callable[[str], Any]) -> None:
    policy = robot("control_loop").OnnxPolicy(exported["ppo_gru_history"])
    assert policy.action_repeat == 2
    first, second = (policy([1.0, 0.0, 0.5]) for _ in range(2))
    assert not np.array_equal(first, second)
    policy.reset()
    assert np.array_equal(policy([1.0, 0.0, 0.5]), first)


def test_a_policy_of_discrete_actions_is_an_error(exported: dict[str, Path], robot: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="discrete"):
        robot("control_loop").OnnxPolicy(exported["ppo_discrete"])


def test_latency_is_measured(
    exported: dict[str, Path], robot: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    argv = ["measure_latency.py", str(exported["ppo_normalized"]), "--calls", "20", "--ticks", "3"]
    monkeypatch.setattr(sys, "argv", argv)
    robot("measure_latency").main()
    assert_names(capsys.readouterr().out, "onnxruntime", "20 calls", "3 ticks", "99 %", "jitter")


def test_cartpole_runs_without_a_screen(robot: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    need("mujoco_playground", "playground")

    class Balance:
        """A linear controller, which keeps the pole upright."""

        low, high, obs_shape = np.full(1, -1.0, np.float32), np.full(1, 1.0, np.float32), (5,)

        def reset(self) -> None:
            """Has no memory."""

        def __call__(self, obs: np.ndarray) -> np.ndarray:
            x, _, sin, v, w = obs
            return np.array([0.2 * x + 0.4 * v + 6.0 * sin + 1.5 * w], np.float32)

    example = robot("mujoco_cartpole")
    report, upright = example.run(Balance(), ticks=100)
    assert (report.ticks, report.faults, report.missed) == (100, {}, 0)
    assert upright > 0.99
    Balance.__call__ = lambda self, obs: np.ones(1, np.float32)
    assert example.run(Balance(), ticks=100)[1] < 0.9


def test_a_policy_of_playground_is_trained_exported_and_run(
    train_once: Callable[..., Any], tmp_path: Path, robot: Callable[[str], Any]
) -> None:
    """The commands of the page, with few steps."""
    need("mujoco_playground", "playground")
    run = train_once(
        *"agent=ppo env=playground/CartpoleBalance +env.ctrl_dt=0.02 agent.normalize_obs=true num_envs=4".split(),
        *"rollout_length=8 num_epochs=1 num_minibatches=1 total_timesteps=64 eval_interval=0".split(),
        *QUIET,
    )
    (path,) = evorl.export_policy(run=run.path, format="onnx", to=tmp_path / "policy.onnx")
    policy = robot("control_loop").OnnxPolicy(path)
    example = robot("mujoco_cartpole")
    simulation = example.Simulation(example.cartpole_model())
    obs, _ = simulation.observe()
    expected = evorl.load_policy(run.path)(obs.astype(np.float32))
    assert np.allclose(policy(obs), expected, atol=1e-5)
    report, _ = example.run(policy, ticks=20)
    assert (report.ticks, report.faults) == (20, {})


def test_the_observation_is_that_of_playground(robot: Callable[[str], Any]) -> None:
    need("mujoco_playground", "playground")
    import jax
    from mujoco_playground import registry

    env = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    state = jax.jit(env.reset)(jax.random.key(0))
    simulation = robot("mujoco_cartpole").Simulation(env.mj_model)
    simulation.data.qpos[:], simulation.data.qvel[:] = state.data.qpos, state.data.qvel
    robot("mujoco_cartpole").mujoco.mj_forward(env.mj_model, simulation.data)
    obs, _ = simulation.observe()
    assert np.allclose(obs, state.obs, atol=1e-6)
    of_joints = robot("ros2_node").cartpole_observation(simulation.data.qpos, simulation.data.qvel)
    assert np.allclose(of_joints, state.obs, atol=1e-6)

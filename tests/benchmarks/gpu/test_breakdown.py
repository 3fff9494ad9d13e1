"""Kernels by part, and the speed that launches permit."""

from __future__ import annotations

import pytest

from benchmarks.gpu.breakdown import Breakdown, break_down, describe_loops, estimate
from benchmarks.gpu.setting import GpuSetting


def loop(turns: int | None, kernels: int, *loops: dict) -> dict:
    return {"trip_count": turns, "kernels": kernels, "loops": list(loops)}


def cost(*loops: dict, outside: int, kernels: int, **others: int) -> dict:
    counts = {"unknown_loops": 0, "conditionals": 0, "traffic_bytes": 0}
    return {"loops": list(loops), "outside": outside, "kernels": kernels, **counts, **others}


def setting(steps: int = 65536, rollout: int = 32, updates: int = 16, unknown_turns: int = 1) -> GpuSetting:
    return GpuSetting("ppo", "PPO", steps, rollout, updates, unknown_turns, {}, ())


OURS = cost(loop(32, 19, loop(None, 11)), loop(32, 3), loop(16, 72), outside=50, kernels=2258, unknown_loops=32)
THEIRS = cost(loop(32, 32), loop(32, 4), loop(4, 13, loop(4, 55)), outside=13, kernels=2097)


def test_loops_are_told_apart_by_their_turns() -> None:
    assert break_down(setting(), OURS) == Breakdown(step=30, update=72, rest=2258 - 32 * 30 - 16 * 72)


def test_the_work_of_an_epoch_is_shared_by_its_updates() -> None:
    assert break_down(setting(), THEIRS) == Breakdown(step=32, update=55 + 13 / 4, rest=32 * 4 + 13)


def test_rollouts_and_updates_may_be_repeated() -> None:
    repeated = cost(loop(4, 7, loop(32, 30), loop(16, 72)), outside=9, kernels=4 * (7 + 960 + 1152) + 9)
    assert break_down(setting(), repeated) == Breakdown(step=30, update=72, rest=4 * 7 + 9)


def test_episodes_of_any_length_count_as_a_whole_rollout() -> None:
    search = cost(loop(None, 8), loop(2, 19), outside=90, kernels=500 * 8 + 38 + 90, unknown_loops=500)
    assert break_down(setting(rollout=500, updates=0, unknown_turns=500), search) == Breakdown(
        step=8, update=None, rest=128
    )


def test_blocks_of_steps_are_a_rollout() -> None:
    search = cost(loop(10, 26, loop(50, 6)), loop(2, 19), outside=90, kernels=10 * 326 + 38 + 90)
    assert break_down(setting(rollout=500, updates=0), search) == Breakdown(step=6.52, update=None, rest=128)


def test_updates_of_unknown_number_count_as_the_setting_says() -> None:
    off_policy = cost(loop(None, 82), loop(None, 9), outside=55, kernels=64 * 82 + 9 + 55, unknown_loops=65)
    found = break_down(setting(rollout=1, updates=64, unknown_turns=64), off_policy)
    assert found == Breakdown(step=None, update=82, rest=64)


def test_a_single_step_has_no_loop() -> None:
    off_policy = cost(loop(64, 40), outside=100, kernels=2660)
    assert break_down(setting(rollout=1, updates=64), off_policy) == Breakdown(step=None, update=40, rest=100)


def test_the_expression_is_the_sum_of_its_parts() -> None:
    assert describe_loops(OURS) == "32 x (19 + ? x 11) + 32 x 3 + 16 x 72 + 50"


def test_launches_and_waits_bound_the_speed() -> None:
    found = estimate(setting(), OURS)
    assert found.bound == "launches"
    assert found.steps_per_second == pytest.approx(65536 / (2258 * 2e-6 + 32 * 15e-6))
    branching = cost(outside=0, kernels=0, conditionals=2)
    assert estimate(setting(), branching).steps_per_second == pytest.approx(65536 / 30e-6)


def test_large_programs_are_bound_by_memory() -> None:
    found = estimate(setting(), {**OURS, "traffic_bytes": 335_232_000_000})
    assert found.bound == "memory"
    assert found.steps_per_second == pytest.approx(65536 / 0.1)

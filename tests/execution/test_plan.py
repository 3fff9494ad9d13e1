"""Distribution of a workflow over devices and seeds, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from evorl.envs import create_env
from evorl.envs.vector import VmapAutoResetWrapper
from evorl.execution import plan
from evorl.execution.plan import PlanRules, describe_devices, plan_execution
from evorl.execution.programs import SEED_AXIS, Execution
from evorl.execution.trainable import _mesh
from evorl.ops.collectives import DATA_AXIS, MEMBER_AXIS
from tests.support.errors import raises_naming
from tests.support.toy_envs import TugOfWar


def _env(num_envs: int, name: str = "CartPole-v1") -> Any:
    return create_env(name, parallel=num_envs)


def test_small_work_stays_on_one_device() -> None:
    assert plan_execution(_env(4))[0] == Execution()


def test_large_work_takes_all_devices_that_share_it_evenly() -> None:
    assert plan_execution(_env(4096))[0] == Execution(num_devices=4, axis=DATA_AXIS)
    assert plan_execution(_env(4098))[0] == Execution(num_devices=3, axis=DATA_AXIS)


def test_several_processes_have_as_many_devices_each(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = jax.devices()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process_index: devices[2 * process_index :][:2])
    assert plan_execution(_env(4096))[0] == Execution(num_devices=4, axis=DATA_AXIS)
    assert plan_execution(_env(4))[0] == Execution(num_devices=2, axis=DATA_AXIS)  # small, but each device has a part
    assert plan_execution(_env(4098))[0] == Execution(num_devices=2, axis=DATA_AXIS)
    assert plan_execution(_env(3), num_seeds=2)[0] == Execution(num_seeds=2, num_devices=2, axis=SEED_AXIS)
    assert plan_execution(_env(4), devices=1)[0] == Execution()  # part of a workflow
    mesh = Execution(num_devices=2, axis=DATA_AXIS)
    _mesh.cache_clear()
    assert list(mesh.mesh.devices.flat) == [devices[0], devices[2]]
    _mesh.cache_clear()
    with raises_naming(ValueError, "devices=3", "processes, 2"):
        plan_execution(_env(6), devices=3)
    with raises_naming(ValueError, "3 environments", "2 devices"):
        plan_execution(_env(3))


def test_small_operations_are_done_in_order_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_execution(_env(4), rules=PlanRules(small_updates=True))[0] == Execution(in_order=True)
    assert plan_execution(_env(4), rules=PlanRules(small_updates=True), num_seeds=3, devices=1)[0].in_order
    assert not plan_execution(_env(4096), rules=PlanRules(small_updates=True), devices=1)[0].in_order
    assert not plan_execution(_env(4), rules=PlanRules(small_updates=True), devices=2)[0].in_order
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert plan_execution(_env(4), devices=1, rules=PlanRules(small_updates=True))[0] == Execution()


def test_work_that_need_not_be_shared_evenly_takes_all_devices() -> None:
    assert plan_execution(_env(4098), rules=PlanRules(evenly=False))[0] == Execution(num_devices=4, axis=DATA_AXIS)
    assert plan_execution(_env(7), rules=PlanRules(min_bytes=0, evenly=False))[0].num_devices == 4
    assert plan_execution(_env(3), rules=PlanRules(min_bytes=0, evenly=False))[0].num_devices == 3
    assert plan_execution(_env(7), devices=2, rules=PlanRules(evenly=False))[0].num_devices == 2


def test_accelerators_share_minibatches_and_step_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert plan_execution(_env(8)) == (Execution(num_devices=4, axis=DATA_AXIS), None)


@pytest.mark.parametrize(("num_seeds", "num_devices"), [(8, 4), (6, 3), (2, 2)])
def test_seeds_are_shared_out_first(num_seeds: int, num_devices: int) -> None:
    plan, _ = plan_execution(_env(4), num_seeds=num_seeds)
    assert plan == Execution(num_seeds=num_seeds, num_devices=num_devices, axis=SEED_AXIS)


@pytest.mark.parametrize(("num_members", "num_seeds", "num_devices"), [(8, 1, 4), (6, 1, 3), (5, 1, 1), (5, 3, 3)])
def test_members_are_shared_out_instead_of_environments(num_members: int, num_seeds: int, num_devices: int) -> None:
    plan, _ = plan_execution(_env(4096), num_seeds=num_seeds, num_members=num_members)
    assert plan.num_devices == num_devices
    assert plan.axis == (None if num_devices == 1 else SEED_AXIS if num_seeds > 1 else MEMBER_AXIS)
    with raises_naming(ValueError, "7 members", "2 devices", "pop_size"):
        plan_execution(_env(4096), devices=2, num_members=7)


def test_what_is_asked_for_is_done() -> None:
    assert plan_execution(_env(4), devices=2, env_chunk=3) == (Execution(num_devices=2, axis=DATA_AXIS), 3)
    assert plan_execution(_env(4096), devices=1, env_chunk=None) == (Execution(), None)


def test_blocks_fit_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_per_env = plan.state_bytes(jax.eval_shape(_env(8).env.reset, jax.random.key(0)))
    assert 30 < bytes_per_env < 1000
    for cache_bytes in (1 << 18, 1 << 21):
        monkeypatch.setattr(plan, "core_cache_bytes", lambda size=cache_bytes: size)
        assert plan_execution(_env(8))[1] == int(plan.CACHE_SHARE * cache_bytes) // bytes_per_env
    monkeypatch.setattr(plan, "core_cache_bytes", lambda: 1 << 10)
    assert plan_execution(_env(8))[1] == plan.MIN_BLOCK


def _cache(folder: Path, index: int, level: int, kind: str, size: str, cores: str) -> None:
    cache = folder / f"index{index}"
    cache.mkdir()
    for name, text in {"level": str(level), "type": kind, "size": size, "shared_cpu_list": cores}.items():
        (cache / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("size", "cores", "expected"),
    [("512K", "0", 512 << 10), ("2M", "0,16", 1 << 20), ("4096K", "0-3", 1 << 20), ("2M", "0-1,8-9", 512 << 10)],
)
def test_the_second_level_cache_of_a_core_is_read(tmp_path: Path, size: str, cores: str, expected: int) -> None:
    _cache(tmp_path, 0, 1, "Data", "32K", "0")
    _cache(tmp_path, 1, 2, "Instruction", "64K", "0")
    _cache(tmp_path, 2, 2, "Unified", size, cores)
    _cache(tmp_path, 3, 3, "Unified", "32M", "0-7")
    assert plan.core_cache_bytes(tmp_path) == expected


def test_a_cache_that_is_not_told_is_a_usual_one(tmp_path: Path) -> None:
    assert plan.core_cache_bytes(tmp_path / "absent") == plan.DEFAULT_CACHE
    _cache(tmp_path, 0, 1, "Data", "32K", "0")
    assert plan.core_cache_bytes(tmp_path) == plan.DEFAULT_CACHE
    _cache(tmp_path, 1, 2, "Unified", "much", "0")
    assert plan.core_cache_bytes(tmp_path) == plan.DEFAULT_CACHE


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"devices": 5}, ("devices=5", "the 4 that JAX sees")),
        ({"devices": 3}, ("4 environments", "3 devices", "num_envs")),
        ({"devices": 0}, ("devices", "got 0.")),
        ({"devices": "many"}, ("devices", "'auto'", "got 'many'.")),
        ({"env_chunk": 0}, ("env_chunk", "got 0.")),
        ({"env_chunk": "all"}, ("env_chunk", "auto, null", "got 'all'.")),
    ],
)
def test_what_cannot_be_is_said_in_words(arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        plan_execution(_env(4), **arguments)


def test_agents_of_a_copy_stay_together() -> None:
    env = VmapAutoResetWrapper(TugOfWar(), 12)
    assert plan_execution(env, devices=3) == (Execution(num_devices=3, axis=DATA_AXIS), None)
    assert plan_execution(env, rules=PlanRules(min_bytes=0))[0].num_devices == 3, (
        "of 4: 6 copies are not shared by 4 devices evenly"
    )
    with raises_naming(ValueError, "6 copies of 2 agents", "4 devices", "num_envs"):
        plan_execution(env, devices=4)
    with raises_naming(ValueError, "env_chunk=4", "2 agents"):
        plan_execution(env, env_chunk=4)


def test_devices_in_words() -> None:
    kinds = {device.device_kind for device in jax.devices()}
    (kind,) = kinds
    assert describe_devices() == f"{jax.device_count()} x {kind}"
    assert describe_devices(1) == f"1 x {kind}"

"""Runs that exceed the memory are rejected based on shapes, with settings that fit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from evorl.algorithms.ppo import PPOWorkflow
from evorl.algorithms.sac import SACWorkflow
from evorl.algorithms.tqc import TQCWorkflow
from evorl.assembly import workflow_from_config
from evorl.cli.composition import compose_config
from evorl.execution import memory, programs
from evorl.execution.memory import available_bytes, check_memory, check_program_memory
from evorl.execution.trainable import SEED_AXIS, Execution
from evorl.types import PyTreeNode, State, pytree_field
from tests.support.errors import raises_naming

GB = 10**9
SMALL_PPO = {"env": "CartPole-v1", "num_envs": 4, "rollout_length": 8, "agent": {"network": {"torso": [8]}}}
SMALL_SAC = {"env": "Pendulum-v1", "num_envs": 2, "agent": {"network": {"torso": [8]}}}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with 16 GB."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 16 * GB)


@pytest.mark.parametrize(
    ("workflow", "config", "parts"),
    [
        (
            SACWorkflow,
            SMALL_SAC | {"replay_capacity": 1e9},
            ("replay_capacity=1,000,000,000",),
        ),
        (PPOWorkflow, SMALL_PPO | {"num_seeds": 1e7}, ("num_seeds=10,000,000", "largest that may fit", "00,000.")),
        (PPOWorkflow, SMALL_PPO | {"num_seeds": 1e9}, ("num_seeds=1,000,000,000",)),
        (
            SACWorkflow,
            SMALL_SAC | {"agent": {"num_critics": 1e6}},
            ("agent.num_critics=1,000,000", "largest that may fit"),
        ),
        (
            TQCWorkflow,
            SMALL_SAC | {"agent": {"num_atoms": 1e9}},
            ("agent.num_atoms=1,000,000,000", "largest that may fit"),
        ),
        (PPOWorkflow, SMALL_PPO | {"num_envs": 1e9}, ("num_envs=1,000,000,000",)),
    ],
)
def test_what_does_not_fit_is_refused_at_once(
    workflow: Any, config: dict, parts: tuple[str, ...], machine: None
) -> None:
    started = time.monotonic()
    built = workflow.build_from_config(config)
    with raises_naming(ValueError, "memory", "may use only 12.1 GB of the total 16 GB", *parts):
        built.init(0)
    with raises_naming(ValueError, *parts):
        programs.compile_ahead(built, jax.random.key(0))
    assert time.monotonic() - started < 60


def test_the_value_that_fits_fits_and_a_tenth_more_does_not(machine: None) -> None:
    fits = SMALL_SAC | {"replay_capacity": 1e9}
    with pytest.raises(ValueError) as refused:
        SACWorkflow.build_from_config(fits).init(0)
    most = int(str(refused.value).split()[-1].rstrip(".").replace(",", ""))
    for capacity, refusal in ((most, False), (int(most * 1.1), True)):
        workflow = SACWorkflow.build_from_config(fits | {"replay_capacity": capacity})
        state = jax.eval_shape(workflow.setup, jax.random.key(0))
        specs = jax.tree.map(lambda _: PartitionSpec(), state)
        if refusal:
            with raises_naming(ValueError, "replay_capacity"):
                check_memory(workflow, state, specs)
        else:
            check_memory(workflow, state, specs)


def test_members_and_matrices_are_named(machine: None) -> None:
    population = {
        "workflow": "evorl.algorithms.pbt.PBTWorkflow",
        "env": "Pendulum-v1",
        "pop_size": 10_000,
        "total_timesteps": 1e9,
        "generation_interval": 1e4,
        "inner": {"workflow": "evorl.algorithms.sac.SACWorkflow", "replay_capacity": 1e6},
        "search_space": {"discount": {"low": 0.9, "high": 0.99}},
    }
    with raises_naming(ValueError, "pop_size=10,000", "largest that may fit"):
        workflow_from_config(population).init(0)
    evolution = {
        "workflow": "evorl.algorithms.neuroevolution.NeuroevolutionWorkflow",
        "env": "Pendulum-v1",
        "optimizer": {"name": "cmaes", "pop_size": 16},
        "agent": {"network": {"torso": [256, 256]}},
    }
    with pytest.raises(ValueError, match=r"\(67\d+, 67\d+\).* \d+,\d+ may fit"):
        workflow_from_config(evolution).init(0)


def test_the_agent_of_a_part_is_named_there(machine: None) -> None:
    overrides = ["agent=erl/erl", "env=pendulum", "learner.agent.num_critics=3e5", "devices=1"]
    with raises_naming(ValueError, "learner.agent.num_critics=300,000"):
        workflow_from_config(compose_config(overrides)).init(0)


class _Sizes(PyTreeNode):
    """Settings without a run."""

    pop_size: int = 100
    flag: bool = True
    execution: Execution = pytree_field(static=True, default=Execution())


def _check(state: State, spec: PartitionSpec, execution: Execution, available: int) -> None:
    check_memory(_Sizes(execution=execution), state, jax.tree.map(lambda _: spec, state), available)


def test_devices_of_a_cpu_share_its_memory_and_accelerators_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(rows=jax.ShapeDtypeStruct((100, 250), jnp.float32))  # 100 kB, and once more for the step's
    plan = Execution(num_devices=4, axis=SEED_AXIS)
    _check(state, PartitionSpec(SEED_AXIS), plan, 200_000)
    with raises_naming(ValueError, "200 kB of memory", "pop_size=100", "may fit is 99"):
        _check(state, PartitionSpec(SEED_AXIS), plan, 199_000)
    with raises_naming(ValueError, "at least 800 kB"):
        _check(state, PartitionSpec(), plan, 799_000)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    _check(state, PartitionSpec(SEED_AXIS), plan, 50_000)
    with raises_naming(ValueError, "at least 200 kB"):
        _check(state, PartitionSpec(), plan, 199_000)


def test_several_processes_have_memories_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(rows=jax.ShapeDtypeStruct((100, 250), jnp.float32))
    plan = Execution(num_devices=4, axis=SEED_AXIS)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    _check(state, PartitionSpec(SEED_AXIS), plan, 100_000)
    with raises_naming(ValueError, "at least 100 kB"):
        _check(state, PartitionSpec(SEED_AXIS), plan, 99_000)
    with raises_naming(ValueError, "at least 400 kB"):
        _check(state, PartitionSpec(), plan, 399_000)


def test_a_program_that_needs_too_much_is_refused_before_it_runs() -> None:
    compiled = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, x: jnp.cumsum(x)[::-1], jnp.ones(10**6)).sum())
    compiled = compiled.lower(3).compile()
    check_program_memory(compiled, 1, GB)
    with raises_naming(ValueError, "one iteration", "but 1 MB are available", "rollout_length"):
        check_program_memory(compiled, 1, 10**6)


def test_this_machine_tells_its_memory() -> None:
    assert 10**8 < available_bytes() < 10**15


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "500", "memory.max": "900"}, [500, 900]),
        ("4:cpu,memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": "700"}, [700]),
        ("4:cpu:/job\n", {"memory/job/memory.limit_in_bytes": "700"}, []),
        (None, {}, []),
    ],
)
def test_limits_of_control_groups_are_read(tmp_path: Path, groups: str | None, files: dict, limits: list) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    listing = tmp_path / "groups"
    if groups is not None:
        listing.write_text(groups)
    assert list(memory._control_group_limits(tmp_path, listing)) == limits


def test_bytes_are_shown_with_a_sensible_unit() -> None:
    sizes = (999, 1000, 1.5e9, 999.4e9, 999.7e9, 2e15, 3e19)
    shown = ["999 bytes", "1 kB", "1.5 GB", "999 GB", "1 TB", "2 PB", "30,000 PB"]
    assert [memory.shown_bytes(size) for size in sizes] == shown

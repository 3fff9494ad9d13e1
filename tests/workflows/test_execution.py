"""How a workflow is laid out over devices and seeds, and what cannot be."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.envs import create_env
from evorl.ops.collectives import DATA_AXIS
from evorl.workflows import Execution, execution
from evorl.workflows.execution import SEED_AXIS, plan_execution
from tests.small_workflows import assert_identical, small


def _env(num_envs: int, name: str = "CartPole-v1") -> Any:
    return create_env(name, parallel=num_envs)


def test_small_work_stays_on_one_device() -> None:
    assert plan_execution(_env(4))[0] == Execution()


def test_large_work_takes_all_devices_that_share_it_evenly() -> None:
    assert plan_execution(_env(4096))[0] == Execution(num_devices=4, axis=DATA_AXIS)
    assert plan_execution(_env(4098))[0] == Execution(num_devices=3, axis=DATA_AXIS)


def test_accelerators_share_minibatches_and_step_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert plan_execution(_env(8)) == (Execution(num_devices=4, axis=DATA_AXIS), None)


@pytest.mark.parametrize(("num_seeds", "num_devices"), [(8, 4), (6, 3), (2, 2)])
def test_seeds_are_shared_out_first(num_seeds: int, num_devices: int) -> None:
    plan, _ = plan_execution(_env(4), num_seeds=num_seeds)
    assert plan == Execution(num_seeds=num_seeds, num_devices=num_devices, axis=SEED_AXIS)


def test_what_is_asked_for_is_done() -> None:
    assert plan_execution(_env(4), devices=2, env_chunk=3) == (Execution(num_devices=2, axis=DATA_AXIS), 3)
    assert plan_execution(_env(4096), devices=1, env_chunk=None) == (Execution(), None)


def test_blocks_fit_the_cache() -> None:
    bytes_per_env = execution.state_bytes(jax.eval_shape(_env(8).env.reset, jax.random.key(0)))
    _, env_chunk = plan_execution(_env(8))
    assert env_chunk == max(16, execution.CHUNK_BYTES // bytes_per_env)
    assert 30 < bytes_per_env < 1000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"devices": 5}, "devices=5 was asked for, and JAX sees 4: ask for at most 4."),
        ({"devices": 3}, "4 environments cannot be shared evenly by 3 devices: choose num_envs"),
        ({"devices": 0}, "devices is 'auto' or a positive number, got 0."),
        ({"devices": "many"}, "devices is 'auto' or a positive number, got 'many'."),
        ({"env_chunk": 0}, "env_chunk is 'auto', null or a positive number, got 0."),
        ({"env_chunk": "all"}, "env_chunk is 'auto', null or a positive number, got 'all'."),
    ],
)
def test_what_cannot_be_is_said_in_words(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_execution(_env(4), **arguments)


def test_seeds_count_from_the_first() -> None:
    keys = execution.seed_keys(Execution(num_seeds=3), jax.random.key(5))
    assert_identical(list(keys), [jax.random.key(seed) for seed in (5, 6, 7)])
    own = jax.random.split(jax.random.key(0), 3)
    assert execution.seed_keys(Execution(num_seeds=3), own) is own
    assert execution.seed_keys(Execution(), jax.random.key(5)).shape == ()


@pytest.mark.parametrize(
    ("plan", "env_rows", "replay_rows", "params"),
    [
        (Execution(), PartitionSpec(), PartitionSpec(), PartitionSpec()),
        (
            Execution(num_devices=2, axis=DATA_AXIS),
            PartitionSpec(DATA_AXIS),
            PartitionSpec(None, DATA_AXIS),
            PartitionSpec(),
        ),
        (
            Execution(num_seeds=3, num_devices=2, axis=DATA_AXIS),
            PartitionSpec(None, DATA_AXIS),
            PartitionSpec(None, None, DATA_AXIS),
            PartitionSpec(),
        ),
        (
            Execution(num_seeds=4, num_devices=2, axis=SEED_AXIS),
            PartitionSpec(SEED_AXIS),
            PartitionSpec(SEED_AXIS),
            PartitionSpec(SEED_AXIS),
        ),
    ],
)
def test_what_is_sharded(plan: Execution, env_rows: Any, replay_rows: Any, params: Any) -> None:
    workflow = small("sac").replace(execution=plan)
    key = execution.seed_keys(plan, jax.random.key(0))
    state = jax.eval_shape(small("sac", num_seeds=plan.num_seeds or 1).init, key)
    specs = execution.state_specs(plan, workflow.sharded_axes, state)
    assert specs.env_state.obs == env_rows
    assert specs.replay_state.data.obs == replay_rows
    assert set(jax.tree.leaves(specs.agent_state, is_leaf=lambda x: isinstance(x, PartitionSpec))) == {params}
    assert set(jax.tree.leaves(specs.iterations, is_leaf=lambda x: isinstance(x, PartitionSpec))) == {PartitionSpec()}


def test_a_state_is_placed_and_brought_back() -> None:
    workflow = small("sac")
    state = workflow.init(0)
    wide = workflow.replace(execution=Execution(num_devices=4, axis=DATA_AXIS))
    placed = execution.place(wide, state)
    assert placed.env_state.obs.sharding.shard_shape(placed.env_state.obs.shape) == (2, 4)
    back = execution.place(workflow, placed)
    assert {device for leaf in jax.tree.leaves(back) for device in leaf.devices()} == {jax.devices()[0]}
    assert_identical(back, state)


def test_entries_without_a_seed_axis_are_shared() -> None:
    state = small("ppo", num_seeds=2).init(0)
    assert state.iterations.low.shape == ()
    assert np.shape(state.key) == (2,)


def test_compiler_options_that_this_xla_does_not_have_are_left_out() -> None:
    assert execution._known_option("xla_cpu_use_fusion_emitters", False) == {"xla_cpu_use_fusion_emitters": False}
    assert execution._known_option("xla_cpu_use_better_luck", True) == {}

"""States of several seeds and devices: keys, layouts, and errors for impossible ones."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.execution import programs
from evorl.execution.programs import SEED_AXIS, Execution
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.platform import compiled_for
from tests.support.small_workflows import assert_identical, small


def test_seeds_count_from_the_first() -> None:
    keys = programs.seed_keys(Execution(num_seeds=3), jax.random.key(5))
    assert_identical(list(keys), [jax.random.key(seed) for seed in (5, 6, 7)])
    own = jax.random.split(jax.random.key(0), 3)
    assert programs.seed_keys(Execution(num_seeds=3), own) is own
    assert programs.seed_keys(Execution(), jax.random.key(5)).shape == ()


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
    key = programs.seed_keys(plan, jax.random.key(0))
    state = jax.eval_shape(small("sac", num_seeds=plan.num_seeds or 1).init, key)
    specs = programs.state_specs(plan, state)
    assert specs.env_state.obs == env_rows
    assert specs.replay_state.data.obs == replay_rows
    assert set(jax.tree.leaves(specs.agent_state, is_leaf=lambda x: isinstance(x, PartitionSpec))) == {params}
    assert set(jax.tree.leaves(specs.iterations, is_leaf=lambda x: isinstance(x, PartitionSpec))) == {PartitionSpec()}


def test_a_state_is_placed_and_brought_back() -> None:
    workflow = small("sac")
    state = workflow.init(0)
    wide = workflow.replace(execution=Execution(num_devices=4, axis=DATA_AXIS))
    placed = programs.place(wide, state)
    assert placed.env_state.obs.sharding.shard_shape(placed.env_state.obs.shape) == (2, 4)
    back = programs.place(workflow, placed)
    assert {device for leaf in jax.tree.leaves(back) for device in leaf.devices()} == {jax.devices()[0]}
    assert_identical(back, state)


def test_entries_without_a_seed_axis_are_shared() -> None:
    state = small("ppo", num_seeds=2).init(0)
    assert state.iterations.low.shape == ()
    assert np.shape(state.key) == (2,)


def test_compiler_options_that_this_xla_does_not_have_are_left_out() -> None:
    assert programs._known_option("xla_backend_optimization_level", 0) == {"xla_backend_optimization_level": 0}
    assert programs._known_option("xla_cpu_use_better_luck", True) == {}


def test_the_program_of_the_set_up_is_that_of_the_platform() -> None:
    on_a_cpu = programs._init_program()
    with compiled_for("gpu"):
        assert programs._init_program() is not on_a_cpu
    assert programs._init_program() is on_a_cpu

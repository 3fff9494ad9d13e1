"""The states of off-policy workflows have the entries that their classes declare, with every option."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from evorl.execution import programs
from evorl.execution.trainable import Execution
from evorl.ops.collectives import DATA_AXIS
from evorl.types import check_entries, declared_entries
from evorl.workflows.off_policy_state import LearnerState, OffPolicyState
from tests.support.recorded_pendulum import recorded_pendulum
from tests.support.small_workflows import small

# Entries that only states with a setting have.
OPTIONAL = {
    "intrinsic": "intrinsic",
    "intrinsic_metrics": "intrinsic",
    "reward_scale": "reward_bound",
    "recorded_state": "replay",
}
RECORDED = {"load": recorded_pendulum(), "other_env": True, "mixed": True}


@pytest.mark.parametrize(
    "options", [{}, {"prioritized": True}, {"intrinsic": "rnd"}, {"reward_bound": 5.0}, {"replay": RECORDED}]
)
def test_entries_are_those_declared(options: dict[str, Any]) -> None:
    workflow = small("sac", "Pendulum-v1", replay_capacity=256, **options)
    state = jax.eval_shape(workflow.setup, jax.random.key(0))
    assert type(check_entries(state)) is OffPolicyState
    absent = {name for name, setting in OPTIONAL.items() if setting not in options}
    assert set(declared_entries(OffPolicyState)) - set(state) == absent
    _, following = jax.eval_shape(workflow.pure_step, state)
    assert jax.tree.structure(following) == jax.tree.structure(state)


def test_the_state_of_a_learner_is_a_part() -> None:
    workflow = small("sac")
    learner = check_entries(jax.eval_shape(workflow.init_learning, jax.random.key(0)))
    assert type(learner) is LearnerState
    assert set(learner) == {"agent_state", "opt_state", "replay_state"} < set(declared_entries(OffPolicyState))


def test_rows_of_the_buffer_are_sharded_by_environment() -> None:
    state = jax.eval_shape(small("sac").setup, jax.random.key(0))
    specs = programs.state_specs(Execution(num_devices=2, axis=DATA_AXIS), state)
    assert [specs.replay_state.data.obs, specs.env_state.obs] == [
        jax.sharding.PartitionSpec(None, DATA_AXIS),
        jax.sharding.PartitionSpec(DATA_AXIS),
    ]

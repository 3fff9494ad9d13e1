"""PBT with sub-populations that evolve at different frequencies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.pbt import PBTWorkflow
from evorl.ops.multi_frequency import multi_frequency_inheritance
from evorl.ops.selection import Inheritance
from evorl.types import State
from tests.algorithms.test_pbt import SEED, pbt, trained
from tests.conformance.workflow import WorkflowContract
from tests.support.small_workflows import assert_identical, contract_of

SMALL = contract_of("pbt").SMALL


class TestMultiFrequencyContract(WorkflowContract):
    workflow = PBTWorkflow
    SMALL = {
        **SMALL,
        "pop_size": 8,
        "exploit": "multi_frequency",
        "frequencies": [1, 2],
        "total_timesteps": 8 * 64 * 2 * 20,
    }


MULTI_FREQUENCY = {"exploit": "multi_frequency", "frequencies": [1, 2], "pop_size": 8, "resample_probability": 0.0}
ASCENDING = jnp.arange(8.0)  # 4..7 evolve every second time; 1 is replaced by 7, 0 copies 3


def _check_migration(after: State, before: State) -> None:
    """Assert that the migrant has the settings of its source, and that only the clone's are varied."""
    parents = jnp.array([3, 7, 2, 3, 4, 5, 6, 7])
    copied = before.hyper_parameters[parents]
    params = before.members.agent_state.params
    assert_identical(after.members.agent_state.params, jax.tree.map(lambda x: x[parents], params))
    np.testing.assert_array_equal(after.scores, ASCENDING[parents])
    np.testing.assert_array_equal(after.hyper_parameters[1:], copied[1:])
    assert (after.hyper_parameters[0] != copied[0]).all()


def test_migrants_between_frequencies_do_not_explore(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = pbt(**MULTI_FREQUENCY)
    before = workflow.init(SEED)
    batch, before = jax.jit(workflow.collect)(before)
    batch = batch.replace(rewards=ASCENDING)
    _check_migration(jax.jit(workflow.update)(before, batch)[1], before)

    def exploring(*args: Any) -> Inheritance:
        inheritance = multi_frequency_inheritance(*args)
        return inheritance.replace(explores=inheritance.replaced)

    monkeypatch.setattr("evorl.algorithms.pbt.multi_frequency_inheritance", exploring)
    with pytest.raises(AssertionError):
        _check_migration(jax.jit(lambda *args: workflow.update(*args))(before, batch)[1], before)


def test_steady_members_evolve_at_their_frequency() -> None:
    _, metrics, state = trained(2, **{**MULTI_FREQUENCY, "frequencies": (1, 2)})
    parents = np.asarray(state.history.parents[:2])
    np.testing.assert_array_equal(parents[0, 4:], range(4, 8))
    assert (parents[1, 4:] != range(4, 8)).any()
    assert (parents[:, :4] != range(4)).any(axis=1).all()
    np.testing.assert_array_equal(metrics["replaced_members"], (parents != np.arange(8)).sum(axis=1))

"""Batches whose rows use different action functions, with and without a recurrent state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.evaluators.population_evaluator import join_action_fns
from evorl.rollout import ActionFn
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict


def _adds(number: float, with_recurrent_state: bool) -> ActionFn:
    def act(agent_state: AgentState, batch: SampleBatch, keys: jax.Array) -> tuple[Any, PyTreeDict]:
        extras = PyTreeDict(log_prob=batch.obs)
        noise = jax.vmap(jax.random.uniform)(keys)
        if with_recurrent_state:
            assert batch.extras is not None
            extras.recurrent_state = batch.extras.recurrent_state + number
        return batch.obs + number + noise, extras

    return act


@pytest.mark.parametrize("with_recurrent_state", [False, True])
def test_every_row_acts_by_its_own_function(with_recurrent_state: bool) -> None:
    obs, keys = jnp.arange(5.0), jax.random.split(jax.random.key(0), 5)
    batch = SampleBatch(obs=obs, extras=PyTreeDict(recurrent_state=10.0 * obs) if with_recurrent_state else None)
    act = join_action_fns(_adds(100.0, with_recurrent_state), _adds(200.0, with_recurrent_state), 3)
    actions, extras = act(AgentState(params=PyTreeDict()), batch, keys)
    own = np.array([100.0, 100.0, 100.0, 200.0, 200.0], np.float32)
    np.testing.assert_allclose(actions, obs + own + jax.vmap(jax.random.uniform)(keys), rtol=1e-6)
    assert set(extras) == ({"recurrent_state"} if with_recurrent_state else set())
    if with_recurrent_state:
        np.testing.assert_array_equal(extras.recurrent_state, 10.0 * obs + own)

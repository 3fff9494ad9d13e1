"""Recurrent action values: values along sequences equal single steps, and the burn-in uses the present parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.recurrent_value import RecurrentValueAgent
from evorl.envs import create_env
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import fresh_state

T, N = 6, 2


@pytest.mark.parametrize("cell", ["gru", "min_gru"])
@pytest.mark.parametrize("burn_in", [0, 2])
def test_values_along_sequences_are_those_of_single_steps(cell: str, burn_in: int) -> None:
    env = create_env("CartPole-v1", parallel=2)
    agent = RecurrentValueAgent.from_config({"network": {"torso": [8], "recurrent": cell}}, env)
    state = fresh_state(agent, env)
    keys = jax.random.split(jax.random.key(1), 3)
    first = jax.tree.map(lambda x: jax.random.normal(keys[2], x.shape), agent.network.initial_state((N,)))
    starts = jnp.zeros((T, N), bool).at[4, 0].set(True)
    obs, next_obs = (jax.random.normal(key, (T, N, 4)) for key in keys[:2])
    batch = SampleBatch(obs=obs, next_obs=next_obs, extras=PyTreeDict(recurrent_state=first, starts=starts))
    found = jax.jit(agent.values_after_burn_in, static_argnums=3)(state, state.params, batch, burn_in)
    recurrent_state, values, next_values = first, [], []
    for t in range(T):
        recurrent_state = jax.tree.map(lambda x, t=t: jnp.where(starts[t][:, None], 0.0, x), recurrent_state)
        q_values, recurrent_state = agent.q_values_and_state(state, state.params, obs[t], recurrent_state)
        values.append(q_values)
        next_values.append(agent.q_values_and_state(state, state.params, next_obs[t], recurrent_state)[0])
    for one, expected in zip(found, (values, next_values), strict=True):
        np.testing.assert_allclose(one, jnp.stack(expected)[burn_in:], rtol=1e-4, atol=1e-5)


def test_an_agent_without_a_cell_is_refused() -> None:
    env = create_env("CartPole-v1", parallel=2)
    with raises_naming(ValueError, "agent.network.recurrent", "null"):
        RecurrentValueAgent.from_config({"network": {"recurrent": None}}, env)

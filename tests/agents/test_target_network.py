"""The slow copy follows when it is due."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.agents.target_network import init_online_optimizer, update_online_and_target
from evorl.ops.optimization import Optimizer
from evorl.types import PyTreeDict


@pytest.mark.parametrize(("tau", "interval"), [(1.0, 3), (0.25, 1), (0.5, 2)])
def test_the_copy_follows_at_intervals(tau: float, interval: int) -> None:
    """A gradient of -1 and a step size of 1: the network counts the updates."""
    optimizer = Optimizer(name="sgd", learning_rate=1.0)
    state = AgentState(params=PyTreeDict(online=jnp.zeros(()), target=jnp.zeros(())))
    opt_state = init_online_optimizer(optimizer, state)

    def loss(params: jax.Array, agent_state: AgentState, factor: float) -> tuple[jax.Array, PyTreeDict]:
        return -factor * params, PyTreeDict(target=agent_state.params.target)

    expected = 0.0
    for update in range(1, 8):
        state, opt_state, auxiliary = update_online_and_target(
            loss, optimizer, state, opt_state, 1.0, progress=jnp.zeros(()), tau=tau, interval=interval
        )
        np.testing.assert_allclose(auxiliary.target, expected, rtol=1e-6)
        expected += tau * (update - expected) if update % interval == 0 else 0.0
        np.testing.assert_allclose(state.params.online, update, rtol=1e-6)
        np.testing.assert_allclose(state.params.target, expected, rtol=1e-6)
    assert int(opt_state.num_updates) == 7

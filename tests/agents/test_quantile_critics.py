"""The base of soft actor-critics with quantile critics: what TQC and BRO share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.agents.quantile_critics import QuantileCriticsAgent
from evorl.algorithms.bro import BROAgent
from evorl.algorithms.tqc import TQCAgent
from evorl.envs import create_env
from evorl.types import PyTreeDict
from tests.support.small_workflows import fresh_state, transitions


@pytest.fixture(params=[TQCAgent, BROAgent], scope="module")
def agent(request: pytest.FixtureRequest) -> Any:
    settings = {"network": {"torso": [8]}, "num_critics": 2, "num_atoms": 3}
    made = request.param.from_config(settings, create_env("Pendulum-v1", parallel=2))
    assert isinstance(made, QuantileCriticsAgent)
    return made


def test_values_are_means_of_the_quantiles(agent: Any) -> None:
    outputs = np.arange(12.0, dtype=np.float32).reshape(2, 2, 3)  # [K, N, M]
    np.testing.assert_array_equal(agent.expected(outputs), outputs.mean(axis=2))
    np.testing.assert_array_equal(agent.pool_critics(outputs), outputs.mean(axis=(0, 2)))


def test_atoms_at_their_targets_have_no_error(agent: Any) -> None:
    """With rewards equal to all quantiles and no discount, the loss is 0; divided by 2, another loss halves."""
    env = create_env("Pendulum-v1", parallel=2)
    state, batch = fresh_state(agent, env), transitions(env, 4)
    params = jax.tree.map(np.zeros_like, state.params.critic)
    batch = batch.replace(rewards=np.zeros(4), extras=PyTreeDict(discounts=np.zeros(4), weights=np.ones(4)))
    loss, losses = agent.quantile_loss(params, state, batch, np.ones((4, 3)))
    assert float(loss) == 0.0
    assert losses.td_errors.shape == (2, 4)
    batch = batch.replace(rewards=np.full(4, 2.0))
    whole, half = (agent.quantile_loss(params, state, batch, np.ones((4, 3)), divisor)[0] for divisor in (1, 2))
    # Quantiles at 1/6, 1/2 and 5/6 below all targets: the sum of the fractions times huber(2) = 1.5, for two critics.
    np.testing.assert_allclose([whole, half], [2 * 1.5 * 1.5, 1.5 * 1.5], rtol=1e-6)

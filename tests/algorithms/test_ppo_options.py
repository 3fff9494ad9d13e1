"""Options of PPO together: adaptive learning rates, quantile values, drift functions, and frozen statistics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.ppo import PPOWorkflow
from tests.algorithms.test_ppo import _train
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes
from tests.support.small_workflows import PPO_CONFIG, one_iteration, small

OPTIONS: dict[str, Any] = {
    "desired_kl": 1e-4,
    "normalize_until": 200.0,
    "agent": {"network": {"torso": [8], "num_quantiles": 5}, "surrogate": "dpo", "normalize_obs": True},
}


class TestContract(WorkflowContract):
    """PPO with all options."""

    workflow = PPOWorkflow
    SMALL = {**PPO_CONFIG, **OPTIONS}
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


class TestProbesWithQuantiles(ActorCriticProbes):
    """The means of the quantiles are the values, and the drift function finds the best actions."""

    @staticmethod
    def train(continuous: bool) -> tuple[bool, Any, Any]:
        return _train(continuous, num_iterations=600, num_quantiles=16)


def batch_of(workflow: Any, state: Any) -> Any:
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    return workflow.agent.batch_with_advantages(state.agent_state, trajectory, 0.9, 0.95)


@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_the_value_is_the_mean_of_the_quantiles(recurrent: str | None) -> None:
    agent = {"network": {"torso": [8], "num_quantiles": 5, "recurrent": recurrent}}
    workflow: Any = small("ppo", agent=agent)
    state = workflow.init(0)
    batch = batch_of(workflow, state)
    estimates = workflow.agent.estimates_of_batch(state.agent_state, state.agent_state.params, batch)
    assert estimates.quantiles.shape == (*batch.log_probs.shape, 5)
    np.testing.assert_allclose(estimates.values, estimates.quantiles.mean(axis=-1), rtol=1e-6)
    np.testing.assert_allclose(batch.values, estimates.values, atol=1e-5)


def test_the_loss_of_quantiles() -> None:
    """By hand: the mean over quantiles of ``|tau - 1[u < 0]| huber(u) / kappa``, all with the same GAE target."""
    workflow: Any = small("ppo", agent={**OPTIONS["agent"], "value_clip_epsilon": 0.7, "value_coefficient": 1.0})
    state = workflow.init(0)
    batch, agent, agent_state = batch_of(workflow, state).flatten(), workflow.agent, state.agent_state
    quantiles = np.asarray(agent.estimates(agent_state, agent_state.params, batch.obs).quantiles)
    errors = np.asarray(batch.targets)[:, None] - quantiles
    taus = (np.arange(5) + 0.5) / 5
    huber = np.where(np.abs(errors) <= 0.7, 0.5 * errors**2, 0.7 * (np.abs(errors) - 0.35))
    expected = (np.abs(taus - (errors < 0.0)) * huber / 0.7).mean()
    _, losses = agent.loss(agent_state.params, agent_state, batch, jnp.float32(0.0))
    np.testing.assert_allclose(losses.value_loss, expected, rtol=1e-5)


def test_the_surrogate_is_that_of_the_setting() -> None:
    workflow: Any = small("ppo", "Pendulum-v1")
    state = workflow.init(0)
    batch, agent_state = batch_of(workflow, state).flatten().with_standardized_advantages(), state.agent_state
    moved = jax.tree.map(lambda x: x + 0.3, agent_state.params)
    losses = {}
    for name in ("clip", "dpo"):
        agent = workflow.agent.replace(surrogate=name)
        losses[name] = agent.loss(moved, agent_state, batch, jnp.float32(0.0))[1].policy_loss
        at_start = agent.loss(agent_state.params, agent_state, batch, jnp.float32(0.0))[1].policy_loss
        np.testing.assert_allclose(at_start, -batch.advantages.mean(), atol=1e-4)  # all ratios are 1
    assert abs(float(losses["clip"] - losses["dpo"])) > 1e-4


@pytest.mark.parametrize("num_quantiles", [0, 2.5, "many"])
def test_impossible_numbers_of_quantiles(num_quantiles: Any) -> None:
    with raises_naming(ValueError, "agent.network.num_quantiles", str(num_quantiles)):
        small("ppo", agent={"network": {"torso": [8], "num_quantiles": num_quantiles}})


def test_quantiles_are_an_option_of_ppo_only() -> None:
    with raises_naming(ValueError, "num_quantiles"):
        small("a2c", agent={"network": {"torso": [8], "num_quantiles": 5}})


@pytest.mark.parametrize("algorithm", ["ppo", "trpo"])
def test_statistics_no_longer_change_after_their_last_observation(algorithm: str) -> None:
    """64 observations per iteration: with a limit of 100, the second trajectory is the last one that counts."""
    agent = {"network": {"torso": [8]}, "normalize_obs": True}
    limited, free = (small(algorithm, agent=agent, **x) for x in ({"normalize_until": 100.0}, {}))
    states = [workflow.init(0) for workflow in (limited, free)]
    counts = []
    for _ in range(4):
        states = [one_iteration(w, s)[1] for w, s in zip((limited, free), states, strict=True)]
        counts.append([float(s.agent_state.obs_preprocessor_state.count) for s in states])
    assert counts == [[64.0, 64.0], [128.0, 128.0], [128.0, 192.0], [128.0, 256.0]]


def test_a_limit_of_statistics_needs_statistics() -> None:
    for algorithm in ("ppo", "trpo", "pqn"):
        with raises_naming(ValueError, "normalize_until=100", "agent.normalize_obs=true"):
            small(algorithm, normalize_until=100.0)
    with raises_naming(ValueError, "normalize_until", "got 1000000000"):
        small("ppo", normalize_until=1e9, agent={"network": {"torso": [8]}, "normalize_obs": True})

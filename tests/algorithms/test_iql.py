"""IQL: losses match the paper, values estimate recorded actions, and the policy prefers the better ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.iql import IQLAgent, IQLWorkflow
from evorl.envs import create_env
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.compilation import compiled_to_run_long
from tests.support.recorded_pendulum import pendulum_columns, recorded_pendulum
from tests.support.small_workflows import SAC_CONFIG, fresh_state, moved_apart, transitions


class TestContract(WorkflowContract):
    """Offline: nothing is collected, and every step is an update."""

    workflow = IQLWorkflow
    SMALL = {**SAC_CONFIG, "replay_capacity": 256, "replay": {"load": recorded_pendulum(), "other_env": True}}


class TestAgent(AgentContract):
    workflow = IQLWorkflow
    settings = TestContract.SMALL["agent"]


def _agent(env_name: str, **settings: Any) -> tuple[IQLAgent, Any, SampleBatch]:
    env = create_env(env_name, parallel=2)
    agent = IQLAgent.from_config({"network": {"torso": [8]}, "normalize_obs": False, **settings}, env)
    return agent, moved_apart(fresh_state(agent, env), "target_critic"), transitions(env, 6)


@pytest.mark.parametrize("env_name", ["Pendulum-v1", "CartPole-v1"])
def test_losses_by_hand(env_name: str) -> None:
    agent, state, batch = _agent(env_name, expectile=0.8, advantage_scale=2.0, greatest_weight=1.5)
    params, weights = state.params, np.asarray(batch.extras.weights)
    discrete = env_name == "CartPole-v1"
    taken = np.arange(6), np.asarray(batch.actions)

    def critics(of: Any) -> np.ndarray:
        if discrete:
            return np.asarray(agent.critic_network.apply(of, batch.obs))[:, *taken]
        return np.asarray(agent.critic_network.apply(of, batch.obs, batch.actions))

    recorded = critics(params.target_critic).min(axis=0)
    values = np.asarray(agent.value_network.apply(params.value, batch.obs))
    errors = recorded - values
    asymmetry = np.where(errors < 0, 0.2, 0.8)
    loss, _ = agent.value_loss(params.value, state, batch)
    np.testing.assert_allclose(loss, (weights * asymmetry * errors**2).mean(), rtol=1e-5)

    next_values = np.asarray(agent.value_network.apply(params.value, batch.next_obs))
    targets = np.asarray(batch.rewards) + np.asarray(batch.extras.discounts) * next_values
    loss, reported = agent.critic_loss(params.critic, state, batch)
    np.testing.assert_allclose(loss, (weights * (targets - critics(params.critic)) ** 2).mean(axis=1).sum(), rtol=1e-5)
    assert reported.td_errors.shape == (6,)

    outputs = np.asarray(agent.policy_network.apply(params.policy, batch.obs))
    if discrete:
        log_probs = np.asarray(jax.nn.log_softmax(outputs))[taken]
    else:
        mean, log_std = np.tanh(outputs[:, 0]), outputs[:, 1]
        noise = (np.asarray(batch.actions)[:, 0] - mean) / np.exp(log_std)
        log_probs = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    counts = np.minimum(np.exp(2.0 * errors), 1.5)
    loss, _ = agent.actor_loss(params.policy, state, batch)
    np.testing.assert_allclose(loss, -(weights * counts * log_probs).mean(), rtol=1e-4)


def test_an_update_leaves_no_part_as_it_was() -> None:
    agent, state, batch = _agent("Pendulum-v1")
    workflow = TestContract.make().replace(agent=agent)
    opt_state = workflow.init_optimizers(state)
    after, _, losses = jax.jit(workflow.learn_from)(
        state, opt_state, batch, jax.random.split(jax.random.key(0), 6), 0.0
    )
    for name, before in state.params.items():
        changed = [
            not np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (before, after.params[name])), strict=True)
        ]
        assert any(changed), name
    assert set(losses) == {*workflow.loss_names, "td_errors"}


@compiled_to_run_long()
def test_state_values_are_an_expectile_and_the_policy_finds_the_better_actions() -> None:
    """In one-step episodes values are between the mean and the largest reward, and the policy approaches the best
    action.
    """
    columns = pendulum_columns(4096, seed=1)
    count = len(columns["rewards"])
    batch = SampleBatch(
        **{name: jnp.asarray(columns[name]) for name in ("obs", "actions", "rewards", "next_obs")},
        extras=PyTreeDict(discounts=jnp.zeros(count), weights=jnp.ones(count)),
    )
    workflow = IQLWorkflow.build_from_config(
        {
            **TestContract.SMALL,
            "env": {"name": "Pendulum-v1"},
            "agent": {
                "network": {"torso": [64, 64]},
                "expectile": 0.9,
                "normalize_obs": False,
                "advantage_scale": 10.0,
            },
            **{f"{name}_optimizer": {"learning_rate": 3e-3} for name in ("actor", "value", "critic")},
            "tau": 0.1,
        }
    )
    agent, state = workflow.agent, fresh_state(workflow.agent, workflow.env)
    keys = jax.random.split(jax.random.key(0), count)

    @jax.jit
    def learn(state: Any, opt_state: Any) -> Any:
        def body(_: int, carry: tuple) -> tuple:
            return workflow.learn_from(*carry, batch, keys, jnp.zeros(()))[:2]

        return jax.lax.fori_loop(0, 400, body, (state, opt_state))[0]

    state = learn(state, workflow.init_optimizers(state))
    values = np.asarray(agent.state_values(state, state.params.value, batch.obs))
    rewards = np.asarray(batch.rewards)
    assert rewards.mean() < values.mean() < rewards.max()
    assert (rewards < values).mean() > 0.6  # about 0.5 for the mean
    actions, _ = agent.evaluate_actions(state, batch, jax.random.key(0))
    assert np.abs(np.asarray(actions - batch.obs[:, :1] / 2)).mean() < 0.15  # 0.53 for random actions

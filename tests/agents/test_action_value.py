"""The base agent of value-based algorithms: network inputs, exploration, and invalid settings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.agents.action_value import (
    ActionValueAgent,
    init_online_optimizer,
    update_online_and_target,
    values_of_actions,
)
from evorl.envs import create_env
from evorl.ops.normalization import normalize, update_statistics
from evorl.ops.optimization import Optimizer
from evorl.rollout import recurrent_state_of
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import small

OBS = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


def _agent(env: str = "CartPole-v1", **settings: Any) -> tuple[ActionValueAgent, AgentState]:
    vector_env = create_env(env, parallel=2)
    agent = ActionValueAgent.from_config({"network": {"torso": [8]}, **settings}, vector_env)
    return agent, agent.init(vector_env.obs_space, vector_env.action_space, jax.random.key(0))


def test_it_exploits_the_greatest_value() -> None:
    agent, state = _agent()
    actions, _ = agent.evaluate_actions(state, SampleBatch(obs=OBS), jax.random.key(0))
    np.testing.assert_array_equal(actions, agent.q_values(state, state.params, OBS).argmax(axis=-1))


def test_it_explores_as_the_schedule_says() -> None:
    agent, state = _agent(epsilon={"start": 0.8, "end": 0.2, "share": 0.5})
    rows = SampleBatch(obs=jnp.broadcast_to(OBS[:1], (20_000, 4)))
    greedy = int(agent.evaluate_actions(state, SampleBatch(obs=OBS[:1]), jax.random.key(0))[0][0])
    for acting, epsilon in ((state, 0.8), (agent.at_progress(state, jnp.float32(0.25)), 0.5)):
        actions, _ = agent.compute_actions(acting, rows, jax.random.key(5))
        np.testing.assert_allclose((np.asarray(actions) != greedy).mean(), epsilon / 2, atol=0.015)


def test_every_episode_draws_its_final_epsilon() -> None:
    """Each episode samples its final epsilon uniformly between the schedule's end and ``max_final_epsilon``."""
    agent, state = _agent(epsilon={"start": 1.0, "end": 0.2, "share": 0.5}, max_final_epsilon=0.6)
    acting = agent.at_progress(state, jnp.float32(1.0))
    np.testing.assert_allclose(acting.extra_state, [0.2, 0.6], rtol=1e-6)
    np.testing.assert_allclose(agent.at_progress(state, jnp.float32(0.0)).extra_state, [1.0, 1.0])
    fresh = PyTreeDict(recurrent_state=PyTreeDict(drawn=jnp.zeros(20_000)))
    rows = SampleBatch(obs=jnp.broadcast_to(OBS[:1], (20_000, 4)), extras=fresh)
    greedy = int(agent.evaluate_actions(state, SampleBatch(obs=OBS[:1], extras=PyTreeDict()), jax.random.key(0))[0][0])
    actions, extras = agent.compute_actions(acting, rows, jax.random.key(5))
    drawn = np.asarray(extras.recurrent_state.drawn)
    assert drawn.min() > 0.0
    np.testing.assert_allclose(np.quantile(drawn, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.02)
    is_random = np.asarray(actions) != greedy
    for low, high in ((0.0, 0.5), (0.5, 1.0)):  # with two actions, half of the random actions are greedy
        share = is_random[(drawn > low) & (drawn <= high)].mean()
        np.testing.assert_allclose(share, (0.2 + 0.4 * (low + high) / 2) / 2, atol=0.015)
    _, after = agent.compute_actions(acting, rows.replace(extras=extras), jax.random.key(6))
    np.testing.assert_array_equal(after.recurrent_state.drawn, drawn)


def test_final_epsilons_that_cannot_be_are_refused() -> None:
    with raises_naming(ValueError, "agent.max_final_epsilon=0.1", "0.2", "agent.epsilon.end"):
        _agent(epsilon={"start": 1.0, "end": 0.2}, max_final_epsilon=0.1)
    with raises_naming(ValueError, "agent.max_final_epsilon=0.5", "R2D2Agent", "remove"):
        small("r2d2", agent={"max_final_epsilon": 0.5})


@pytest.mark.parametrize(
    ("epsilon", "path"),
    [(1.5, ""), (-0.5, ""), ({"start": -3.0, "end": 0.1}, ".start"), ({"start": 1.0, "end": 7.0}, ".end")],
)
@pytest.mark.parametrize("algorithm", ["dqn", "r2d2", "pqn"])
def test_an_epsilon_that_is_no_probability_is_refused(algorithm: str, epsilon: Any, path: str) -> None:
    with raises_naming(ValueError, f"agent.epsilon{path}", "[0, 1]"):
        small(algorithm, agent={"epsilon": epsilon})


@pytest.mark.parametrize("algorithm", ["dqn", "pqn"])
def test_epsilons_are_drawn_in_a_training(algorithm: str) -> None:
    """Each new episode of a training run samples another epsilon."""
    workflow = small(algorithm, agent={"network": {"torso": [8]}, "max_final_epsilon": 0.5})
    state, drawn = workflow.init(0), []
    for _ in range(16):
        drawn.append(np.asarray(recurrent_state_of(state.env_state).drawn))
        _, state = workflow.step(state)
    assert len(np.unique(np.stack(drawn)[:, 0])) > 2
    assert np.isfinite(workflow.evaluate(state).episode_return)


def test_its_network_sees_normalized_observations() -> None:
    agent, state = _agent(normalize_obs=True)
    assert state.obs_preprocessor_state is not None
    statistics = update_statistics(state.obs_preprocessor_state, 5.0 + 3.0 * OBS)
    seen = agent.q_values(state.replace(obs_preprocessor_state=statistics), state.params, OBS)
    plain = agent.q_values(state.replace(obs_preprocessor_state=None), state.params, normalize(statistics, OBS))
    np.testing.assert_allclose(seen, plain, rtol=1e-5)


def test_entries_of_actions() -> None:
    values = jnp.arange(24.0).reshape(2, 3, 4)
    actions = jnp.array([2, 0])
    np.testing.assert_array_equal(values_of_actions(values, actions), [[8, 9, 10, 11], [12, 13, 14, 15]])
    np.testing.assert_array_equal(values_of_actions(values[..., 0], actions), [8, 12])


def test_continuous_actions_are_refused() -> None:
    with raises_naming(ValueError, "ActionValue acts in Discrete", "A2C, BRO, CrossQ", "PPO", "TRPO"):
        _agent("Pendulum-v1")


@pytest.mark.parametrize(("tau", "interval"), [(1.0, 3), (0.25, 1), (0.5, 2)])
def test_the_copy_follows_at_intervals(tau: float, interval: int) -> None:
    """The target network is copied at fixed numbers of updates, which the online parameter counts."""
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
        np.testing.assert_allclose(state.params.target, expected, rtol=1e-6)
        np.testing.assert_allclose(state.params.online, update, rtol=1e-6)
        expected += tau * (update - expected) if update % interval == 0 else 0.0  # due before the next update
    assert int(opt_state.num_updates) == 7

"""The base agent of on-policy actor-critics: separate and shared networks, advantages, and invalid settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.agents.actor_critic import ActorCriticAgent
from evorl.algorithms.ppo import PPOAgent
from evorl.envs import create_env
from evorl.execution.restoration import restore
from evorl.ops.returns import gae
from evorl.runs.checkpointer import RunCheckpointer
from evorl.sample_batch import SampleBatch
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical, fresh_state, small

OBS = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


def _agent(**network: Any) -> tuple[ActorCriticAgent, AgentState]:
    env = create_env("CartPole-v1", parallel=2)
    agent = PPOAgent.from_config({"network": {"torso": [8], **network}}, env)
    return agent, fresh_state(agent, env)


def test_networks_of_their_own_do_not_touch_each_other() -> None:
    agent, state = _agent()
    assert set(state.params) == {"policy", "value"}
    gradient = jax.grad(lambda params: agent.values(state, params, OBS).sum())(state.params)
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient.policy))
    assert any(leaf.any() for leaf in jax.tree.leaves(gradient.value))


def test_heads_on_a_shared_network_both_teach_it() -> None:
    agent, state = _agent(shared=True)
    assert set(state.params) == {"policy", "shared", "value"}
    for output in (agent.values, lambda *given: agent.policy(*given).log_probs[..., 0]):
        gradient = jax.grad(lambda params, output=output: output(state, params, OBS).sum())(state.params)
        assert any(leaf.any() for leaf in jax.tree.leaves(gradient.shared))
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(state.params[name])) for name in ("shared", "policy", "value")]
    assert sizes == [4 * 8 + 8, 8 * 2 + 2, 8 + 1]


@pytest.mark.parametrize("algorithm", ["a2c", "impala", "ppo", "reinforce"])
def test_every_algorithm_learns_with_a_shared_network(algorithm: str) -> None:
    workflow = small(algorithm, agent={"network": {"torso": [8], "shared": True}})
    first = workflow.init(0)
    _, state = workflow.step(workflow.step(first)[1])
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), first.agent_state.params, state.agent_state.params)
    assert all(any(jax.tree.leaves(moved[name])) for name in ("shared", "policy", "value"))


@pytest.mark.parametrize("shared", [False, True])
def test_the_initial_deviation_of_continuous_actions_is_a_setting(shared: bool) -> None:
    env = create_env("Pendulum-v1", parallel=2)
    network = {"torso": [8], "shared": shared, "initial_log_std": -2}
    agent = PPOAgent.from_config({"network": network}, env)
    state = fresh_state(agent, env)
    policy = agent.policy(state, state.params, jnp.ones((3, 3)))
    np.testing.assert_allclose(policy.scale, np.full((3, 1), np.exp(-2.0)), rtol=1e-6)


@pytest.mark.parametrize("value", ["small", float("nan"), 3, True])
def test_an_invalid_initial_deviation_is_named(value: Any) -> None:
    with raises_naming(ValueError, "agent.network.initial_log_std", "[-20, 2]", str(value)):
        _agent(initial_log_std=value)


def test_a_shared_network_reads_one_observation() -> None:
    env = create_env("CartPole-v1", parallel=2)
    config = {"network": {"shared": True}, "policy_obs_key": "a", "value_obs_key": "a"}
    with raises_naming(ValueError, "one array", "observation key 'a'"):
        PPOAgent.from_config(config, env)
    with raises_naming(ValueError, "network.shared", "true or false, got 1"):
        PPOAgent.from_config({"network": {"shared": 1}}, env)


def test_advantages_are_gae_with_the_values_at_collection() -> None:
    workflow = small("a2c", "Pendulum-v1", agent={"network": {"torso": [8]}, "normalize_obs": True})
    _, state = workflow.step(workflow.init(0))
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    agent, agent_state = workflow.agent, state.agent_state
    batch = agent.batch_with_advantages(agent_state, trajectory, 0.9, 0.8)
    values, next_values = (
        agent.values(agent_state, agent_state.params, obs) for obs in (trajectory.obs, trajectory.next_obs)
    )
    termination = trajectory.extras.env_extras.termination
    steps = (trajectory.rewards, values, next_values, termination, trajectory.dones)
    advantages, targets = gae(*steps, discount=0.9, gae_lambda=0.8)
    np.testing.assert_allclose(batch.advantages, advantages, rtol=1e-5)
    np.testing.assert_allclose(batch.targets, targets, rtol=1e-5)
    np.testing.assert_allclose(batch.values, values, rtol=1e-5)
    standard = batch.with_standardized_advantages()
    np.testing.assert_allclose([standard.advantages.mean(), standard.advantages.std()], [0.0, 1.0], atol=1e-4)
    np.testing.assert_array_equal(standard.targets, batch.targets)


def test_actions_and_log_probabilities_are_those_of_the_policy() -> None:
    env = create_env("Pendulum-v1", parallel=2)
    agent = PPOAgent.from_config({"network": {"torso": [8]}}, env)
    state = fresh_state(agent, env)
    obs = jnp.ones((5, 3))
    actions, remembered = agent.compute_actions(state, SampleBatch(obs=obs), jax.random.key(1))
    policy = agent.policy(state, state.params, obs)
    np.testing.assert_allclose(remembered.log_prob, policy.log_prob(remembered.raw_action), rtol=1e-5)
    np.testing.assert_allclose(actions, np.tanh(remembered.raw_action), rtol=1e-5)
    np.testing.assert_allclose(
        agent.evaluate_actions(state, SampleBatch(obs=obs), jax.random.key(1))[0], np.tanh(policy.loc), rtol=1e-5
    )


CELLS = {
    "gru": {"recurrent": {"name": "gru", "size": 8}},
    "lstm, shared": {"recurrent": {"name": "lstm", "size": 8}, "shared": True},
    "dilated lstm": {"recurrent": {"name": "dilated_lstm", "size": 8, "num_cores": 2}, "heads": {"policy": [4]}},
    "min_gru": {"recurrent": {"name": "min_gru", "size": 8}},
    "lru, shared": {"recurrent": {"name": "lru", "size": 8}, "shared": True},
    "gtrxl": {"recurrent": {"name": "gtrxl", "size": 8, "num_layers": 2, "window": 3}},
}


@pytest.fixture(scope="module", params=CELLS)
def remembering(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """Return a workflow with a recurrent agent, its state, and a trajectory with episode ends."""
    network = {"torso": [8], **CELLS[request.param]}
    workflow = small("ppo", "CartPole-v1", agent={"network": network, "normalize_obs": True}, rollout_length=24)
    collect = jax.jit(lambda w, s: w.collect(s))
    _, before = collect(workflow, workflow.init(0))
    trajectory, _ = collect(workflow, before)
    assert trajectory.dones.any()
    return workflow, before, trajectory


def test_what_is_learned_from_is_what_acted(remembering: tuple) -> None:
    """On the stored recurrent states, the current policy equals the policy that collected the data: all
    ratios are 1.
    """
    workflow, state, trajectory = remembering
    agent = workflow.agent
    assert all(leaf.shape[:2] == (1, 8) for leaf in jax.tree.leaves(trajectory.extras.recurrent_state))
    assert any(leaf.any() for leaf in jax.tree.leaves(trajectory.extras.recurrent_state))
    estimates, _ = agent.estimates_of_trajectory(state.agent_state, state.agent_state.params, trajectory)
    log_prob = estimates.policy.log_prob(trajectory.extras.policy_extras.raw_action)
    np.testing.assert_allclose(log_prob, trajectory.extras.policy_extras.log_prob, rtol=1e-3, atol=1e-5)


def test_successors_are_valued_with_the_recurrent_state_of_their_episode(remembering: tuple) -> None:
    workflow, state, trajectory = remembering
    agent, agent_state = workflow.agent, state.agent_state
    estimates, next_values = agent.estimates_of_trajectory(agent_state, agent_state.params, trajectory)
    going_on = ~np.asarray(trajectory.dones[:-1])
    np.testing.assert_allclose(next_values[:-1][going_on], estimates.values[1:][going_on], rtol=1e-3, atol=1e-5)
    ended = np.argwhere(trajectory.dones)[0]
    recurrent_state = jax.tree.map(lambda x: x[tuple(ended)][None], estimates.recurrent_state)
    alone = agent.estimates(agent_state, agent_state.params, trajectory.next_obs[tuple(ended)][None], recurrent_state)
    np.testing.assert_allclose(next_values[tuple(ended)], alone.values[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "cell", "product"),
    [(name, "lstm", "state_gates") for name in ("a2c", "impala", "ppo", "reinforce", "trpo")]
    + [(name, "min_gru", "input_gates") for name in ("a2c", "impala", "ppo", "reinforce", "trpo")]
    + [(name, "lru", "state_product") for name in ("a2c", "impala", "ppo", "reinforce", "trpo")]
    + [(name, "gtrxl", "layers_0") for name in ("a2c", "impala", "ppo", "reinforce", "trpo")],
)
def test_every_algorithm_learns_with_a_recurrent_network(algorithm: str, cell: str, product: str) -> None:
    network = {"torso": [8], "recurrent": {"name": cell, "size": 4}}
    workflow = small(algorithm, agent={"network": network})
    first = workflow.init(0)
    _, state = workflow.step(workflow.step(first)[1])
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), first.agent_state.params, state.agent_state.params)
    for name in ("policy", "value"):
        assert all(jax.tree.leaves(moved[name].cell[product]))  # earlier steps influence the state
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent_state.params))
    assert workflow.evaluate(state).episode_return.shape == ()


@pytest.mark.parametrize("cell", ["min_gru", "lru"])
def test_a_training_with_linear_memory_is_resumed_exactly(cell: str, tmp_path: Path) -> None:
    network = {"torso": [8], "recurrent": {"name": cell, "size": 4}}

    def made(num_steps: int) -> Any:
        return small("ppo", agent={"network": network}, total_timesteps=num_steps, optimizer={"learning_rate": 1e-3})

    workflow = made(64 * 4)
    whole = workflow.learn(key=1)
    made(64 * 2).learn(key=1, checkpointer=RunCheckpointer(tmp_path))
    state, progress = restore(workflow, RunCheckpointer(tmp_path), 1, "latest")
    resumed = workflow.learn(state, progress=progress)
    assert_identical(resumed.agent_state.params, whole.agent_state.params)
    assert_identical(resumed.env_state, whole.env_state)


def test_heads_have_layers_of_their_own() -> None:
    _, state = _agent(shared=True, heads={"policy": [5], "value": []})
    shapes = jax.tree.map(jnp.shape, state.params)
    assert shapes.policy.torso.Dense_0.kernel == (8, 5)
    assert set(shapes.value) == {"head"}
    with raises_naming(ValueError, "agent.network.heads 'polcy'", "policy"):
        _agent(heads={"polcy": [5]})

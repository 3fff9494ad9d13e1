"""RLPD: targets of sampled critics, the order of updates, and learning from recorded and new transitions."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.rlpd import RLPDAgent, RLPDWorkflow
from evorl.assembly import workflow_from_config
from evorl.envs import create_env
from evorl.sample_batch import SampleBatch
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.config_files import composed
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, train_soft_actor_critic
from tests.support.recorded_pendulum import recorded_pendulum
from tests.support.small_workflows import SAC_CONFIG, arrays, fresh_state, moved_apart, small, transitions

NUM_CRITICS = 3


class TestContract(WorkflowContract):
    """With recorded transitions in the second buffer."""

    workflow = RLPDWorkflow
    SMALL = {
        **SAC_CONFIG,
        "policy_delay": 2,
        "replay_capacity": 256,
        "replay": {"load": recorded_pendulum(), "other_env": True},
        "agent": {"network": {"torso": [8]}, "num_critics": NUM_CRITICS},
    }


class TestAgent(AgentContract):
    workflow = RLPDWorkflow
    settings = TestContract.SMALL["agent"]


class TestProbes(ActorCriticProbes):
    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls) -> tuple:
        return train_soft_actor_critic(
            RLPDWorkflow,
            {"num_critics": NUM_CRITICS},
            continuous=True,
            runs_long=True,
            policy_delay=1,
            total_timesteps=16 * 1000,
        )


def _agent(**settings: Any) -> tuple[RLPDAgent, AgentState, SampleBatch]:
    env = create_env("Pendulum-v1", parallel=2)
    config = {"network": {"torso": [8]}, "num_critics": NUM_CRITICS, "temperature": 0.3, **settings}
    agent = RLPDAgent.from_config(config, env)
    return agent, moved_apart(fresh_state(agent, env), "target_critic"), transitions(env, 6)


def _keys(seed: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed), 6)


def _next_values(agent: RLPDAgent, state: AgentState, batch: SampleBatch, keys: jax.Array) -> tuple[Any, Any]:
    """Return values ``[K, N]`` by all target critics of the sampled next actions, and their log-probabilities."""
    action_keys = jax.vmap(jax.random.split)(keys)[:, 0]
    actions, log_prob = agent.policy(state, state.params.policy, batch.next_obs).sample_and_log_prob(action_keys)
    return np.asarray(agent.critic_network.apply(state.params.target_critic, batch.next_obs, actions)), log_prob


@pytest.mark.parametrize("entropy", [True, False])
def test_targets_are_the_minimum_over_critics_sampled_anew(entropy: bool) -> None:
    """Each update samples two different target critics for its whole batch; over updates, every pair occurs."""
    agent, state, batch = _agent(entropy_in_targets=entropy)
    loss_fn = jax.jit(agent.critic_loss)
    values = np.asarray(agent.critic_network.apply(state.params.critic, batch.obs, batch.actions))
    pairs = set()
    for seed in range(20):
        _, losses = loss_fn(state.params.critic, state, batch, _keys(seed))
        next_values, log_prob = _next_values(agent, state, batch, _keys(seed))
        costs = 0.3 * np.asarray(log_prob) if entropy else 0.0
        matching = []
        for pair in itertools.combinations_with_replacement(range(NUM_CRITICS), 2):
            targets = batch.rewards + batch.extras.discounts * (next_values[list(pair)].min(axis=0) - costs)
            if np.allclose(losses.td_errors, np.asarray(targets) - values, rtol=1e-4, atol=1e-5):
                matching.append(pair)
        different = [pair for pair in matching if pair[0] != pair[1]]
        assert different, matching
        if len(matching) == 1:
            pairs.update(different)
    assert pairs == set(itertools.combinations(range(NUM_CRITICS), 2))


def test_the_policy_follows_the_mean_of_all_critics() -> None:
    agent, state, batch = _agent()
    loss, _ = jax.jit(agent.actor_loss)(state.params.policy, state, batch, _keys(1))
    actions, log_prob = agent.policy(state, state.params.policy, batch.obs).sample_and_log_prob(_keys(1))
    values = agent.critic_network.apply(state.params.critic, batch.obs, actions)
    np.testing.assert_allclose(loss, (0.3 * log_prob - values.mean(axis=0)).mean(), rtol=1e-5)


def test_only_critics_have_layer_normalization() -> None:
    _, state, _ = _agent()
    assert any("LayerNorm" in path for path in arrays(state.params.critic))
    assert not any("LayerNorm" in path for path in arrays(state.params.policy))


def test_policy_and_temperature_are_updated_last() -> None:
    """The last of three updates moves them, by the critics after it."""
    workflow = small("rlpd", "Pendulum-v1", updates_per_iteration=1, policy_delay=3, learning_starts=0)
    state = workflow.init(0)
    changed = []
    for _ in range(6):
        before = arrays(state.agent_state.params)
        _, state = workflow.step(state)
        after = arrays(state.agent_state.params)
        moved = {path.split("'")[1] for path in after if (after[path] != before[path]).any()}
        changed.append({"policy", "log_temperature"} & moved)
        assert {"critic", "target_critic"} <= moved
    assert changed == [set(), set(), {"policy", "log_temperature"}] * 2


def test_settings_are_those_published() -> None:
    workflow: Any = workflow_from_config(composed("agent=rlpd", "env=pendulum", "~experiment"))
    agent = workflow.agent
    assert (agent.critic_network.num_critics, agent.num_target_critics) == (10, 2)
    assert [layer.size for layer in agent.critic_network.torso.layers] == [256, 256]
    assert agent.critic_network.torso.layer_norm
    assert (agent.target_entropy, agent.temperature, agent.entropy_in_targets) == (-0.5, 1.0, True)
    numbers = (workflow.batch_size, workflow.updates_per_iteration, workflow.policy_delay, workflow.learning_starts)
    assert numbers == (256, 20, 20, 5000)
    assert workflow.replay.mixed


@pytest.mark.parametrize(
    ("env", "settings", "parts"),
    [
        ("CartPole-v1", {}, ("RLPD acts in flat Boxes", "Discrete(2)")),
        ("Pendulum-v1", {"num_critics": 2, "num_target_critics": 3}, ("num_target_critics=3", "num_critics=2")),
        ("Pendulum-v1", {"num_target_critics": 0}, ("agent.num_target_critics", "got 0")),
    ],
)
def test_impossible_options_are_refused(env: str, settings: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        RLPDAgent.from_config(settings, create_env(env, parallel=2))

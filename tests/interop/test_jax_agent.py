from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import Agent, AgentState
from evorl.algorithms.ppo import PPOWorkflow
from evorl.interop.collector import Collector
from evorl.interop.host_evaluation import play_on_host
from evorl.interop.jax_agent import JaxHostAgent
from evorl.interop.transitions import as_sample_batch
from evorl.interop.vector_collector import VectorCollector
from evorl.padded_batch import split_episodes
from evorl.rollout import act_again
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict
from tests.support.interop_parts import CountingEnv, CountingRows

LENGTHS = [2, 3, 3, 5]


class _Counting(Agent):
    """Agent whose recurrent state counts the steps of each episode; evaluation actions depend on it."""

    def init_params(self, obs_space: Any, action_space: Any, key: Key) -> Any:
        return PyTreeDict(scale=jnp.float32(1.0))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        steps = sample_batch.extras.recurrent_state
        extras = PyTreeDict(recurrent_state=steps + 1, scaled=agent_state.params.scale * sample_batch.obs[:, 0])
        return jax.random.randint(key, steps.shape, 0, 3), extras

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        _, extras = self.compute_actions(agent_state, sample_batch, key)
        return jnp.minimum(sample_batch.extras.recurrent_state, 2), extras


STATE = AgentState(params=PyTreeDict(scale=jnp.float32(2.0)), recurrent_state=jnp.zeros((), jnp.int32))


def test_a_recurrent_state_counts_the_steps_of_each_row() -> None:
    agent = JaxHostAgent(_Counting(), STATE, num_envs=4)
    transitions = VectorCollector(CountingRows(LENGTHS)).collect(agent, 7).transitions
    for row, length in enumerate(LENGTHS):
        np.testing.assert_array_equal(transitions.recurrent_state[:, row], np.arange(7) % length)
    np.testing.assert_array_equal(transitions.scaled, 2 * transitions.obs[..., 0])
    assert len(np.unique(transitions.actions)) == 3


def test_in_a_single_environment_there_is_no_axis_of_rows() -> None:
    agent = JaxHostAgent(_Counting(), STATE)
    collector = Collector(CountingEnv(3), num_steps=2)
    np.testing.assert_array_equal(collector.collect(agent, 5).transitions.recurrent_state, [0, 1, 2, 0])
    assert agent.step(np.zeros(1))[0].shape == ()


def test_an_evaluation_has_a_recurrent_state_of_its_own() -> None:
    class Recording(CountingEnv):
        def step(self, action: Any) -> Any:
            actions.append(int(action))
            return super().step(action)

    actions: list[int] = []
    agent = JaxHostAgent(_Counting(), STATE)
    collector = Collector(CountingEnv(5))
    collector.collect(agent, 3)
    assert play_on_host(Recording(4), agent, 2).episode_lengths.tolist() == [4, 4]
    assert actions == [0, 1, 2, 2] * 2
    np.testing.assert_array_equal(collector.collect(agent, 2).transitions.recurrent_state, [3, 4])


def test_it_learns_by_the_function_it_is_given() -> None:
    def update(agent_state: AgentState, batch: Any, key: Key) -> tuple[dict, AgentState]:
        keys.append(key)
        return {"loss": 1.0}, agent_state.replace(params=PyTreeDict(scale=agent_state.params.scale + batch))

    keys: list[Any] = []
    agent = JaxHostAgent(_Counting(), STATE, update_fn=update)
    assert [agent.update(3.0), agent.update(1.0)] == [{"loss": 1.0}] * 2
    assert float(agent.step(np.ones(1))[1]["scaled"]) == 6.0
    assert not (jax.random.key_data(keys[0]) == jax.random.key_data(keys[1])).all()
    assert JaxHostAgent(_Counting(), STATE).update(3.0) == {}


def test_what_the_user_tells_it_reaches_the_agent() -> None:
    class Told(_Counting):
        def compute_actions(self, agent_state: Any, sample_batch: SampleBatch, key: Key) -> Any:
            return sample_batch.extras.agent_info, PyTreeDict(recurrent_state=sample_batch.extras.recurrent_state)

    rows = VectorCollector(CountingRows(LENGTHS))
    actions = rows.collect(JaxHostAgent(Told(), STATE, num_envs=4), 2, np.array([0, 1, 2, 0])).transitions.actions
    np.testing.assert_array_equal(actions, [[0, 1, 2, 0]] * 2)
    one = Collector(CountingEnv(3)).collect(JaxHostAgent(Told(), STATE), 2, np.int32(2)).transitions.actions
    np.testing.assert_array_equal(one, [2, 2])


@pytest.fixture(scope="module")
def recurrent_ppo() -> tuple[Agent, AgentState]:
    network = {"torso": [8], "recurrent": {"name": "gru", "size": 4}}
    rows = CountingRows(LENGTHS)
    # Only the spaces of an environment are used, which simulators also have.
    agent = PPOWorkflow.make_agent({"network": network}, rows)  # pyright: ignore[reportArgumentType]
    return agent, agent.init(rows.obs_space, rows.action_space, jax.random.key(0))


def test_a_recorded_trajectory_is_acted_again(recurrent_ppo: tuple[Agent, AgentState]) -> None:
    """Recurrent PPO without exploration reproduces its recorded actions with gradients for its parameters."""
    agent, agent_state = recurrent_ppo
    host_agent = JaxHostAgent(agent, agent_state, num_envs=4, explores=False)
    collector = VectorCollector(CountingRows([4, 6, 5, 7]))
    collector.collect(host_agent, 3)
    trajectory = as_sample_batch(collector.collect(host_agent, 12).transitions)
    batch = split_episodes(trajectory, trajectory.dones)
    starts = jax.tree.map(lambda x: x[:, 0], batch.data.extras.recurrent_state)
    assert np.asarray(jax.tree.leaves(starts)[0]).any(axis=-1).sum() == 4  # the first slice of each environment
    batch = batch.replace(info=PyTreeDict(recurrent_state=starts))
    actions, _ = act_again(agent.evaluate_actions, agent_state, batch, jax.random.key(0))
    np.testing.assert_array_equal(np.asarray(actions)[batch.mask], batch.data.actions[batch.mask])

    def log_prob(params: Any) -> jax.Array:
        _, extras = act_again(agent.compute_actions, agent_state.replace(params=params), batch, jax.random.key(0))
        return jnp.where(batch.mask, extras.log_prob, 0.0).sum()

    gradients = jax.grad(log_prob)(agent_state.params)
    assert any(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(gradients))


class _Noting(gymnasium.Env):
    """Endless environment that records its actions, an integer from 0 to 3 or one of three choices."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, action_space: gymnasium.Space) -> None:
        self.action_space, self.received = action_space, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.received.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


class _Constant(Agent):
    """Agent whose parameters are its constant action."""

    def init_params(self, obs_space: Any, action_space: Any, key: Key) -> Any:
        return PyTreeDict()

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return jnp.asarray(agent_state.params.action)[None], PyTreeDict()

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.compute_actions(agent_state, sample_batch, key)


@pytest.mark.parametrize(
    ("space", "given", "received"),
    [
        (gymnasium.spaces.Discrete(3, start=-1), np.int32(2), 1),
        (gymnasium.spaces.MultiDiscrete([2, 3]), np.int32(4), [1, 1]),
        (gymnasium.spaces.Box(0, 3, (1,), np.int32), np.float32([0.9]), [3]),
        (gymnasium.spaces.Box(-2.0, 2.0, (1,)), np.float32([0.5]), [1.0]),
    ],
    ids=repr,
)
def test_the_environment_receives_its_own_actions_and_the_agents_are_stored(
    space: Any, given: Any, received: Any
) -> None:
    env = _Noting(space)
    agent = JaxHostAgent(_Constant(), AgentState(params=PyTreeDict(action=given)))
    transitions = Collector(env).collect(agent, 2).transitions
    np.testing.assert_array_equal(transitions.actions, [given, given])
    np.testing.assert_array_equal(env.received, [received, received])
    assert all(space.contains(action) for action in env.received)

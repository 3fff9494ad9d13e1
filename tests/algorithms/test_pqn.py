"""PQN solves problems with closed-form solutions; its targets are Q(lambda) returns."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.pqn import PQNAgent, PQNWorkflow
from evorl.envs import create_env
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ACTION_NAMES, NAMES, Answers, train_on_every_probe
from tests.support.small_workflows import PPO_CONFIG, fresh_state, small

DISCOUNT = 0.9


class TestContract(WorkflowContract):
    workflow = PQNWorkflow
    SMALL = PPO_CONFIG
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


class TestAgent(AgentContract):
    workflow = PQNWorkflow
    settings = TestContract.SMALL["agent"]
    env_name = "CartPole-v1"


@pytest.fixture(scope="module")
def answers() -> Answers:
    continuous, agent, state = train_on_every_probe(
        PQNWorkflow,
        {"network": {"torso": [32, 32], "layer_norm": True}},
        continuous=False,
        num_envs=32,
        rollout_length=16,
        num_epochs=2,
        num_minibatches=4,
        optimizer=Optimizer("radam", learning_rate=Schedule(1e-2, 0.0), max_grad_norm=10.0),
        total_timesteps=512 * 180,
    )
    return Answers(continuous, agent, state, lambda s, obs: agent.q_values(s, s.params, obs).max(axis=-1))


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_probe(answers: Answers, name: str) -> None:
    answers.assert_values_are_known(name)


@pytest.mark.parametrize("name", ACTION_NAMES)
def test_actions_in_a_probe(answers: Answers, name: str) -> None:
    answers.assert_actions_are_best(name)


def _agent(**settings: Any) -> tuple[PQNAgent, Any]:
    env = create_env("CartPole-v1", parallel=2)
    agent = PQNAgent.from_config({"network": {"torso": [8], "layer_norm": True}, **settings}, env)
    return agent, fresh_state(agent, env)


def _trajectory(terminations: list[int], truncations: list[int]) -> SampleBatch:
    """Return a trajectory ``[T, 1]`` of one environment."""
    keys = jax.random.split(jax.random.key(1), 3)
    num_steps = len(terminations)
    dones = jnp.maximum(jnp.array(terminations), jnp.array(truncations))
    obs = jax.random.normal(keys[0], (num_steps, 1, 4))
    own_next = jax.random.normal(keys[1], obs.shape)
    going_on = (dones[:-1] == 0)[:, None, None]
    return SampleBatch(
        obs=obs,
        actions=jnp.arange(num_steps)[:, None] % 2,
        rewards=jax.random.normal(keys[2], (num_steps, 1)),
        next_obs=own_next.at[:-1].set(jnp.where(going_on, obs[1:], own_next[:-1])),
        dones=dones[:, None].astype(jnp.float32),
        extras=PyTreeDict(env_extras=PyTreeDict(termination=jnp.array(terminations, jnp.float32)[:, None])),
    )


@pytest.mark.parametrize("q_lambda", [0.0, 0.6, 1.0])
def test_targets_are_those_of_a_loop(q_lambda: float) -> None:
    """Targets equal the paper's recursion across a termination, a time limit and an open end."""
    agent, state = _agent()
    trajectory = _trajectory([0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0])
    targets = agent.batch_with_targets(state, trajectory, DISCOUNT, q_lambda).extras.targets
    next_values = np.asarray(agent.q_values(state, state.params, trajectory.next_obs)).max(axis=-1)[:, 0]
    rewards = np.asarray(trajectory.rewards)[:, 0]
    expected = np.zeros(7)
    for t in reversed(range(7)):
        if t == 2:
            expected[t] = rewards[t]
        elif t in (4, 6):
            expected[t] = rewards[t] + DISCOUNT * next_values[t]
        else:
            ahead = q_lambda * expected[t + 1] + (1 - q_lambda) * next_values[t]
            expected[t] = rewards[t] + DISCOUNT * ahead
    np.testing.assert_allclose(targets[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_half_the_squared_error_of_the_actions_taken() -> None:
    agent, state = _agent()
    batch = agent.batch_with_targets(state, _trajectory([0, 1, 0], [0, 0, 0]), DISCOUNT, 0.5).flatten()
    loss, losses = agent.loss(state.params, state, batch)
    q_values = np.asarray(agent.q_values(state, state.params, batch.obs))
    errors = [q_values[i, int(batch.actions[i])] - float(batch.extras.targets[i]) for i in range(3)]
    np.testing.assert_allclose(loss, 0.5 * np.square(errors).mean(), rtol=1e-5)
    assert set(losses) == {"td_loss", "q_value"}


def test_an_update_is_the_given_number_of_gradient_steps() -> None:
    workflow = cast(PQNWorkflow, small("pqn", optimizer={"name": "radam"}))
    _, state = workflow.step(workflow.init(0))
    counts = [x for path, x in jax.tree_util.tree_leaves_with_path(state.opt_state) if "count" in str(path)]
    assert [int(count) for count in counts] == [workflow.num_epochs * workflow.num_minibatches]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"num_minibatches": 3}, ("64 transitions", "num_minibatches=3")),
        ({"q_lambda": 1.5}, ("q_lambda", "[0, 1], got 1.5")),
        ({"env": "Pendulum-v1"}, ("PQN acts in Discrete", "A2C, BRO, CrossQ")),
    ],
)
def test_impossible_options_are_refused(changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("pqn", **changes)

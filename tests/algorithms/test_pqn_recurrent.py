"""PQN with memory: closed-form problems, targets along trajectories, and recurrent states of the present parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.pqn_recurrent import PQNRecurrentAgent, PQNRecurrentWorkflow
from evorl.envs import create_env
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.rollout import rollout
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import RecurrentActorCriticProbes, every_probe, train_on_every_probe
from tests.support.probe_envs import TIME_LIMIT
from tests.support.small_workflows import PPO_CONFIG, assert_close, fresh_state, moved_apart, small

DISCOUNT, T, B = 0.9, 8, 3
SETTINGS = {"network": {"torso": [8], "recurrent": {"name": "gru", "size": 8}}}
LINEAR = {"network": {"torso": [8], "recurrent": {"name": "min_gru", "size": 8}}}


class TestContract(WorkflowContract):
    workflow = PQNRecurrentWorkflow
    SMALL = {**PPO_CONFIG, "burn_in": 2, "agent": {**SETTINGS, "normalize_obs": True}}
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


class TestContractWithLinearMemory(WorkflowContract):
    workflow = PQNRecurrentWorkflow
    SMALL = {**PPO_CONFIG, "burn_in": None, "agent": LINEAR}
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


class TestAgent(AgentContract):
    workflow = PQNRecurrentWorkflow
    settings = SETTINGS
    env_name = "CartPole-v1"


class TestProbes(RecurrentActorCriticProbes):
    """Values of the greedy actions along the agent's own episodes."""

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls) -> tuple:
        """Train on the probes with discrete actions."""
        return train_on_every_probe(
            PQNRecurrentWorkflow,
            {"network": {"torso": [32], "orthogonal": True, "recurrent": {"name": "gru", "size": 32}}},
            continuous=False,
            num_envs=32,
            runs_long=True,
            rollout_length=16,
            num_epochs=2,
            num_minibatches=4,
            burn_in=2,
            optimizer=Optimizer("radam", learning_rate=Schedule(1e-2, 0.0), max_grad_norm=10.0),
            total_timesteps=512 * 300,
        )

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, trained: tuple) -> tuple[bool, SampleBatch, np.ndarray]:
        """Return trajectories as for actor-critics, with the maximum action values."""
        _, agent, state = trained
        env = every_probe(False, 64)

        def play(key: jax.Array) -> tuple[SampleBatch, jax.Array]:
            trajectory, _ = rollout(env.step, agent.evaluate_actions, env.reset(key), state, key, 3 * TIME_LIMIT)
            recurrent_state = trajectory.extras.recurrent_state
            values, _ = agent.q_values_and_state(state, state.params, trajectory.obs, recurrent_state)
            return trajectory, values.max(axis=-1)

        return False, *jax.jit(play)(jax.random.key(1))


def _agent(**settings: Any) -> tuple[PQNRecurrentAgent, AgentState]:
    env = create_env("CartPole-v1", parallel=2)
    agent = PQNRecurrentAgent.from_config({**SETTINGS, **settings}, env)
    return agent, fresh_state(agent, env)


def _trajectory(agent: PQNRecurrentAgent) -> SampleBatch:
    """Return a trajectory ``[T, B]``; the first environment terminates at step 3, the second is truncated at step 5."""
    keys = jax.random.split(jax.random.key(1), 4)
    termination = jnp.zeros((T, B), bool).at[3, 0].set(True)
    dones = termination.at[5, 1].set(True)
    obs, own_next = (jax.random.normal(key, (T, B, 4)) for key in keys[:2])
    going_on = dones[:-1, :, None] == 0
    start = jax.tree.map(lambda x: jax.random.normal(keys[3], x.shape), agent.network.initial_state((1, B)))
    return SampleBatch(
        obs=obs,
        actions=jnp.arange(T * B).reshape(T, B) % 2,
        rewards=jax.random.normal(keys[2], (T, B)),
        next_obs=own_next.at[:-1].set(jnp.where(going_on, obs[1:], own_next[:-1])),
        dones=dones,
        extras=PyTreeDict(recurrent_state=start, env_extras=PyTreeDict(termination=termination)),
    )


def _stepwise(agent: PQNRecurrentAgent, state: AgentState, params: Any, trajectory: SampleBatch) -> tuple[Any, Any]:
    """Return values ``[T, B, A]`` of observations and of true successors, computed step by step."""
    recurrent_state = jax.tree.map(lambda x: x[0], trajectory.extras.recurrent_state)
    values, next_values = [], []
    for t in range(T):
        q_values, recurrent_state = agent.q_values_and_state(state, params, trajectory.obs[t], recurrent_state)
        values.append(np.asarray(q_values))
        successor, _ = agent.q_values_and_state(state, params, trajectory.next_obs[t], recurrent_state)
        next_values.append(np.asarray(successor))
        going_on = (trajectory.dones[t] == 0)[:, None]
        recurrent_state = jax.tree.map(lambda x, going_on=going_on: jnp.where(going_on, x, 0.0), recurrent_state)
    return np.stack(values), np.stack(next_values)


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("settings", [SETTINGS, LINEAR])
def test_the_loss_is_that_of_a_loop(burn_in: int, settings: dict) -> None:
    """Targets and values are of the present parameters, across a termination and a time limit."""
    agent, state = _agent(**settings)
    trajectory, q_lambda = _trajectory(agent), 0.6
    params = moved_apart(state.replace(params=PyTreeDict(q=state.params)), "q").params.q  # unlike the acting parameters
    values, next_values = _stepwise(agent, state, params, trajectory)
    errors = np.zeros((T, B))
    for b in range(B):
        target = 0.0
        for t in reversed(range(burn_in, T)):
            bootstrap = next_values[t, b].max()
            is_cut = t == T - 1 or (t, b) == (5, 1)
            ahead = bootstrap if is_cut else q_lambda * target + (1 - q_lambda) * bootstrap
            target = trajectory.rewards[t, b] + DISCOUNT * (0.0 if (t, b) == (3, 0) else ahead)
            errors[t, b] = values[t, b, trajectory.actions[t, b]] - target
    loss, losses = jax.jit(agent.loss, static_argnums=3)(
        params, state, agent.batch_of(trajectory), burn_in, DISCOUNT, q_lambda
    )
    np.testing.assert_allclose(loss, 0.5 * np.square(errors[burn_in:]).mean(), rtol=1e-4)
    assert set(losses) == {"td_loss", "q_value"}


def test_targets_have_no_gradient_and_the_burn_in_passes_none() -> None:
    agent, state = _agent()
    batch = agent.batch_of(_trajectory(agent))

    def loss(obs: jax.Array, next_obs: jax.Array) -> jax.Array:
        return agent.loss(state.params, state, batch.replace(obs=obs, next_obs=next_obs), 3, DISCOUNT, 0.6)[0]

    by_obs, by_next_obs = jax.grad(loss, argnums=(0, 1))(batch.obs, batch.next_obs)
    assert not np.asarray(by_next_obs).any()
    assert not np.asarray(by_obs[:3]).any()
    assert np.asarray(by_obs[3:]).any()


def test_a_burn_in_forgets_states_of_older_parameters() -> None:
    """After an episode's start in the burn-in, the loss does not depend on the stored recurrent state."""
    agent, state = _agent()
    trajectory = _trajectory(agent)
    trajectory = trajectory.replace(dones=trajectory.dones.at[1].set(True))
    other = jax.tree.map(lambda x: x + 1.0, trajectory.extras.recurrent_state)
    changed = trajectory.replace(extras=trajectory.extras.replace(recurrent_state=other))
    losses = [
        [float(agent.loss(state.params, state, agent.batch_of(x), burn_in, DISCOUNT, 0.6)[0]) for burn_in in (0, 2)]
        for x in (trajectory, changed)
    ]
    assert losses[0][0] != losses[1][0]
    assert losses[0][1] == losses[1][1]


def test_the_state_of_a_trajectory_is_the_one_that_acted() -> None:
    workflow = small("pqn_recurrent")
    _, before = workflow.step(workflow.init(0))
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, before)
    extras = trajectory.extras.recurrent_state
    assert {x.shape for x in jax.tree.leaves(extras)} == {(1, 8, 8)}
    first = jax.tree.map(lambda x: x[0], extras)
    q_values, _ = workflow.agent.q_values_and_state(
        before.agent_state, before.agent_state.params, trajectory.obs[0], first
    )
    assert np.isfinite(q_values).all()
    assert np.asarray(jax.tree.leaves(first)[0]).any()  # episodes continue over rollouts


def test_epsilon_depends_on_steps_and_not_on_the_length_of_the_training() -> None:
    """With ``steps``, a schedule ends after the same number of steps in a training of any length."""
    epsilon = {"start": 1.0, "end": 0.1, "steps": 640}
    found = []
    for total in (1280, 12800):
        workflow = small("pqn_recurrent", total_timesteps=total, agent={**SETTINGS, "epsilon": epsilon})
        state = workflow.init(0)
        progress = [jnp.float32(steps / total) for steps in (0, 320, 640)]
        found.append([float(workflow.agent.at_progress(state.agent_state, p).extra_state) for p in progress])
    assert_close(found[0], found[1], 1e-5)
    assert_close(found[0], [1.0, 0.55, 0.1], 1e-5)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"num_minibatches": 3}, ("num_envs=8 trajectories", "num_minibatches=3")),
        ({"burn_in": 8}, ("burn_in=8", "rollout_length=8")),
        ({"agent": {"network": {"recurrent": None}}}, ("agent.network.recurrent", "null")),
        ({"env": "Pendulum-v1"}, ("PQNRecurrent acts in Discrete",)),
    ],
)
def test_impossible_options_are_refused(changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("pqn_recurrent", **changes)

"""PQN for continuous actions: closed-form problems, SARSA(lambda) targets, and the penalty of the policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.pqn_continuous import PQNContinuousAgent, PQNContinuousWorkflow
from evorl.envs import create_env
from evorl.ops.exploration import ActionNoise
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, train_on_every_probe
from tests.support.small_workflows import PPO_CONFIG, fresh_state, moved_apart, small

DISCOUNT, T, B = 0.9, 6, 2
SETTINGS = {"network": {"torso": [8]}, "critic_network": {"torso": [8]}}


class TestContract(WorkflowContract):
    workflow = PQNContinuousWorkflow
    SMALL = {**PPO_CONFIG, "agent": {**SETTINGS, "normalize_obs": True}}


class TestAgent(AgentContract):
    workflow = PQNContinuousWorkflow
    settings = SETTINGS


class TestProbes(ActorCriticProbes):
    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls) -> tuple:
        """Train on the probes; noise decays to 0, so that values of noisy actions become values of the policy."""
        return train_on_every_probe(
            PQNContinuousWorkflow,
            {
                "network": {"torso": [64, 64]},
                "critic_network": {"torso": [64, 64]},
                "noise": ActionNoise(scale=Schedule(1.0, 0.0, share=0.6)),
            },
            continuous=True,
            num_envs=32,
            runs_long=True,
            rollout_length=16,
            num_epochs=4,
            num_minibatches=4,
            optimizer=Optimizer("radam", learning_rate=Schedule(3e-3, 0.0), max_grad_norm=1.0),
            total_timesteps=512 * 400,
        )


def _agent(**settings: Any) -> tuple[PQNContinuousAgent, AgentState]:
    env = create_env("Pendulum-v1", parallel=2)
    agent = PQNContinuousAgent.from_config({**SETTINGS, "num_critics": 3, **settings}, env)
    return agent, moved_apart(fresh_state(agent, env), "policy", "critic")


def _trajectory() -> SampleBatch:
    """Return a trajectory ``[T, B]``; the first environment terminates at step 1 and is truncated at step 3."""
    keys = jax.random.split(jax.random.key(1), 4)
    termination = jnp.zeros((T, B)).at[1, 0].set(1.0)
    dones = termination.at[3, 0].set(1.0)
    obs, own_next = (jax.random.normal(key, (T, B, 3)) for key in keys[:2])
    going_on = dones[:-1, :, None] == 0
    return SampleBatch(
        obs=obs,
        actions=jnp.tanh(jax.random.normal(keys[2], (T, B, 1))),
        rewards=jax.random.normal(keys[3], (T, B)),
        next_obs=own_next.at[:-1].set(jnp.where(going_on, obs[1:], own_next[:-1])),
        dones=dones,
        extras=PyTreeDict(env_extras=PyTreeDict(termination=termination)),
    )


KEYS = jax.random.split(jax.random.key(5), T * B).reshape(T, B)


@pytest.mark.parametrize("q_lambda", [0.0, 0.6, 1.0])
def test_targets_use_the_mean_value_of_the_taken_actions(q_lambda: float) -> None:
    """Targets equal a loop; only where steps are cut a new noisy action replaces the taken one."""
    agent, state = _agent()
    trajectory = _trajectory()
    batch = jax.jit(agent.batch_with_targets)(state, trajectory, DISCOUNT, q_lambda, KEYS)
    taken = agent.critics(state, state.params.critic, trajectory.obs, trajectory.actions).mean(axis=0)
    new_actions, _ = agent.compute_actions(state, SampleBatch(obs=trajectory.next_obs), KEYS)
    greedy = agent.policy_actions(state, state.params.policy, trajectory.next_obs)
    assert np.abs(new_actions - greedy).mean() > 0.1  # with noise
    new = agent.critics(state, state.params.critic, trajectory.next_obs, new_actions).mean(axis=0)
    expected = np.zeros((T, B))
    for b in range(B):
        for t in reversed(range(T)):
            if (t, b) == (1, 0):
                ahead = 0.0
            elif t == T - 1 or (t, b) == (3, 0):
                ahead = new[t, b]
            else:
                ahead = q_lambda * expected[t + 1, b] + (1 - q_lambda) * taken[t + 1, b]
            expected[t, b] = trajectory.rewards[t, b] + DISCOUNT * ahead
    np.testing.assert_allclose(batch.extras.targets, expected, rtol=1e-4, atol=1e-5)
    old = agent.policy_actions(state, state.params.policy, trajectory.obs)
    np.testing.assert_allclose(batch.extras.old_actions, old, rtol=1e-5, atol=1e-6)


def test_every_critic_regresses_on_the_same_targets() -> None:
    agent, state = _agent()
    batch = agent.batch_with_targets(state, _trajectory(), DISCOUNT, 0.6, KEYS).flatten()
    loss, _ = agent.critic_loss(state.params.critic, state, batch)
    values = np.asarray(agent.critics(state, state.params.critic, batch.obs, batch.actions))
    expected = sum(np.square(values[k] - np.asarray(batch.extras.targets)).mean() for k in range(3))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_policy_maximizes_the_mean_and_is_penalized_far_from_the_old_one() -> None:
    """The penalty depends on the distance from the policy's old actions, not from the noisy ones."""
    agent, state = _agent(penalty=4.0, penalty_threshold=0.2)
    batch = agent.batch_with_targets(state, _trajectory(), DISCOUNT, 0.6, KEYS).flatten()
    moved = moved_apart(state, "policy").params.policy
    loss, losses = agent.actor_loss(moved, state, batch)
    actions = np.asarray(agent.policy_actions(state, moved, batch.obs))
    values = np.asarray(agent.critics(state, state.params.critic, batch.obs, actions)).mean(axis=0)
    distance = np.abs(actions - np.asarray(batch.extras.old_actions))
    smooth = np.where(distance < 1.0, 0.5 * distance**2, distance - 0.5).mean(axis=-1)
    is_far = distance.mean(axis=-1) > 0.2
    assert 0.0 < is_far.mean() < 1.0
    np.testing.assert_allclose(loss, (np.where(is_far, 4.0 * smooth, 0.0) - values).mean(), rtol=1e-4)
    np.testing.assert_allclose(losses.penalized, is_far.mean(), rtol=1e-6)
    assert float(agent.actor_loss(state.params.policy, state, batch)[1].penalized) == 0.0


def test_noise_follows_its_schedule() -> None:
    agent, state = _agent()
    assert [float(agent.at_progress(state, jnp.float32(p)).extra_state) for p in (0.0, 1.0)] == [1.0, np.float32(0.15)]


def test_an_update_is_the_given_number_of_gradient_steps_of_both() -> None:
    workflow = small("pqn_continuous", "Pendulum-v1")
    _, state = workflow.step(workflow.init(0))
    counts = [x for path, x in jax.tree_util.tree_leaves_with_path(state.opt_state) if "count" in str(path)]
    assert set(map(int, counts)) == {workflow.num_epochs * workflow.num_minibatches}
    assert set(state.agent_state.params) == {"policy", "critic"}


@pytest.mark.parametrize(
    ("env", "changes", "parts"),
    [
        ("Pendulum-v1", {"num_minibatches": 3}, ("64 transitions", "num_minibatches=3")),
        ("CartPole-v1", {}, ("PQNContinuous acts in", "Discrete(2)")),
    ],
)
def test_impossible_options_are_refused(env: str, changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("pqn_continuous", env, **changes)

"""Recurrent SAC: closed-form problems, the loss of sequences by hand, its gradients, and stored recurrent states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.recurrent_sac import RecurrentSACAgent, RecurrentSACWorkflow
from evorl.envs import create_env
from evorl.envs.space import ACTION_MASK
from evorl.ops.random import split_rows
from evorl.ops.sum_tree import get_weights
from evorl.rollout import rollout
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import KINDS, RecurrentActorCriticProbes, every_probe, train_soft_actor_critic
from tests.support.probe_envs import TIME_LIMIT
from tests.support.small_workflows import NUM_ENVS, SAC_CONFIG, arrays, fresh_state, moved_apart, small

NETWORK = {"torso": [8], "recurrent": {"name": "gru", "size": 8}, "heads": {"policy": [8], "value": [8]}}
SEQUENCES = {"burn_in": 2, "sequence_length": 4, "sequence_period": 2}


class TestContract(WorkflowContract):
    workflow = RecurrentSACWorkflow
    SMALL = {**SAC_CONFIG, **SEQUENCES, "agent": {"network": NETWORK}, "rollout_length": 2, "total_timesteps": 16 * 20}


class TestContractWithLinearMemory(WorkflowContract):
    workflow = RecurrentSACWorkflow
    SMALL = TestContract.SMALL | {
        "agent": {"network": {**NETWORK, "recurrent": {"name": "lru", "size": 8}}},
        "prioritized": True,
    }


class TestContractWithAttention(WorkflowContract):
    workflow = RecurrentSACWorkflow
    SMALL = {
        **TestContract.SMALL,
        "agent": {"network": {**NETWORK, "recurrent": {"name": "gtrxl", "size": 8, "window": 3}}},
        "n_step": 2,
        "critic_optimizer": {"epsilon": 1e-4},  # some gradients almost vanish: of these, rounding would show
    }


class TestAgent(AgentContract):
    workflow = RecurrentSACWorkflow
    settings = TestContract.SMALL["agent"]


class TestAgentWithDiscreteActions(AgentContract):
    workflow = RecurrentSACWorkflow
    settings = TestContract.SMALL["agent"]
    env_name = "CartPole-v1"
    normalizes = False  # the best of two actions is the same; tested with continuous actions


class TestProbes(RecurrentActorCriticProbes):
    """Values of the greedy actions along the agent's own episodes."""

    @staticmethod
    def train(continuous: bool) -> tuple:
        network = {"torso": [64], "recurrent": {"name": "gru", "size": 32}, "heads": {"policy": [64], "value": [64]}}
        return train_soft_actor_critic(
            RecurrentSACWorkflow,
            {"network": {**network, "orthogonal": True}},
            continuous,
            runs_long=True,
            burn_in=4,
            sequence_length=8,
            sequence_period=4,
            batch_size=32,
            total_timesteps=16 * 700,
        )

    @pytest.fixture(scope="class", params=KINDS)
    @classmethod
    def played(cls, trained: tuple) -> tuple[bool, SampleBatch, np.ndarray]:
        """Return trajectories as for on-policy actor-critics, with the mean values of the critics."""
        continuous, agent, state = trained
        env = every_probe(continuous, 64)

        def play(key: jax.Array) -> tuple[SampleBatch, jax.Array]:
            trajectory, _ = rollout(env.step, agent.evaluate_actions, env.reset(key), state, key, 3 * TIME_LIMIT)
            memory = (state.params.critic.memory, trajectory.obs, trajectory.extras.recurrent_state)
            features, _ = agent.memory.apply(*memory)
            values = agent.values(state, state.params, features.reshape(-1, features.shape[-1])).mean(axis=0)
            return trajectory, values.reshape(trajectory.dones.shape)

        return continuous, *jax.jit(play)(jax.random.key(1))


T, N, BURN_IN, DISCOUNT, STEPS, ALPHA = 9, 5, 3, 0.9, 2, 0.3
KEYS = jax.random.split(jax.random.key(5), N)


def _agent(env_name: str = "Pendulum-v1", cell: str = "gru", **settings: Any) -> tuple[RecurrentSACAgent, Any]:
    """Return an agent whose networks and target networks all differ, and depend strongly on their inputs."""
    env = create_env(env_name, parallel=2)
    network = {**NETWORK, "recurrent": {"name": cell, "size": 8}}
    agent = RecurrentSACAgent.from_config({"network": network, "temperature": ALPHA, **settings}, env)
    state = moved_apart(fresh_state(agent, env), "critic", "target_critic", "policy")
    return agent, moved_apart(state, "target_critic")


def _batch(agent: RecurrentSACAgent, observation: int = 3, masked: bool = False) -> SampleBatch:
    """Return sequences ``[N, T]`` with random ends, half of them terminations."""
    keys = jax.random.split(jax.random.key(2), 8)
    dones = jax.random.bernoulli(keys[3], 0.25, (N, T))
    obs, next_obs = (jax.random.normal(key, (N, T, observation)) for key in (keys[0], keys[2]))
    if masked:  # one action is forbidden in each observation
        masks = jax.nn.one_hot(jnp.arange(N * T).reshape(N, T) % 2, 2)
        obs, next_obs = ({"features": x, ACTION_MASK: masks} for x in (obs, next_obs))
    discrete = agent.distribution.is_discrete
    return SampleBatch(
        obs=obs,
        actions=jnp.arange(N * T).reshape(N, T) % 2 if discrete else jax.random.uniform(keys[6], (N, T, 1)),
        rewards=jax.random.normal(keys[1], (N, T)),
        next_obs=next_obs,
        dones=dones,
        extras=PyTreeDict(
            termination=dones & jax.random.bernoulli(keys[4], 0.5, (N, T)),
            starts=jnp.concatenate([jnp.zeros((N, 1), bool), dones[:, :-1]], axis=1),
            recurrent_state=jax.tree.map(
                lambda x: jax.random.normal(keys[5], x.shape), agent.memory.initial_state((N,))
            ),
            weights=jnp.linspace(0.5, 1.0, N),
        ),
    )


@functools.partial(jax.jit, static_argnames=("burn_in", "n_step"))
def _loss(agent: Any, critic: Any, state: Any, batch: Any, burn_in: int = BURN_IN, n_step: int = STEPS) -> Any:
    return agent.sequence_loss(critic, state, batch, KEYS, burn_in=burn_in, n_step=n_step, discount=DISCOUNT)


def _features_by_hand(agent: Any, memory: Any, batch: SampleBatch, i: int) -> tuple[list, list]:
    """Return the features of sequence ``i`` and of the successors, with a loop over steps."""
    ask = jax.jit(lambda obs, state: agent.memory.apply(memory, obs, state))
    state = jax.tree.map(lambda x: x[i], batch.extras.recurrent_state)
    features, next_features = [], []
    for t in range(T):
        state = agent.memory.initial_state() if batch.extras.starts[i, t] else state
        feature, state = ask(batch.obs[i, t], state)
        features.append(feature)
        next_features.append(ask(batch.next_obs[i, t], state)[0])
    return features, next_features


def _errors_by_hand(agent: Any, state: Any, batch: SampleBatch) -> np.ndarray:
    """Return TD errors ``[K, N, T - BURN_IN]``, computed per sequence and step."""
    errors, params = np.zeros((2, N, T)), state.params
    keys = jnp.stack(split_rows(KEYS, T - BURN_IN))  # [T - BURN_IN, N]
    for i in range(N):
        features, next_features = _features_by_hand(agent, params.critic.memory, batch, i)
        _, target_features = _features_by_hand(agent, params.target_critic.memory, batch, i)
        for t in range(BURN_IN, T):
            target, k = 0.0, t
            while True:
                target += DISCOUNT ** (k - t) * float(batch.rewards[i, k])
                if batch.dones[i, k] or k == T - 1 or k - t == STEPS - 1:
                    break
                k += 1
            if not batch.extras.termination[i, k]:
                policy = agent.policy(state, params.policy, next_features[k][None])
                action, log_prob = policy.sample_and_log_prob(keys[k - BURN_IN, i][None])
                next_q = agent.critic_network.apply(params.target_critic.heads, target_features[k][None], action)
                target += DISCOUNT ** (k - t + 1) * float(next_q.min() - ALPHA * log_prob[0])
            q = agent.critic_network.apply(params.critic.heads, features[t][None], batch.actions[i, t][None])
            errors[:, i, t] = target - np.asarray(q)[:, 0]
    return errors[..., BURN_IN:]


def test_the_loss_of_sequences_is_that_of_single_steps() -> None:
    """Stored states, burn-in, starts within a sequence, n-step returns, time limits and weights, by loops."""
    agent, state = _agent(priority_mix=0.7)
    batch = _batch(agent)
    loss, losses = _loss(agent, state.params.critic, state, batch)
    expected = _errors_by_hand(agent, state, batch)
    priorities = 0.7 * abs(expected).max(axis=-1) + 0.3 * abs(expected).mean(axis=-1)
    np.testing.assert_allclose(losses.td_errors, priorities, rtol=1e-3)
    weighted = np.asarray(batch.extras.weights)[:, None] * np.square(expected)
    np.testing.assert_allclose(loss, 0.5 * weighted.mean(axis=(1, 2)).sum(), rtol=1e-3)
    np.testing.assert_allclose(losses.critic_loss, 2.0 * loss, rtol=1e-5)


def _without_starts(batch: SampleBatch) -> SampleBatch:
    return batch.replace(extras=batch.extras | {"starts": jnp.zeros((N, T), bool)})


def _without_stored_states(batch: SampleBatch) -> SampleBatch:
    zeros = jax.tree.map(jnp.zeros_like, batch.extras.recurrent_state)
    return batch.replace(extras=batch.extras | {"recurrent_state": zeros})


def _truncations_as_terminations(batch: SampleBatch) -> SampleBatch:
    return batch.replace(extras=batch.extras | {"termination": batch.dones})


def _with_next_episode_as_successor(batch: SampleBatch) -> SampleBatch:
    return batch.replace(next_obs=jnp.concatenate([batch.obs[:, 1:], batch.next_obs[:, -1:]], axis=1))


@pytest.mark.parametrize(
    "planted",
    [_without_starts, _without_stored_states, _truncations_as_terminations, _with_next_episode_as_successor],
)
def test_planted_bugs_change_the_loss(planted: Callable) -> None:
    agent, state = _agent()
    batch = _batch(agent)
    loss, _ = _loss(agent, state.params.critic, state, batch)
    assert (
        abs(float(_loss(agent, state.params.critic, state, planted(batch))[0] / loss) - 1.0) > 3e-3
    )  # more than the tolerance above


@pytest.mark.parametrize("cell", ["gru", "min_gru", "lru", "gtrxl"])
def test_burn_in_changes_the_memory_and_learns_nothing(cell: str) -> None:
    agent, state = _agent(cell=cell)
    batch = _without_starts(_batch(agent)).replace(dones=jnp.zeros((N, T), bool))
    batch = batch.replace(extras=batch.extras | {"recurrent_state": agent.memory.initial_state((N,))})

    @jax.jit
    def loss(obs: jax.Array) -> jax.Array:
        return _loss(agent, state.params.critic, state, batch.replace(obs=obs))[0]

    gradient = np.asarray(jax.jit(jax.grad(loss))(batch.obs))
    assert not gradient[:, :BURN_IN].any()
    assert gradient[:, BURN_IN:].any(axis=(0, 2)).all()
    assert loss(batch.obs.at[:, 0].add(1.0)) != loss(batch.obs)


def test_only_the_critics_train_the_memory_and_targets_have_no_gradient() -> None:
    agent, state = _agent()
    batch = _batch(agent)

    @jax.jit
    def gradients(params: Any) -> tuple[Any, Any]:
        def of_critics(params: Any) -> jax.Array:
            return _loss(agent, params.critic, state.replace(params=params), batch)[0]

        steps, keys = agent.steps_for_policy(state, batch, KEYS, BURN_IN)
        of_policy = jax.grad(lambda policy: agent.actor_loss(policy, state, steps, keys)[0])(params.policy)
        return jax.grad(of_critics)(params), of_policy

    by_critics, by_policy = gradients(state.params)
    for name in ("target_critic", "policy", "log_temperature"):
        assert not any(x.any() for x in arrays(by_critics[name]).values())
    for part in (by_critics.critic.memory, by_critics.critic.heads, by_policy):
        assert all(x.any() for path, x in arrays(part).items() if "kernel" in path)


def test_the_policy_is_improved_by_the_trained_memory() -> None:
    """Its loss reads the features that acting reads, after the burn-in."""
    agent, state = _agent()
    batch = _batch(agent)
    steps, keys = jax.jit(lambda: agent.steps_for_policy(state, batch, KEYS, BURN_IN))()
    rows = [_features_by_hand(agent, state.params.critic.memory, batch, i)[0][BURN_IN:] for i in range(N)]
    np.testing.assert_allclose(steps.obs, np.stack(rows, axis=1).reshape(-1, 8), rtol=1e-4, atol=1e-5)
    loss, losses = jax.jit(agent.actor_loss)(state.params.policy, state, steps, keys)
    actions, log_prob = agent.policy(state, state.params.policy, steps.obs).sample_and_log_prob(keys)
    values = np.asarray(agent.critic_network.apply(state.params.critic.heads, steps.obs, actions)).min(axis=0)
    np.testing.assert_allclose(loss, (ALPHA * log_prob - values).mean(), rtol=1e-4)
    np.testing.assert_allclose(losses.entropy, -log_prob.mean(), rtol=1e-4)
    assert len(np.unique(np.asarray(jax.random.key_data(keys)), axis=0)) == N * (T - BURN_IN)


def test_forbidden_actions_have_no_part_in_values_and_policies() -> None:
    agent, state = _agent("CartPole-v1")
    masked, plain = _batch(agent, 4, masked=True), _batch(agent, 4)
    loss, losses = _loss(agent, state.params.critic, state, masked)
    assert np.isfinite(loss)
    assert abs(float(loss / _loss(agent, state.params.critic, state, plain)[0]) - 1.0) > 1e-4
    assert np.isfinite(losses.td_errors).all()
    obs = jax.tree.map(lambda x: x[:, 0], masked.obs)
    start = agent.memory.initial_state((N,))
    acted = agent.compute_actions(state, SampleBatch(obs=obs, extras=PyTreeDict(recurrent_state=start)), KEYS)[0]
    assert (jnp.take_along_axis(obs[ACTION_MASK], acted[:, None], axis=1) == 1).all()


@pytest.mark.parametrize("cell", ["gru", "lru", "gtrxl"])
def test_stored_is_what_was_remembered_before_each_step(cell: str) -> None:
    network = {**NETWORK, "recurrent": {"name": cell, "size": 8}}
    workflow: Any = small("recurrent_sac", "Pendulum-v1", learning_starts=1e9, agent={"network": network})
    state = workflow.init(0)
    for _ in range(7):
        _, state = workflow.step(state)
    num_rows, stored = int(state.replay_state.size), state.replay_state.data
    assert bool(stored.dones[: num_rows - 1].any())
    starts = jnp.concatenate([jnp.ones((1, NUM_ENVS), bool), stored.dones[: num_rows - 1]])
    memory, nothing = workflow.agent.memory, workflow.agent.memory.initial_state((NUM_ENVS,))
    unroll = jax.jit(functools.partial(memory.apply, method="unroll"))
    _, after = unroll(state.agent_state.params.critic.memory, stored.obs[:num_rows], nothing, starts)
    for before, later in zip(jax.tree.leaves(stored.extras.recurrent_state), jax.tree.leaves(after), strict=True):
        at_start = starts[1:].reshape(num_rows - 1, NUM_ENVS, *[1] * (later.ndim - 2))
        np.testing.assert_allclose(before[1:num_rows], jnp.where(at_start, 0, later[:-1]), rtol=1e-4, atol=1e-5)


def test_updates_start_with_a_whole_sequence_and_follow_the_order_of_sac() -> None:
    """Six steps are stored in the third iteration; with ``policy_delay`` the policy waits for its turn."""
    workflow: Any = small("recurrent_sac", "Pendulum-v1", learning_starts=0, updates_per_iteration=1, policy_delay=2)
    state = workflow.init(0)
    changed = []
    for _ in range(4):
        before = arrays(state.agent_state.params)
        _, state = workflow.step(state)
        after = arrays(state.agent_state.params)
        changed.append({path.split("'")[1] for path, x in after.items() if (before[path] != x).any()})
    always = {"critic", "target_critic"}
    assert changed == [set(), set(), always | {"policy", "log_temperature"}, always]


def test_priorities_are_those_of_sequences() -> None:
    workflow: Any = small("recurrent_sac", "Pendulum-v1", learning_starts=0, prioritized=True)
    state = workflow.init(0)
    for _ in range(3):
        _, state = workflow.step(state)
    size = workflow.replay_buffer.num_rows * NUM_ENVS
    stored = np.asarray(get_weights(state.replay_state.priorities, jnp.arange(size))).reshape(-1, NUM_ENVS)
    assert (stored[0] > 0).all()
    assert (stored[0] != 1.0).any()
    assert not stored[1:].any()  # six rows: one whole sequence per environment


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"agent": {"network": {"recurrent": None}}}, ("agent.network.recurrent", "mapping", "got null")),
        ({"agent": {"network": {"recurrent": "gri"}}}, ("'gri'", "'gru'")),
        ({"agent": {"network": {"heads": {"values": [8]}}}}, ("'values'", "'value'")),
        ({"agent": {"value_obs_key": "x"}}, ("agent.value_obs_key", "agent.obs_key")),
        ({"agent": {"noise_repetition": {"max_steps": 4}}}, ("agent.noise_repetition.max_steps", "memory")),
        ({"burn_in": 12}, ("sequences of 16 steps", "every 2 steps", "the 16 steps")),
        ({"sequence_length": 0}, ("sequence_length", "got 0")),
        ({"agent": {"priority_mix": 1.5}}, ("priority_mix", "[0, 1], got 1.5")),
    ],
)
def test_impossible_options_are_refused(changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("recurrent_sac", "Pendulum-v1", **changes)

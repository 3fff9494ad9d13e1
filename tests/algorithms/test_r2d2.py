"""R2D2: closed-form problems, the loss of the paper, and stored recurrent states."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.r2d2 import R2D2Agent, R2D2Workflow
from evorl.envs import create_env
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.ops.sum_tree import get_weights
from evorl.ops.value_rescaling import undo_rescale
from evorl.rollout import rollout
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import RecurrentActorCriticProbes, every_probe, train_on_every_probe
from tests.support.probe_envs import TIME_LIMIT
from tests.support.small_workflows import NUM_ENVS, SAC_CONFIG, assert_identical, fresh_state, moved_apart, small

NETWORK = {"torso": [32], "orthogonal": True, "recurrent": {"name": "gru", "size": 32}, "heads": {"dueling": True}}


class TestContract(WorkflowContract):
    workflow = R2D2Workflow
    SMALL = {
        **SAC_CONFIG,
        "agent": {"network": {"torso": [8], "recurrent": {"name": "gru", "size": 8}, "heads": {"dueling": False}}},
        "n_step": 1,
        "prioritized": False,
        "rollout_length": 2,
        "burn_in": 2,
        "sequence_length": 4,
        "sequence_period": 2,
        "total_timesteps": 16 * 20,
    }
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


LINEAR = {"torso": [8], "recurrent": {"name": "lru", "size": 8}, "heads": {"dueling": False}}


class TestContractWithLinearMemory(WorkflowContract):
    workflow = R2D2Workflow
    SMALL = {**TestContract.SMALL, "agent": {"network": LINEAR}}
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


class TestAgentWithLinearMemory(AgentContract):
    workflow = R2D2Workflow
    settings = {"network": {**LINEAR, "torso": [32], "recurrent": {"name": "min_gru", "size": 32}}}
    env_name = "CartPole-v1"


class TestAgent(AgentContract):
    workflow = R2D2Workflow
    settings = TestContract.SMALL["agent"]
    env_name = "CartPole-v1"


class TestProbes(RecurrentActorCriticProbes):
    """Values of the greedy actions along the agent's own episodes."""

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls) -> tuple:
        """Train on the probes with discrete actions."""
        return train_on_every_probe(
            R2D2Workflow,
            {"network": NETWORK},
            continuous=False,
            num_envs=16,
            runs_long=True,
            rollout_length=4,
            updates_per_iteration=4,
            batch_size=64,
            burn_in=4,
            sequence_length=8,
            sequence_period=4,
            n_step=3,
            prioritized=True,
            learning_starts=1600.0,
            replay_capacity=16_000,
            tau=0.05,
            target_update_interval=1,
            optimizer=Optimizer(learning_rate=Schedule(5e-3, 0.0)),
            total_timesteps=64 * 700,
        )

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, trained: tuple) -> tuple[bool, SampleBatch, np.ndarray]:
        """Return trajectories as for actor-critics, with the maximum action values in the original scale."""
        _, agent, state = trained
        env = every_probe(False, 64)

        def play(key: jax.Array) -> tuple[SampleBatch, jax.Array]:
            trajectory, _ = rollout(env.step, agent.evaluate_actions, env.reset(key), state, key, 3 * TIME_LIMIT)
            values, _ = agent.q_values_and_state(
                state, state.params.online, trajectory.obs, trajectory.extras.recurrent_state
            )
            return trajectory, undo_rescale(values.max(axis=-1), agent.rescaling_epsilon)

        return False, *jax.jit(play)(jax.random.key(1))


T, N, BURN_IN, DISCOUNT, STEPS = 9, 5, 3, 0.9, 2


def _agent(**settings: Any) -> tuple[R2D2Agent, Any]:
    """Return an agent whose target network differs from the online network."""
    env = create_env("CartPole-v1", parallel=2)
    agent = R2D2Agent.from_config({"network": {"torso": [8], "recurrent": "gru"}, **settings}, env)
    state = fresh_state(agent, env)
    return agent, moved_apart(state, "target")


@jax.jit
def _batch(agent: R2D2Agent) -> SampleBatch:
    """Return sequences ``[N, T]`` with random ends, half of them terminations."""
    keys = jax.random.split(jax.random.key(2), 6)
    dones = jax.random.bernoulli(keys[3], 0.25, (N, T))
    recurrent_state = jax.tree.map(lambda x: jax.random.normal(keys[5], x.shape), agent.network.initial_state((N,)))
    return SampleBatch(
        obs=jax.random.normal(keys[0], (N, T, 4)),
        actions=jnp.arange(N * T).reshape(N, T) % 2,
        rewards=5.0 * jax.random.normal(keys[1], (N, T)),
        next_obs=jax.random.normal(keys[2], (N, T, 4)),
        dones=dones,
        extras=PyTreeDict(
            termination=dones & jax.random.bernoulli(keys[4], 0.5, (N, T)),
            starts=jnp.concatenate([jnp.zeros((N, 1), bool), dones[:, :-1]], axis=1),
            recurrent_state=recurrent_state,
            weights=jnp.linspace(0.5, 1.0, N),
        ),
    )


def _expected_errors(agent: R2D2Agent, state: Any, batch: SampleBatch, double: bool, rescaled: bool) -> np.ndarray:
    """Return TD errors ``[N, T - BURN_IN]``, computed per sequence and step."""

    def squash(x: float) -> float:
        return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x if rescaled else x

    def unsquash(y: float) -> float:
        root = (np.sqrt(1 + 4e-3 * (abs(y) + 1 + 1e-3)) - 1) / 2e-3
        return np.sign(y) * (root**2 - 1) if rescaled else y

    errors = np.zeros((N, T))
    nothing = agent.network.initial_state()
    ask = jax.jit(
        lambda name_params, obs, recurrent_state: agent.q_values_and_state(state, name_params, obs, recurrent_state)
    )
    for i in range(N):
        values, next_values = {}, {}
        for name in ("online", "target"):
            params, recurrent_state = (
                state.params[name],
                jax.tree.map(lambda x, i=i: x[i], batch.extras.recurrent_state),
            )
            for t in range(T):
                recurrent_state = nothing if batch.extras.starts[i, t] else recurrent_state
                values[name, t], recurrent_state = ask(params, batch.obs[i, t], recurrent_state)
                next_values[name, t], _ = ask(params, batch.next_obs[i, t], recurrent_state)
        for t in range(BURN_IN, T):
            target, k = 0.0, t
            while True:
                target += DISCOUNT ** (k - t) * float(batch.rewards[i, k])
                if batch.dones[i, k] or k == T - 1 or k - t == STEPS - 1:
                    break
                k += 1
            if not batch.extras.termination[i, k]:
                best = int(next_values["online" if double else "target", k].argmax())
                target += DISCOUNT ** (k - t + 1) * unsquash(float(next_values["target", k][best]))
            errors[i, t] = squash(target) - float(values["online", t][int(batch.actions[i, t])])
    return errors[:, BURN_IN:]


@pytest.mark.parametrize(("double", "rescaled"), [(True, True), (False, False)])
def test_the_loss_is_the_paper_s(double: bool, rescaled: bool) -> None:
    agent, state = _agent(double=double, rescaling_epsilon=1e-3 if rescaled else None, priority_mix=0.7)
    batch = _batch(agent)
    compute = jax.jit(functools.partial(agent.loss, burn_in=BURN_IN, n_step=STEPS, discount=DISCOUNT))
    loss, losses = compute(state.params.online, state, batch)
    expected = _expected_errors(agent, state, batch, double, rescaled)
    np.testing.assert_allclose(
        losses.td_errors, 0.7 * abs(expected).max(axis=1) + 0.3 * abs(expected).mean(axis=1), rtol=1e-3
    )
    mean_squares = 0.5 * np.square(expected).mean(axis=1)
    np.testing.assert_allclose(loss, (np.asarray(batch.extras.weights) * mean_squares).mean(), rtol=1e-3)


def test_burn_in_changes_the_memory_and_learns_nothing() -> None:
    agent, state = _agent()
    batch = _batch(agent)
    batch = batch.replace(extras=batch.extras.replace(starts=jnp.zeros((N, T), bool)), dones=jnp.zeros((N, T), bool))

    @jax.jit
    def loss(obs: jax.Array, actions: jax.Array) -> jax.Array:
        changed = batch.replace(obs=obs, actions=actions)
        return agent.loss(state.params.online, state, changed, burn_in=BURN_IN, n_step=1, discount=DISCOUNT)[0]

    gradient = np.asarray(jax.jit(jax.grad(loss))(batch.obs, batch.actions))
    assert not gradient[:, :BURN_IN].any()
    assert gradient[:, BURN_IN:].any(axis=(0, 2)).all()
    assert loss(batch.obs.at[:, 0].add(1.0), batch.actions) != loss(batch.obs, batch.actions)
    other_actions = batch.actions.at[:, :BURN_IN].set(1 - batch.actions[:, :BURN_IN])
    assert loss(batch.obs, other_actions) == loss(batch.obs, batch.actions)


@pytest.mark.parametrize("cell", ["gru", "min_gru", "lru"])
def test_stored_is_what_was_remembered_before_each_step(cell: str) -> None:
    network = {**LINEAR, "recurrent": {"name": cell, "size": 8}}
    workflow = small("r2d2", learning_starts=1e9, agent={"network": network})
    state = workflow.init(0)
    for _ in range(7):
        _, state = workflow.step(state)
    num_rows, stored = int(state.replay_state.size), state.replay_state.data
    assert bool(stored.dones[: num_rows - 1].any())
    starts = jnp.concatenate([jnp.ones((1, NUM_ENVS), bool), stored.dones[: num_rows - 1]])
    agent_state = state.agent_state
    nothing = workflow.agent.network.initial_state((NUM_ENVS,))
    unroll = jax.jit(functools.partial(workflow.agent.network.apply, method="unroll"))
    _, after = unroll(agent_state.params.online, stored.obs[:num_rows], nothing, starts)
    for before, later in zip(jax.tree.leaves(stored.extras.recurrent_state), jax.tree.leaves(after), strict=True):
        expected = jnp.where(starts[1:, :, None], 0.0, later[:-1])
        np.testing.assert_allclose(before[1:num_rows], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", ["min_gru", "lru"])
def test_linear_memory_is_learned_from_stored_sequences(cell: str) -> None:
    workflow = small("r2d2", learning_starts=0, agent={"network": {**LINEAR, "recurrent": {"name": cell, "size": 8}}})
    first = state = workflow.init(0)
    for _ in range(4):
        _, state = workflow.step(state)
    params, before = state.agent_state.params.online.params, first.agent_state.params.online.params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before.cell, params.cell)
    assert all(jax.tree.leaves(moved))


def test_nothing_is_learned_before_there_is_a_whole_sequence() -> None:
    """Updates start once each environment has stored a sequence of 6 steps, in the third iteration."""
    workflow = small("r2d2", learning_starts=0)
    fresh = state = workflow.init(0)
    changed = []
    for _ in range(4):
        _, state = workflow.step(state)
        pairs = zip(jax.tree.leaves(state.agent_state), jax.tree.leaves(fresh.agent_state), strict=True)
        changed.append(any(bool((a != b).any()) for a, b in pairs))
    assert changed == [False, False, True, True]
    assert int(state.opt_state.num_updates) == 2 * workflow.most_updates


def test_priorities_are_those_of_sequences() -> None:
    workflow = small("r2d2", learning_starts=0, prioritized=True)
    state = workflow.init(0)
    for _ in range(3):
        _, state = workflow.step(state)
    size = workflow.replay_buffer.num_rows * NUM_ENVS
    stored = np.asarray(get_weights(state.replay_state.priorities, jnp.arange(size))).reshape(-1, NUM_ENVS)
    assert (stored[0] > 0).all()
    assert (stored[0] != 1.0).any()
    assert not stored[1:].any()  # six rows: one whole sequence per environment


def test_evaluation_does_not_disturb_the_memory_of_training() -> None:
    workflow = small("r2d2")
    _, state = workflow.step(workflow.init(0))
    before = jax.tree.map(lambda x: x, state)
    assert workflow.evaluate(state).episode_return.shape == ()
    assert_identical(state, before)


@pytest.mark.parametrize(
    ("env", "changes", "parts"),
    [
        ("Pendulum-v1", {}, ("R2D2 acts in Discrete",)),
        (
            "CartPole-v1",
            {"agent": {"network": {"recurrent": None}}},
            ("agent.network.recurrent", "mapping", "got null"),
        ),
        ("CartPole-v1", {"agent": {"network": {"recurrent": "gri"}}}, ("'gri'", "'gru'")),
        ("CartPole-v1", {"agent": {"network": {"heads": {"duelling": True}}}}, ("'duelling'", "'dueling'")),
        ("CartPole-v1", {"burn_in": 12}, ("sequences of 16 steps", "every 2 steps", "the 16 steps")),
        ("CartPole-v1", {"sequence_length": 0}, ("sequence_length", "got 0")),
        ("CartPole-v1", {"agent": {"priority_mix": 1.5}}, ("priority_mix", "[0, 1], got 1.5")),
    ],
)
def test_impossible_options_are_refused(env: str, changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("r2d2", env, **changes)

"""REPPO solves problems with closed-form solutions; its targets, losses and multipliers match the paper."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.reppo import INITIAL_SHARPNESS, REPPOAgent, REPPOWorkflow
from evorl.envs import create_env
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.ops.value_distributions import hl_gauss
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, train_on_every_probe
from tests.support.small_workflows import PPO_CONFIG, arrays, fresh_state, moved_apart, small

NETWORKS = {
    "network": {"torso": [{"dense": {"size": 8, "rms_norm": True}}], "layer_norm": False},
    "critic_network": {"torso": [8]},
    "critic_heads": [8],
    "embedding_size": 4,
    "num_atoms": 11,
}
SETTINGS = {**NETWORKS, "support_low": -5.0, "support_high": 5.0}
DISCOUNT, T, B = 0.9, 7, 3


class TestContract(WorkflowContract):
    workflow = REPPOWorkflow
    SMALL = {**PPO_CONFIG, "agent": {**SETTINGS, "normalize_obs": True}}
    has_other_products = True  # expected values of distributions


class TestAgent(AgentContract):
    workflow = REPPOWorkflow
    settings = SETTINGS


class TestProbes(ActorCriticProbes):
    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls) -> tuple:
        """Train on the probes with so little entropy that soft values equal the values."""
        network = {"torso": [64, 64], "layer_norm": True, "orthogonal": True}
        return train_on_every_probe(
            REPPOWorkflow,
            {
                "network": network,
                "critic_network": {"torso": [64]},
                "critic_heads": [64],
                "embedding_size": 32,
                "num_atoms": 101,
                "support_low": -6.0,
                "support_high": 6.0,
                "temperature": 1e-3,
                "target_entropy_scale": 20.0,
            },
            continuous=True,
            num_envs=32,
            runs_long=True,
            rollout_length=16,
            num_epochs=4,
            num_minibatches=4,
            optimizer=Optimizer(learning_rate=Schedule(3e-3, 0.0), max_grad_norm=0.5),
            total_timesteps=512 * 300,
        )


def _agent(**settings: Any) -> tuple[REPPOAgent, AgentState]:
    """Return an agent whose critic has learned: initially, it predicts a return of 0 everywhere."""
    env = create_env("Pendulum-v1", parallel=2)
    agent = REPPOAgent.from_config({**SETTINGS, "temperature": 0.3, "multiplier": 0.7, **settings}, env)
    state = moved_apart(fresh_state(agent, env), "policy", "critic")
    params = state.params.critic["params"]
    bias = params["head"]["bias"] - INITIAL_SHARPNESS * hl_gauss(jnp.zeros(()), agent.support)
    head = {**params["head"], "bias": bias, "kernel": 2.0 * params["head"]["kernel"]}
    return agent, state.replace(params=state.params.replace(critic={"params": {**params, "head": head}}))


def _trajectory(terminations: dict[int, int], truncations: dict[int, int]) -> SampleBatch:
    """Return a trajectory ``[T, B]`` that ends at the given steps of the given environments."""
    keys = jax.random.split(jax.random.key(1), 4)
    termination, dones = np.zeros((T, B)), np.zeros((T, B))
    for step, env in terminations.items():
        termination[step, env] = dones[step, env] = 1.0
    for step, env in truncations.items():
        dones[step, env] = 1.0
    return SampleBatch(
        obs=jax.random.normal(keys[0], (T, B, 3)),
        actions=jnp.tanh(jax.random.normal(keys[1], (T, B, 1))),
        rewards=jax.random.normal(keys[2], (T, B)),
        next_obs=jax.random.normal(keys[3], (T, B, 3)),
        dones=jnp.asarray(dones),
        extras=PyTreeDict(
            env_extras=PyTreeDict(termination=jnp.asarray(termination)),
            policy_extras=PyTreeDict(noise=NOISE),
        ),
    )


NOISE = jax.random.normal(jax.random.key(4), (T, B, 1))
KEYS = jax.random.split(jax.random.key(5), (T, B))
MINIBATCH_KEYS = jax.random.split(jax.random.key(6), T * B)


def _batch(agent: REPPOAgent, state: AgentState) -> SampleBatch:
    trajectory = _trajectory({2: 0}, {4: 0})
    return jax.jit(agent.batch_with_targets)(state, trajectory, DISCOUNT, 0.6, KEYS).flatten()


@pytest.mark.parametrize("td_lambda", [0.0, 0.6, 1.0])
def test_targets_are_soft_returns_of_a_loop(td_lambda: float) -> None:
    """The entropy of the next action counts with a plus, except after a termination; time limits bootstrap.

    The next action has the noise of the action.
    """
    agent, state = _agent()
    trajectory = _trajectory({2: 0}, {4: 0})
    batch = jax.jit(agent.batch_with_targets)(state, trajectory, DISCOUNT, td_lambda, KEYS)
    policy = agent.policy(state, state.params.policy, trajectory.next_obs)
    actions = jnp.tanh(policy.loc + policy.scale * NOISE)
    log_prob = policy.log_prob(actions)
    logits, embeddings, _ = agent.critic(state, state.params.critic, trajectory.next_obs, actions)
    values, costs = np.asarray(agent.expected(logits)), 0.3 * np.asarray(log_prob)
    assert np.abs(costs).min() > 1e-3
    assert min(np.abs(values[4, 0]), np.ptp(values)) > 0.05  # the value at the time limit shows
    expected = np.zeros((T, B))
    for b in range(B):
        for t in reversed(range(T)):
            if (t, b) == (2, 0):
                expected[t, b] = trajectory.rewards[t, b]
                continue
            is_cut = t == T - 1 or (t, b) == (4, 0)
            ahead = values[t, b] if is_cut else td_lambda * expected[t + 1, b] + (1 - td_lambda) * values[t, b]
            expected[t, b] = trajectory.rewards[t, b] + DISCOUNT * (ahead - costs[t, b])
    np.testing.assert_allclose(batch.extras.targets, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.extras.next_embeddings, embeddings, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (5,), (2, 5)])
def test_actions_are_transformed_noise(shape: tuple[int, ...]) -> None:
    agent, state = _agent()
    obs = jax.random.normal(jax.random.key(0), (*shape, 3))
    actions, extras = agent.compute_actions(state, SampleBatch(obs=obs), jax.random.key(1))
    policy = agent.policy(state, state.params.policy, obs)
    np.testing.assert_array_equal(policy.sample(jax.random.key(1)), actions)
    np.testing.assert_allclose(jnp.tanh(policy.loc + policy.scale * extras.noise), actions, rtol=1e-5)


def test_the_critic_loss_is_a_cross_entropy_and_predictions_stop_at_ends() -> None:
    agent, state = _agent(prediction_weight=0.5)
    batch = _batch(agent, state)
    loss, losses = jax.jit(agent.critic_loss)(state.params.critic, state, batch)
    logits, _, predictions = agent.critic(state, state.params.critic, batch.obs, batch.actions)
    target = np.asarray(hl_gauss(batch.extras.targets, jnp.linspace(-5.0, 5.0, 11)))
    cross_entropy = -(target * np.asarray(jax.nn.log_softmax(logits))).sum(axis=-1)
    errors = np.asarray(predictions)[:, :-1] - np.asarray(batch.extras.next_embeddings)
    reward_errors = np.asarray(predictions)[:, -1] - np.asarray(batch.rewards)
    auxiliary = (np.square(errors).sum(axis=-1) + np.square(reward_errors)) / 5
    auxiliary[[2 * B, 4 * B]] = 0.0  # the ends of the first environment
    np.testing.assert_allclose(loss, (cross_entropy + 0.5 * auxiliary).mean(), rtol=1e-4)
    np.testing.assert_allclose(losses.prediction_loss, auxiliary.mean(), rtol=1e-4)


def test_returns_outside_the_grid_are_reported() -> None:
    """A grid that does not contain the returns is visible in ``outside_support``."""
    agent, state = _agent()
    batch = _batch(agent, state)
    far = batch.extras.targets.at[:5].add(100.0).at[5:7].add(-100.0)
    for targets, share in ((batch.extras.targets, 0.0), (far, 7 / (T * B))):
        changed = batch.replace(extras=batch.extras.replace(targets=targets))
        _, losses = agent.critic_loss(state.params.critic, state, changed)
        np.testing.assert_allclose(losses.outside_support, share, rtol=1e-6)


def _actor_params(state: AgentState) -> PyTreeDict:
    return PyTreeDict({name: state.params[name] for name in ("policy", "log_temperature", "log_multiplier")})


def test_samples_within_the_bound_maximize_values_and_others_reduce_the_divergence() -> None:
    """The divergence is that from the policy of the trajectory, which later minibatches no longer have."""
    agent, state = _agent(kl_bound=0.02)
    batch = _batch(agent, state)
    params = _actor_params(state)
    params.policy = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(3), x.shape), params.policy)
    current = state.replace(params=state.params.replace(policy=params.policy))
    loss, losses = jax.jit(agent.actor_loss)(params, current, batch, MINIBATCH_KEYS)
    policy = agent.policy(state, params.policy, batch.obs)
    actions, log_prob = policy.sample_and_log_prob(MINIBATCH_KEYS)
    values = np.asarray(agent.expected(agent.critic(state, state.params.critic, batch.obs, actions)[0]))
    kl = np.asarray(agent.policy(state, state.params.policy, batch.obs).kl(policy))
    assert 0.2 < (kl < 0.02).mean() < 0.8
    assert np.ptp(values) > 0.5
    log_prob = np.asarray(log_prob)
    expected = np.where(kl < 0.02, 0.3 * log_prob - values, 0.7 * kl).mean()
    np.testing.assert_allclose(losses.actor_loss, expected, rtol=1e-4)
    duals = 0.3 * (-log_prob + 0.5).mean() - 0.7 * (kl - 0.02).mean()
    np.testing.assert_allclose(loss, expected + duals, rtol=1e-4)


@pytest.mark.parametrize(("log_std", "kl_bound", "signs"), [(-3.0, 1e3, (-1, 1)), (0.0, 1e-9, (1, -1))])
def test_multipliers_grow_while_their_bound_is_violated(
    log_std: float, kl_bound: float, signs: tuple[int, int]
) -> None:
    """A descent step raises alpha if the entropy is too low, and lambda if the divergence is too large."""
    agent, state = _agent(kl_bound=kl_bound)
    batch = _batch(agent, state)
    params = _actor_params(state)
    head = params.policy["params"]["head"]
    shifted = {**head, "bias": head["bias"].at[1].set(log_std), "kernel": 0.01 * head["kernel"]}
    params.policy = {"params": {**params.policy["params"], "head": shifted}}
    gradient, losses = jax.jit(jax.grad(agent.actor_loss, has_aux=True))(params, state, batch, MINIBATCH_KEYS)
    assert (float(losses.entropy) < -0.5) == (signs[0] < 0)
    assert (float(losses.kl) > kl_bound) == (signs[1] < 0)
    assert np.sign(gradient.log_temperature) == signs[0]
    assert np.sign(gradient.log_multiplier) == signs[1]


def test_gradients_of_the_policy_pass_through_the_critic_only_within_the_bound() -> None:
    agent, state = _agent(kl_bound=1e-9)
    batch, params = _batch(agent, state), _actor_params(state)
    params.policy = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(3), x.shape), params.policy)
    gradient = jax.grad(lambda p: agent.actor_loss(p, state, batch, MINIBATCH_KEYS)[0])(params).policy
    old = agent.policy(state, state.params.policy, batch.obs)

    def divergence(policy_params: Any) -> jax.Array:
        return 0.7 * old.kl(agent.policy(state, policy_params, batch.obs)).mean()

    expected = arrays(jax.grad(divergence)(params.policy))
    for path, value in arrays(gradient).items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-3, atol=1e-5)


def test_values_change_the_policy_through_its_actions() -> None:
    """Within the bound, the gradient is that of ``alpha log pi(a) - Q(s, a)`` with ``a = tanh(mean + std noise)``."""
    agent, state = _agent(kl_bound=1e3)
    batch, params = _batch(agent, state), _actor_params(state)
    gradients = jax.jit(jax.grad(agent.actor_loss, has_aux=True))(params, state, batch, MINIBATCH_KEYS)[0]
    noise = jax.vmap(lambda key: jax.random.normal(key, (1,)))(MINIBATCH_KEYS)

    def loss(policy_params: Any, weight: float) -> jax.Array:
        policy = agent.policy(state, policy_params, batch.obs)
        actions = jnp.tanh(policy.loc + policy.scale * noise)
        values = agent.expected(agent.critic(state, state.params.critic, batch.obs, actions)[0])
        return (0.3 * policy.log_prob(actions) - weight * values).mean()

    expected, of_entropy = (arrays(jax.grad(loss)(params.policy, weight)) for weight in (1.0, 0.0))
    for path, value in arrays(gradients.policy).items():
        np.testing.assert_allclose(value, expected[path], rtol=2e-2, atol=1e-4)
    assert max(np.abs(x - of_entropy[path]).max() for path, x in expected.items()) > 0.05


def test_the_initial_distribution_is_narrow_around_zero() -> None:
    env = create_env("Pendulum-v1", parallel=2)
    agent = REPPOAgent.from_config({**SETTINGS, "num_atoms": 101}, env)
    state, obs = fresh_state(agent, env), jax.random.normal(jax.random.key(0), (20, 3))
    logits, _, _ = agent.critic(state, state.params.critic, obs, jnp.zeros((20, 1)))
    deviations = np.sqrt(jax.nn.softmax(logits) @ np.square(agent.support))
    assert deviations.max() < 0.2  # that of a uniform distribution is 2.9


def test_an_update_is_the_given_number_of_gradient_steps_of_both() -> None:
    workflow = small("reppo", "Pendulum-v1")
    _, state = workflow.step(workflow.init(0))
    counts = [x for path, x in jax.tree_util.tree_leaves_with_path(state.opt_state) if "count" in str(path)]
    assert [int(count) for count in counts] == [4, 4]


@pytest.mark.parametrize(
    ("env", "changes", "parts"),
    [
        ("Pendulum-v1", {"num_minibatches": 3}, ("64 transitions", "num_minibatches=3")),
        ("Pendulum-v1", {"agent": {**SETTINGS, "support_low": 5.0}}, ("support_low=5", "support_high=5")),
        ("Pendulum-v1", {"agent": {**SETTINGS, "embedding_size": 0}}, ("agent.embedding_size", "got 0")),
        ("CartPole-v1", {}, ("REPPO acts in flat Boxes", "Discrete(2)")),
    ],
)
def test_impossible_options_are_refused(env: str, changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("reppo", env, **changes)

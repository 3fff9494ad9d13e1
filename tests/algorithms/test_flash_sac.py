"""FlashSAC: settings of CrossQ, repeated exploration noise, and a planted fault for each published mistake."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.algorithms.crossq import CrossQAgent, CrossQWorkflow
from evorl.assembly import workflow_from_config
from evorl.envs import create_env
from evorl.networks.blocks import Flash
from evorl.networks.q_networks import apply_in_training
from evorl.rollout import recurrent_state_of, rollout
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.config_files import composed
from tests.support.errors import raises_naming
from tests.support.small_workflows import EPISODE_STEPS, SAC_CONFIG, arrays, fresh_state, small, transitions

KEYS = jax.random.split(jax.random.key(5), 6)
# The shift of the first normalization has no gradient, since the second one cancels it. Epsilon keeps adam from scaling
# up rounding errors, which differ between devices.
PROJECTED = {"projection": "unit_norm_and_gains", "epsilon": 1e-4}
AGENT = {
    "network": {"torso": [8, {"flash": 1}], "orthogonal": True},
    "min_log_std": -10.0,
    "log_std_bound": "tanh",
    "target_critics": True,
    "joint_policy": True,
    "noise_repetition": {"max_steps": 4},
    "values": "categorical",
    "num_atoms": 11,
    "support_low": -5.0,
    "support_high": 5.0,
}


class TestContract(WorkflowContract):
    workflow = CrossQWorkflow
    has_other_products = True  # means of categorical values
    SMALL = {
        **SAC_CONFIG,
        "tau": 0.01,
        "policy_delay": 2,
        "reward_bound": 5.0,
        "actor_optimizer": PROJECTED,
        "critic_optimizer": PROJECTED,
        "agent": {**AGENT, "critic_network": {"torso": [8, {"flash": 1}]}},
    }


class TestAgent(AgentContract):
    workflow = CrossQWorkflow
    settings = TestContract.SMALL["agent"]


def test_the_shipped_settings() -> None:
    """Batches, updates and buffer are those for one simulator on a CPU: others were reported not to learn."""
    workflow: Any = workflow_from_config(composed("agent=flash_sac", "env=pendulum"))
    agent = workflow.agent
    assert (workflow.env.num_envs, workflow.updates_per_iteration, workflow.batch_size) == (1, 1, 512)
    assert (workflow.replay_capacity, float(workflow.learning_starts), float(workflow.tau)) == (1_000_000, 1e4, 0.01)
    assert (workflow.policy_delay, workflow.reward_bound, workflow.n_step) == (2, 5.0, 1)
    assert agent.policy_network.torso.layers == (Flash(2, 128),)
    assert agent.critic_network.torso.layers == (Flash(2, 256),)
    assert (agent.target_critics, agent.joint_policy, agent.normalize_obs) == (True, True, False)
    assert (agent.critic_network.num_critics, agent.critic_network.num_atoms) == (2, 101)
    assert (agent.noise_repetition.max_steps, float(agent.noise_repetition.exponent)) == (16, 2.0)
    for optimizer in (workflow.actor_optimizer, workflow.critic_optimizer):
        rate = optimizer.learning_rate
        assert (float(rate.start), float(rate.end), rate.kind) == (3e-4, 1.5e-4, "cosine")
        assert (float(optimizer.beta1), optimizer.projection) == (0.9, "unit_norm_and_gains")
    # The entropy of a normal distribution with deviation 0.15; minus the number of dimensions is lower.
    np.testing.assert_allclose(agent.target_entropy, 0.5 * np.log(2 * np.pi * np.e * 0.15**2), atol=1e-4)


def _agent(**settings: Any) -> tuple[CrossQAgent, Any, Any]:
    env = create_env("Pendulum-v1", parallel=2)
    agent = CrossQAgent.from_config({**TestContract.SMALL["agent"], "temperature": 0.3, **settings}, env)
    return agent, fresh_state(agent, env), transitions(env, 6)


def test_the_policy_sees_both_ends_and_learns_from_the_first() -> None:
    agent, state, batch = _agent()
    loss, losses = jax.jit(agent.actor_loss)(state.params.policy, state, batch, KEYS)
    rows = jnp.concatenate([batch.obs, batch.next_obs])
    expected = {}
    for name, obs in (("both", rows), ("first", batch.obs)):  # the second is a planted fault
        outputs, statistics = apply_in_training(
            agent.policy_network, state.params.policy, state.extra_state.policy, obs
        )
        actions, log_prob = agent.distribution(outputs[:6]).sample_and_log_prob(KEYS)
        values = agent.expected(agent.critics(state, state.params.critic, batch.obs, actions)).min(axis=0)
        expected[name] = float((0.3 * log_prob - values).mean()), statistics
    np.testing.assert_allclose(loss, expected["both"][0], rtol=1e-4)
    assert abs(expected["first"][0] - expected["both"][0]) > 1e-3
    for seen, own in zip(jax.tree.leaves(losses.statistics), jax.tree.leaves(expected["both"][1]), strict=True):
        np.testing.assert_allclose(seen, own, rtol=1e-4, atol=1e-6)


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def test_target_networks_never_copy_statistics() -> None:
    """Target networks average parameters only. Copied statistics, the planted fault, would be equal."""
    fast = {**PROJECTED, "learning_rate": 0.1}
    workflow: Any = TestContract.make(learning_starts=0, updates_per_iteration=1, critic_optimizer=fast, tau=0.5)
    state = workflow.init(0)
    for _ in range(4):
        before = state.agent_state
        _, state = workflow.step(state)
        after = state.agent_state
        averages = jax.tree.map(lambda t, c: 0.5 * (t + c), before.params.target_critic, after.params.critic)
        np.testing.assert_allclose(_flat(after.params.target_critic), _flat(averages), rtol=1e-5, atol=1e-6)
        assert not np.allclose(_flat(after.extra_state.target_critic), _flat(before.extra_state.target_critic))
    critic, target = (_flat(state.agent_state.extra_state[name]) for name in ("critic", "target_critic"))
    assert not np.allclose(critic, target, rtol=1e-3)


def test_kernels_and_gains_are_projected_after_each_update() -> None:
    fast = {**PROJECTED, "learning_rate": 0.05}
    workflow: Any = TestContract.make(learning_starts=0, actor_optimizer=fast, critic_optimizer=fast)
    state = workflow.init(0)
    for _ in range(3):
        _, state = workflow.step(state)
    for name in ("policy", "critic"):
        params = arrays(state.agent_state.params[name])
        norms = {path.rpartition("[")[0] for path in params if "Norm" in path or "BatchRenorm" in path}
        assert len(norms) == 4
        for layer in norms:
            squares = sum(np.square(x).mean(axis=-1) for path, x in params.items() if path.rpartition("[")[0] == layer)
            np.testing.assert_allclose(squares, 1.0, rtol=1e-5)
        for path, x in params.items():
            if "kernel" in path:
                np.testing.assert_allclose(np.linalg.norm(x, axis=-2), 1.0, rtol=1e-5)
        assert any(np.abs(x - 1.0).max() > 1e-3 for path, x in params.items() if "scale" in path)


def test_rewards_are_scaled_in_the_order_of_the_environments() -> None:
    """The scale equals a loop over the steps of each environment. Sampled rewards, the planted fault, give another."""
    workflow: Any = TestContract.make(learning_starts=1e6)
    state = workflow.init(0)
    sums, seen = np.zeros(8), []
    for _ in range(EPISODE_STEPS + 3):
        _, state = workflow.step(state)
        stored = state.replay_state
        newest = jax.tree.map(np.asarray, _newest(workflow, stored))
        sums = 0.99 * sums + newest.rewards
        seen.append(sums)
        sums = np.where(newest.dones, 0.0, sums)  # an episode starts at 0
    scale = state.reward_scale
    np.testing.assert_allclose(scale.greatest, np.abs(seen).max(), rtol=1e-4)
    np.testing.assert_allclose(scale.statistics.variance, np.var(seen), rtol=1e-3)
    batches, _, _ = workflow.draw_batches(state, jax.random.key(0), jnp.zeros(()))
    sampled = np.zeros(len(batches.rewards[0])) + np.asarray(batches.rewards[0])
    assert abs(np.var(sampled) - np.var(seen)) > 0.1 * np.var(seen)


def _newest(workflow: Any, replay_state: Any) -> Any:
    """Return the transitions ``[B, ...]`` of the last step."""
    row = (replay_state.cursor - 1) % workflow.replay_buffer.num_rows
    return jax.tree.map(lambda x: x[row], replay_state.data)


def test_exploring_holds_noise_and_evaluation_has_none() -> None:
    """Actions are ``tanh(mean + deviation * noise)``, with the noise of the recurrent state; new in each episode."""
    env = create_env({"name": "Pendulum-v1", "max_episode_steps": 40}, parallel=64)
    agent = CrossQAgent.from_config({**TestContract.SMALL["agent"], "noise_repetition": {"max_steps": 16}}, env)
    state = fresh_state(agent, env)
    trajectory, _ = jax.jit(lambda key: rollout(env.step, agent.compute_actions, env.reset(key), state, key, 80))(
        jax.random.key(4)
    )
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trajectory)
    policy = agent.policy(state, state.params.policy, flat.obs)
    noise = ((np.arctanh(np.clip(flat.actions, -0.999999, 0.999999)) - policy.loc) / policy.scale).reshape(80, 64)
    inside = (np.abs(trajectory.actions[..., 0]) < 0.99).astype(bool)
    held = trajectory.extras.recurrent_state.remaining > 0
    before = np.asarray(trajectory.extras.recurrent_state.noise)[..., 0]
    np.testing.assert_allclose(noise[held & inside], before[held & inside], rtol=0.05, atol=0.05)
    assert 0.2 < held.mean() < 0.8
    assert not held[40].any()  # episodes have ended
    np.testing.assert_allclose(np.abs(noise[~held & inside]).mean(), np.sqrt(2 / np.pi), atol=0.1)
    extras = {"recurrent_state": jax.tree.map(lambda x: x[3], trajectory.extras.recurrent_state)}
    obs = trajectory.replace(obs=trajectory.obs[3], extras=extras)
    acted, kept = agent.evaluate_actions(state, obs, jax.random.key(0))
    mode = agent.policy(state, state.params.policy, trajectory.obs[3]).mode()
    np.testing.assert_array_equal(acted, mode)
    np.testing.assert_array_equal(kept["recurrent_state"]["noise"], extras["recurrent_state"].noise)


def test_noise_is_held_across_iterations() -> None:
    settings = {"network": {"torso": [4]}, "noise_repetition": {"max_steps": 16, "exponent": 0.0}}
    workflow: Any = small("sac", "Pendulum-v1", learning_starts=1e6, agent=settings)
    state = workflow.init(0)
    remaining = []
    for _ in range(EPISODE_STEPS):
        _, state = workflow.step(state)
        remaining.append(np.asarray(recurrent_state_of(state.env_state).remaining))
    counted = np.stack(remaining[:-1])
    falls = counted[1:] == counted[:-1] - 1
    assert (falls | (counted[:-1] == 0)).all()
    assert falls.any()
    assert not remaining[-1].any()  # the episode has ended


def test_discrete_actions_have_no_noise_to_repeat() -> None:
    with raises_naming(ValueError, "noise_repetition", "max_steps=4", "Discrete(2)"):
        small("sac", "CartPole-v1", agent={"network": {"torso": [4]}, "noise_repetition": {"max_steps": 4}})

"""PPO's whole update, computed by hand: advantages, losses, clipping, schedules, optimizer, and statistics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.optimization import gradient_step
from tests.support.small_workflows import assert_close, small

RATE, EPSILON, MAX_NORM = 0.03, 1e-5, 0.3
CLIP, VALUE_CLIP = 0.1, 0.05
SETTINGS: dict[str, Any] = {
    "num_epochs": 3,  # ratios are 1 in the first pass only
    "num_minibatches": 1,  # independent of the shuffle
    "gae_lambda": 0.9,
    "optimizer": {
        "learning_rate": {"start": RATE, "end": 0.0},
        "max_grad_norm": MAX_NORM,
        "epsilon": EPSILON,
    },
    "agent": {
        "network": {"torso": [8], "activation": "tanh"},
        "normalize_obs": True,
        "clip_epsilon": CLIP,
        "value_clip_epsilon": VALUE_CLIP,
        "value_coefficient": 0.7,
        "entropy_coefficient": {"start": 0.4, "end": 0.0},
    },
}


def _layers(params: Any, obs: jax.Array) -> jax.Array:
    hidden = jnp.tanh(obs @ params["torso"]["Dense_0"]["kernel"] + params["torso"]["Dense_0"]["bias"])
    return hidden @ params["head"]["kernel"] + params["head"]["bias"]


def _advantages(rewards: Any, values: Any, next_values: Any, terminations: Any, dones: Any) -> np.ndarray:
    """Return the sums of discounted temporal differences within each episode (discount 0.99, lambda 0.9)."""
    advantages = np.zeros_like(rewards)
    for env in range(rewards.shape[1]):
        for start in range(len(rewards)):
            weight = 1.0
            for t in range(start, len(rewards)):
                bootstrap = 0.0 if terminations[t, env] else 0.99 * next_values[t, env]
                advantages[start, env] += weight * (rewards[t, env] + bootstrap - values[t, env])
                if dones[t, env]:
                    break
                weight *= 0.99 * 0.9
    return advantages


def _adam(params: Any, gradients: Any, moments: Any, count: int, rate: float) -> tuple[Any, Any]:
    """Take the ``count``-th step of Adam, by gradients that are scaled down to the largest norm."""
    norm = np.sqrt(sum(float(np.square(x).sum()) for x in jax.tree.leaves(gradients)))
    assert norm > MAX_NORM  # so that clipping matters
    gradients = jax.tree.map(lambda g: np.asarray(g) * MAX_NORM / norm, gradients)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g**2, moments[1], gradients)

    def moved(x: Any, m: Any, v: Any) -> Any:
        return x - rate * (m / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.999**count)) + EPSILON)

    return jax.tree.map(moved, params, first, second), (first, second)


def test_a_whole_update_by_hand() -> None:
    env = {"name": "CartPole-v1", "max_episode_steps": 13}  # some episodes end before
    workflow = small("ppo", env, discount=0.99, rollout_length=16, total_timesteps=128 * 4, **SETTINGS)
    collect, update = (jax.jit(lambda w, *x, name=name: getattr(w, name)(*x)) for name in ("collect", "update"))
    first = workflow.init(0)
    _, state = update(workflow, *reversed(collect(workflow, first)))
    state = state.replace(iterations=first.iterations.add(1), opt_state=first.opt_state)  # progress 1/4, fresh moments
    trajectory, state = collect(workflow, state)
    metrics, after = update(workflow, state, trajectory)

    params = jax.tree.map(np.asarray, dict(state.agent_state.params))
    statistics, actions = state.agent_state.obs_preprocessor_state, np.asarray(trajectory.actions)
    deviation = np.sqrt(np.asarray(statistics.m2) / float(statistics.count))
    obs, next_obs = (
        jnp.clip((x - statistics.mean) / deviation, -10.0, 10.0) for x in (trajectory.obs, trajectory.next_obs)
    )
    values, next_values = (np.asarray(_layers(params["value"], x))[..., 0] for x in (obs, next_obs))
    old = jax.nn.log_softmax(_layers(params["policy"], obs))
    dones, terminations = np.asarray(trajectory.dones), np.asarray(trajectory.extras.env_extras.termination)
    assert terminations.any()
    assert (dones != terminations).any()
    raw = _advantages(np.asarray(trajectory.rewards), values, next_values, terminations, dones)
    targets, advantages = raw + values, (raw - raw.mean()) / raw.std()

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        log_probs = jax.nn.log_softmax(_layers(params["policy"], obs))
        chosen = jax.nn.one_hot(actions, 2)
        ratio = jnp.exp(((log_probs - old) * chosen).sum(axis=-1))
        surrogate = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages).mean()
        new = _layers(params["value"], obs)[..., 0]
        near = values + jnp.clip(new - values, -VALUE_CLIP, VALUE_CLIP)
        value_loss = jnp.maximum((new - targets) ** 2, (near - targets) ** 2).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1).mean()
        return -surrogate + 0.7 * value_loss - 0.3 * entropy, ratio  # 0.3: a quarter of the training is over

    zeros = jax.tree.map(np.zeros_like, params)
    moments: Any = (zeros, zeros)
    for count in (1, 2, 3):
        gradients, ratio = jax.grad(loss, has_aux=True)(params)
        params, moments = _adam(params, gradients, moments, count, RATE * 0.75)
    assert (np.abs(ratio - 1) > CLIP).any()  # so that clipping matters
    assert float(metrics.clip_fraction) > 0
    assert_close(dict(after.agent_state.params), params, 2e-4)
    counts = [float(x.agent_state.obs_preprocessor_state.count) for x in (state, after)]
    assert counts == [128.0, 256.0]


def test_advantages_of_minibatches_of_trajectories_are_standardized_over_all_their_steps() -> None:
    """The step of a recurrent agent is that by ``(A - mean) / deviation`` over time and environments."""
    agent = {"network": {"torso": [8], "recurrent": {"name": "gru", "size": 4}}}
    one = {"num_epochs": 1, "num_minibatches": 1, "optimizer": {"name": "sgd", "learning_rate": 1.0}}
    workflow: Any = small("ppo", "CartPole-v1", agent=agent, **one)
    state = workflow.init(0)

    @jax.jit
    def steps(workflow: Any, state: Any) -> Any:
        trajectory, state = workflow.collect(state)
        batch = workflow.agent.batch_with_advantages(state.agent_state, trajectory, workflow.discount, 0.95)
        raw = batch.advantages
        spread = jnp.sqrt(((raw - raw.mean()) ** 2).mean())
        batch = batch.replace(advantages=(raw - raw.mean()) / spread)
        inputs = (state.agent_state, batch, jnp.float32(0.0))
        expected, *_ = gradient_step(
            workflow.agent.loss, workflow.optimizer, state.agent_state.params, state.opt_state, *inputs
        )
        return raw, expected, workflow.update(state, trajectory)[1].agent_state.params

    raw, expected, params = steps(workflow, state)
    assert raw.shape == (8, 8)
    assert np.ptp(raw.mean(axis=0)) > 0.1
    assert np.ptp(raw.mean(axis=1)) > 0.1
    assert_close(params, expected, 1e-5)

"""Prioritized DQN's whole update, computed by hand: n-step transitions, weights, double targets, Adam, priorities."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.sum_tree import get_weights
from tests.support.small_workflows import NUM_ENVS, assert_close, small

DISCOUNT, STEPS, ALPHA, RATE, MAX_NORM = 0.9, 3, 0.7, 0.02, 0.5
ROWS = 12  # stored steps of each environment
BETA = 0.4 + 0.6 * 0.25  # a quarter of the training is over


def _workflow() -> Any:
    env = {"name": "CartPole-v1", "max_episode_steps": 10}
    return small(
        "dqn",
        env,
        prioritized=True,
        priority_exponent=ALPHA,
        importance_exponent={"start": 0.4, "end": 1.0},
        n_step=STEPS,
        discount=DISCOUNT,
        updates_per_iteration=3,
        batch_size=16,
        learning_starts=1e6,
        replay_capacity=NUM_ENVS * 16,
        target_update_interval=2,
        tau=1.0,
        optimizer={"learning_rate": RATE, "max_grad_norm": MAX_NORM, "epsilon": 1e-8},
        agent={"network": {"torso": [8], "activation": "tanh"}, "double": True, "huber_delta": None},
    )


def _values(params: Any, obs: Any) -> jax.Array:
    params = params["params"]
    hidden = jnp.tanh(obs @ params["torso"]["Dense_0"]["kernel"] + params["torso"]["Dense_0"]["bias"])
    return hidden @ params["head"]["kernel"] + params["head"]["bias"]


def _n_step(data: Any, row: int, env: int) -> tuple[float, float, np.ndarray]:
    """Return rewards, discount and successor of up to three stored steps, which end with their episode."""
    total = 0.0
    for k in range(STEPS):
        last = row + k
        total += DISCOUNT**k * float(data.rewards[last, env])
        if data.dones[last, env] or last == ROWS - 1:
            break
    ended = bool(data.extras.termination[last, env])
    return total, 0.0 if ended else DISCOUNT ** (last - row + 1), np.asarray(data.next_obs[last, env])


def _adam(params: Any, gradients: Any, moments: Any, count: int) -> tuple[Any, Any]:
    """Take the ``count``-th step of Adam, by gradients that are scaled down to the largest norm."""
    norm = np.sqrt(sum(float(np.square(x).sum()) for x in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: np.asarray(g) * min(1.0, MAX_NORM / norm), gradients)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g**2, moments[1], gradients)

    def moved(x: Any, m: Any, v: Any) -> Any:
        return x - RATE * (m / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(moved, params, first, second), (first, second)


def _prepared(workflow: Any) -> tuple[Any, np.ndarray]:
    """Return a state with 12 stored steps of each environment, unequal priorities, and another target network."""
    state = workflow.init(0)
    for _ in range(ROWS):
        _, state = workflow.step(state)
    data = state.replay_state.data
    signs = np.where(np.arange(data.rewards.size) % 3 == 0, -3.0, 1.0).reshape(data.rewards.shape)
    state = state.replace(replay_state=state.replay_state.replace(data=data.replace(rewards=data.rewards * signs)))
    rows, envs = (x.ravel() for x in np.divmod(np.arange(ROWS * NUM_ENVS), NUM_ENVS))
    errors = np.random.default_rng(0).exponential(size=rows.size).astype(np.float32)
    replay_state = workflow.replay_buffer.set_priorities(state.replay_state, rows, envs, errors)
    moved = jax.tree.map(lambda x: x + 0.3 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), state.agent_state.params)
    params = state.agent_state.params.replace(target=moved.target)
    return state.replace(replay_state=replay_state, agent_state=state.agent_state.replace(params=params)), errors


def test_whole_updates_by_hand() -> None:
    workflow = _workflow()
    state, errors = _prepared(workflow)
    data, priorities = state.replay_state.data, (errors + 1e-6) ** ALPHA
    keys, progress = (jax.random.key(1), jax.random.key(2)), jnp.float32(0.25)
    _, rows, envs = jax.jit(lambda w, s: w.draw_batches(s, keys[0], progress))(workflow, state)
    _, after = jax.jit(lambda w, s: w.learn_repeatedly(s, keys, 3, progress))(workflow, state)

    params, target = (jax.tree.map(np.asarray, state.agent_state.params[name]) for name in ("online", "target"))
    zeros = jax.tree.map(np.zeros_like, params)
    moments: Any = (zeros, zeros)
    stored: dict[int, list[float]] = {}
    signs: set[float] = set()
    assert len({float(priorities[np.asarray(r * NUM_ENVS + e)].min()) for r, e in zip(rows, envs, strict=True)}) == 3
    for count, (row, env) in enumerate(zip(np.asarray(rows), np.asarray(envs), strict=True), start=1):
        index = row * NUM_ENVS + env
        rewards, discounts, next_obs = (
            np.stack(x) for x in zip(*(_n_step(data, *pair) for pair in zip(row, env, strict=True)), strict=True)
        )
        weights = (priorities.size * priorities[index] / priorities.sum()) ** -BETA
        weights /= weights.max()
        best = np.argmax(_values(params, next_obs), axis=1)
        targets = rewards + discounts * np.asarray(_values(target, next_obs))[np.arange(16), best]
        obs, actions = np.asarray(data.obs)[row, env], np.asarray(data.actions)[row, env]

        def loss(params: Any, obs: Any = obs, actions: Any = actions, y: Any = targets, w: Any = weights) -> Any:
            td_errors = y - _values(params, obs)[jnp.arange(16), actions]
            return (w * 0.5 * td_errors**2).mean(), td_errors

        gradients, td_errors = jax.grad(loss, has_aux=True)(params)
        params, moments = _adam(params, gradients, moments, count)
        if count == 2:
            target = params
        signs |= set(np.sign(np.asarray(td_errors)))
        for i, error in zip(index, np.asarray(td_errors), strict=True):
            stored.setdefault(int(i), []).append((abs(float(error)) + 1e-6) ** ALPHA)
    assert signs == {-1.0, 1.0}
    assert_close(after.agent_state.params.online, params, 2e-4)
    assert_close(after.agent_state.params.target, target, 2e-4)
    new = np.asarray(get_weights(after.replay_state.priorities, np.arange(priorities.size)))
    for i, old in enumerate(priorities):  # of a transition that was drawn repeatedly, any of the errors may be stored
        assert np.isclose(new[i], stored.get(i, [old]), rtol=1e-3).any()
    greatest = max(1.0, priorities.max(), *(x for values in stored.values() for x in values))
    np.testing.assert_allclose(after.replay_state.greatest, greatest, rtol=1e-3)

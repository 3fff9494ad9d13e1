"""Transitions over several steps, against loops over episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.replay_buffers import ReplayState, UniformReplayBuffer, take_n_step
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict

NUM_ENVS, ROWS, DISCOUNT = 3, 16, 0.9
BUFFER = UniformReplayBuffer(capacity=ROWS * NUM_ENVS, num_envs=NUM_ENVS)


def _history(length: int) -> SampleBatch:
    """Random rewards and ends; observations number the steps."""
    keys = jax.random.split(jax.random.key(0), 3)
    step = jnp.broadcast_to(jnp.arange(length, dtype=jnp.float32)[:, None], (length, NUM_ENVS))
    dones = jax.random.bernoulli(keys[0], 0.2, (length, NUM_ENVS))
    return SampleBatch(
        obs=step,
        actions=jnp.arange(length * NUM_ENVS).reshape(length, NUM_ENVS),
        rewards=jax.random.normal(keys[1], (length, NUM_ENVS)),
        next_obs=step + 0.5,
        dones=dones,
        extras=PyTreeDict(termination=dones & jax.random.bernoulli(keys[2], 0.5, (length, NUM_ENVS))),
    )


def _stored(history: SampleBatch) -> ReplayState:
    state = BUFFER.init(jax.tree.map(lambda x: x[0, 0], history))
    for start in range(0, len(history), 4):
        state = BUFFER.add(state, history[start : start + 4])
    return state


def _expected(history: SampleBatch, start: int, env: int, num_steps: int) -> tuple[float, float, int, float]:
    reward = 0.0
    for k in range(num_steps):
        t = start + k
        reward += DISCOUNT**k * float(history.rewards[t, env])
        if bool(history.dones[t, env]) or t + 1 == len(history):
            break
    discount = 0.0 if bool(history.extras.termination[t, env]) else DISCOUNT ** (k + 1)
    return reward, float(history.next_obs[t, env]), k + 1, discount


@pytest.mark.parametrize("length", [12, 28])  # the second goes around the ring
@pytest.mark.parametrize("num_steps", [1, 3, 5, ROWS])
def test_every_stored_step_starts_one(length: int, num_steps: int) -> None:
    history = _history(length)
    oldest = max(0, length - ROWS)
    starts, envs = (x.reshape(-1) for x in np.meshgrid(np.arange(oldest, length), np.arange(NUM_ENVS)))
    batch = jax.jit(take_n_step, static_argnums=(3, 4))(
        _stored(history), jnp.asarray(starts % ROWS), jnp.asarray(envs), NUM_ENVS, num_steps, DISCOUNT
    )
    for i, (start, env) in enumerate(zip(starts, envs, strict=True)):
        reward, next_obs, num_rewards, discount = _expected(history, start, env, num_steps)
        assert batch.obs[i] == start
        assert batch.actions[i] == start * NUM_ENVS + env
        assert batch.next_obs[i] == next_obs
        assert batch.extras.num_rewards[i] == num_rewards
        np.testing.assert_allclose(batch.rewards[i], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.extras.discounts[i], discount, rtol=1e-5)

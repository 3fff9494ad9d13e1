"""Exploration noise of TD3, DDPG and FastTD3: Gaussian or Ornstein-Uhlenbeck."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.td3 import TD3Agent
from evorl.envs import create_env
from evorl.ops.exploration import ActionNoise
from evorl.rollout import recurrent_state_of, rollout
from evorl.sample_batch import SampleBatch
from tests.support.small_workflows import EPISODE_STEPS, assert_identical, fresh_state, small

OU: dict[str, Any] = {"kind": "ornstein_uhlenbeck", "scale": 0.2}


def _actions_of_an_idle_policy(num_envs: int, num_steps: int, **noise: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return exploration actions ``[T, B]`` of a policy with outputs near 0, and the episode ends."""
    env = create_env({"name": "Pendulum-v1", "max_episode_steps": 50}, parallel=num_envs)
    agent = TD3Agent.from_config({"network": {"torso": [4]}, "noise": noise}, env)
    state = fresh_state(agent, env)
    state = state.replace(params=jax.tree.map(jnp.zeros_like, state.params))

    def play(key: jax.Array) -> SampleBatch:
        return rollout(env.step, agent.compute_actions, env.reset(key), state, key, num_steps)[0]

    trajectory = jax.jit(play)(jax.random.key(4))
    return np.asarray(trajectory.actions)[..., 0], np.asarray(trajectory.dones).astype(bool)


def test_gaussian_noise_is_new_at_each_step() -> None:
    actions, _ = _actions_of_an_idle_policy(256, 50, scale=0.2)
    np.testing.assert_allclose(actions.std(), 0.2, rtol=0.03)
    assert abs(np.mean(actions[1:] * actions[:-1])) < 0.03 * 0.2**2


def test_noise_that_wanders_starts_anew_with_each_episode() -> None:
    """``x' = (1 - theta) x + sigma N`` restarts at 0: variance after k steps and correlations match its formula."""
    theta, sigma = 0.15, 0.1
    actions, dones = _actions_of_an_idle_policy(512, 100, kind="ornstein_uhlenbeck", scale=sigma, theta=theta)
    assert dones[49].all()
    decay = 1 - theta
    for start in (0, 50):  # two episodes
        for k in (0, 1, 4, 49):
            expected = sigma * np.sqrt((1 - decay ** (2 * (k + 1))) / (1 - decay**2))
            np.testing.assert_allclose(actions[start + k].std(), expected, rtol=0.12)
    late = actions[30:50]
    np.testing.assert_allclose((late[1:] * late[:-1]).mean() / (late**2).mean(), decay, atol=0.03)
    assert abs(np.corrcoef(actions[49], actions[50])[0, 1]) < 0.15


@pytest.mark.parametrize("kind", ["gaussian", "ornstein_uhlenbeck"])
def test_every_environment_draws_its_scale_for_an_episode(kind: str) -> None:
    actions, _ = _actions_of_an_idle_policy(256, 100, kind=kind, scale=0.05, max_scale=0.3, theta=1.0)
    first, second = actions[:50].std(axis=0), actions[50:].std(axis=0)
    for scales in (first, second):
        assert 0.03 < scales.min() < 0.08
        assert 0.25 < scales.max() < 0.4
        np.testing.assert_allclose(scales.mean(), 0.175, atol=0.02)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2


def test_noise_goes_on_between_iterations_and_evaluations_have_none() -> None:
    """Ornstein-Uhlenbeck noise continues across iterations, restarts with episodes, and is absent from evaluations."""
    noise: dict[str, Any] = {**OU, "max_scale": 0.4}
    workflow = small("td3", "Pendulum-v1", learning_starts=1e6, agent={"network": {"torso": [4]}, "noise": noise})
    state = workflow.init(0)
    remembered = []
    for _ in range(EPISODE_STEPS):
        _, state = workflow.step(state)
        remembered.append(jax.tree.map(np.asarray, recurrent_state_of(state.env_state)))
    scales = np.stack([memory.scale for memory in remembered[:-1]])
    assert (scales == scales[0]).all()
    assert (scales[0] >= 0.2).all()
    assert len(np.unique(scales[0])) == scales.shape[1]
    assert_identical(remembered[-1], jax.tree.map(jnp.zeros_like, remembered[-1]))  # the episode has ended
    still = workflow.replace(
        agent=workflow.agent.replace(noise=ActionNoise(**(noise | {"scale": 0.0, "max_scale": 0.0})))
    )
    assert_identical(workflow.evaluate(state), still.evaluate(state))

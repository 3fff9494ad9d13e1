"""The on-policy family: what a trajectory is learned from with, and what is counted."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.ops.normalization import init_statistics, update_statistics
from tests.support.small_workflows import EPISODE_STEPS, NUM_ENVS, assert_close, small

LENGTH = 8


def test_statistics_count_a_trajectory_after_it_was_learned_from() -> None:
    workflow = small("ppo", "Pendulum-v1", agent={"network": {"torso": [8]}, "normalize_obs": True})
    state = workflow.init(0)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    _, after = workflow.step(state)
    expected = update_statistics(init_statistics(workflow.env.obs_space.zeros()), trajectory.obs)
    assert_close(after.agent_state.obs_preprocessor_state, expected, 1e-5)


def test_episodes_are_counted_where_they_end() -> None:
    workflow = small("ppo", "Pendulum-v1")
    metrics, state = workflow.step(workflow.init(0))
    assert float(metrics.episodes.count) == 0.0  # 8 of 10 steps
    metrics, state = workflow.step(state)
    assert float(metrics.episodes.count) == NUM_ENVS
    assert float(metrics.episodes.mean_length) == EPISODE_STEPS
    assert int(state.iterations) == 2
    assert workflow.timesteps_per_iteration == LENGTH * NUM_ENVS


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match=r"64 transitions cannot be cut into num_minibatches=3 equal parts"):
        small("ppo", num_minibatches=3)


def test_a_trajectory_has_every_environment_on_every_step() -> None:
    workflow = small("ppo", "Pendulum-v1")
    trajectory, state = jax.jit(lambda w, s: w.collect(s))(workflow, workflow.init(0))
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(trajectory)} == {(LENGTH, NUM_ENVS)}
    np.testing.assert_array_equal(trajectory.next_obs[:-1], trajectory.obs[1:])
    np.testing.assert_array_equal(state.env_state.obs, trajectory.next_obs[-1])

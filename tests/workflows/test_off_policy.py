"""The off-policy family: what is stored, when it is learned from."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.small_workflows import EPISODE_STEPS, NUM_ENVS, assert_identical, small


def test_warming_up_acts_at_random_and_learns_nothing() -> None:
    workflow = small("sac", "Pendulum-v1", learning_starts=3 * NUM_ENVS)
    fresh = state = workflow.init(0)
    for _ in range(2):
        metrics, state = workflow.step(state)
        assert_identical(state.agent_state, fresh.agent_state)
        assert float(metrics.critic_loss) == 0.0
    actions = np.asarray(state.replay_state.data.actions[:2])
    assert len(np.unique(actions)) == 2 * NUM_ENVS  # drawn one by one
    metrics, state = workflow.step(state)
    assert float(metrics.critic_loss) > 0.0
    assert float(metrics.temperature) > 0.0


def test_the_number_of_updates_is_as_told() -> None:
    workflow = small("sac", learning_starts=0)
    _, state = workflow.step(workflow.init(0))
    counts = {int(x) for x in jax.tree.leaves(state.opt_state) if np.issubdtype(x.dtype, np.integer)}
    assert counts == {workflow.updates_per_iteration}


def test_the_true_successor_is_stored_where_an_episode_ended() -> None:
    workflow = small("sac", "Pendulum-v1")
    state = workflow.init(0)
    for _ in range(EPISODE_STEPS + 2):
        _, state = workflow.step(state)
    assert int(state.replay_state.size) == EPISODE_STEPS + 2
    stored = state.replay_state.data
    ended = EPISODE_STEPS - 1
    np.testing.assert_array_equal(stored.next_obs[:ended], stored.obs[1 : ended + 1])
    assert (np.asarray(stored.next_obs[ended]) != np.asarray(stored.obs[ended + 1])).any(axis=-1).all()
    assert not np.asarray(stored.extras.termination).any()  # Pendulum is only ever stopped by its clock


def test_the_oldest_make_room() -> None:
    workflow = small("sac", replay_capacity=2 * NUM_ENVS)
    state = workflow.init(0)
    for _ in range(3):
        _, state = workflow.step(state)
    assert (int(state.replay_state.size), int(state.replay_state.cursor)) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replay_capacity": 7}, "replay_capacity=7 is less than one iteration collects"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"updates_per_iteration": -1}, "updates_per_iteration must be"),
        ({"batchsize": 3}, "did you mean 'batch_size'"),
        ({"critic_optimizer": {"lerning_rate": 1.0}}, "did you mean 'learning_rate'"),
        ({"agent": {"temprature": 1.0}}, "did you mean 'temperature'"),
        ({"agent": {"network": {"hiden_sizes": [8]}}}, "Did you mean 'hidden_sizes'"),
    ],
)
def test_nonsense_is_refused_in_words(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small("sac", **changes)

"""The off-policy family: stored transitions and the schedule of updates."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.execution import programs
from evorl.ops import loops
from evorl.ops.sum_tree import get_weights
from evorl.runs.recorder import Recorder
from evorl.types import State
from tests.support.errors import raises_naming
from tests.support.small_workflows import EPISODE_STEPS, NUM_ENVS, assert_identical, small


def test_warming_up_acts_at_random_and_learns_nothing() -> None:
    workflow = small("sac", "Pendulum-v1", learning_starts=3 * NUM_ENVS)
    fresh = state = workflow.init(0)
    for _ in range(2):
        metrics, state = workflow.step(state)
        assert_identical(state.agent_state, fresh.agent_state)
        assert float(metrics.critic_loss) == 0.0
    actions = np.asarray(state.replay_state.data.actions[:2])
    assert len(np.unique(actions)) == 2 * NUM_ENVS  # sampled separately
    agent_state = fresh.agent_state.replace(params=jax.tree.map(lambda x: x + 0.5, fresh.agent_state.params))
    _, other = workflow.step(fresh.replace(agent_state=agent_state))
    np.testing.assert_array_equal(other.replay_state.data.actions[:1], actions[:1])  # another policy does not show
    metrics, state = workflow.step(state)
    assert float(metrics.critic_loss) > 0.0
    assert float(metrics.temperature) > 0.0


def test_batches_follow_from_the_key_of_the_state() -> None:
    """DQN without noise uses keys of an update for draws only: another key gives other batches and parameters."""
    workflow = small("dqn", learning_starts=0, updates_per_iteration=1)
    state = workflow.init(0)
    for _ in range(4):
        _, state = workflow.step(state)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    update = jax.jit(lambda w, s, batch: w.update(s, batch)[1].agent_state.params.online)
    params, again, other = (
        jax.tree.leaves(update(workflow, state.replace(key=jax.random.key(seed)), trajectory)) for seed in (1, 1, 2)
    )
    assert_identical(again, params)
    assert any((x != y).any() for x, y in zip(params, other, strict=True))


def test_statistics_count_every_step_once() -> None:
    workflow = small("sac", "Pendulum-v1", agent={"network": {"torso": [8]}, "normalize_obs": True})
    state = workflow.init(0)
    for _ in range(3):
        _, state = workflow.step(state)
    statistics, obs = state.agent_state.obs_preprocessor_state, np.asarray(state.replay_state.data.obs[:3])
    assert float(statistics.count) == 3 * NUM_ENVS
    np.testing.assert_allclose(statistics.mean, obs.mean(axis=(0, 1)), rtol=1e-4, atol=1e-5)


def test_the_number_of_updates_is_as_told() -> None:
    workflow = small("sac", learning_starts=0)
    _, state = workflow.step(workflow.init(0))
    counts = {int(x) for x in jax.tree.leaves(state.opt_state) if np.issubdtype(x.dtype, np.integer)}
    assert counts == {workflow.updates_per_iteration}


@pytest.mark.parametrize("ratio", [0.5, 2, 1.5])
def test_a_known_number_of_turns_does_not_show(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after the start of the learning, the loop of accelerators does the same as that of CPUs."""

    def states() -> list[State]:
        jax.clear_caches()
        workflow = small("sac", "Pendulum-v1", learning_starts=3 * NUM_ENVS, updates_per_iteration=ratio)
        found = [workflow.init(0)]
        for _ in range(5):
            found.append(workflow.step(found[-1])[1])
        return found

    expected = states()
    monkeypatch.setattr(loops, "on_cpu", lambda: False)
    assert_identical(states(), expected)
    jax.clear_caches()


def _num_updates(state: State) -> int:
    counts = {int(x) for x in jax.tree.leaves(state.opt_state) if np.issubdtype(x.dtype, np.integer)}
    assert len(counts) == 1
    return counts.pop()


@pytest.mark.parametrize(("ratio", "expected"), [(0.25, [0, 0, 0, 1, 1, 1, 1, 2]), (1.5, [1, 3, 4, 6, 7, 9, 10, 12])])
def test_updates_may_be_a_fraction(ratio: float, expected: list[int]) -> None:
    workflow = small("sac", learning_starts=0, updates_per_iteration=ratio)
    state = workflow.init(0)
    made = []
    for _ in expected:
        _, state = workflow.step(state)
        made.append(_num_updates(state))
    assert made == expected


@pytest.mark.parametrize(("ratio", "updates"), [(0.25, [0.0, 0.25, 0.25]), (1.5, [0.0, 0.75, 1.5])])
def test_rows_have_means_over_updates(ratio: float, updates: list[float]) -> None:
    """The fixed temperature is the same in every row with an update; a row before the first update has zeros."""
    agent = {"network": {"torso": [8]}, "adaptive_temperature": False, "temperature": 0.5}
    changes = {"learning_starts": 7 * NUM_ENVS, "updates_per_iteration": ratio, "log_interval": 4 * NUM_ENVS}
    rows: list[dict[str, float | int]] = []
    recorder = Recorder()
    recorder.write = rows.append
    workflow = small("sac", "Pendulum-v1", agent=agent, total_timesteps=12 * NUM_ENVS, **changes)
    workflow.replace(checkpoint_interval=0.0).learn(key=0, recorder=recorder)
    assert [row["train/updates"] for row in rows] == updates
    assert [row["train/temperature"] for row in rows] == pytest.approx([0.5 if number else 0.0 for number in updates])
    assert all((row["train/q_value"] != 0) == (row["train/updates"] > 0) for row in rows)


def test_priorities_follow_the_errors_of_what_was_learned_from() -> None:
    """New transitions get the maximum priority, updated ones their error; others keep theirs."""
    workflow = small("sac", "Pendulum-v1", prioritized=True, learning_starts=2 * NUM_ENVS, updates_per_iteration=1)
    state = workflow.init(0)
    _, state = workflow.step(state)
    stored = get_weights(state.replay_state.priorities, np.arange(NUM_ENVS))
    np.testing.assert_array_equal(stored, 1.0)
    _, state = workflow.step(state)
    stored = np.asarray(get_weights(state.replay_state.priorities, np.arange(2 * NUM_ENVS)))
    changed = stored != 1.0
    assert 1 <= changed.sum() <= workflow.batch_size
    assert float(state.replay_state.greatest) == max(1.0, stored.max())
    np.testing.assert_allclose(state.replay_state.priorities.total, stored.sum(), rtol=1e-6)


def test_learning_from_transitions_over_several_steps() -> None:
    """3-step rewards and discounts of the whole buffer equal a loop, shorter at the end of the stored part."""
    workflow = small("sac", "Pendulum-v1", n_step=3)
    state = workflow.init(0)
    for _ in range(5):
        _, state = workflow.step(state)
    batches, rows, envs = workflow.draw_batches(state, jax.random.key(0), workflow.progress(state))
    rewards = np.asarray(state.replay_state.data.rewards)
    assert batches.rewards.shape == (workflow.most_updates, workflow.batch_size)
    for reward, discount, row, env in zip(
        *(np.ravel(x) for x in (batches.rewards, batches.extras.discounts, rows, envs)), strict=True
    ):
        steps = min(3, 5 - row)
        expected = sum(workflow.discount**k * rewards[row + k, env] for k in range(steps))
        np.testing.assert_allclose(reward, expected, rtol=1e-5)
        np.testing.assert_allclose(discount, workflow.discount**steps, rtol=1e-5)
    np.testing.assert_array_equal(batches.extras.weights, 1.0)


def test_the_true_successor_is_stored_where_an_episode_ended() -> None:
    workflow = small("sac", "Pendulum-v1")
    state = workflow.init(0)
    # The tests' older emitters round an observation and its copy differently; the default emitters do not.
    step = programs.step_program.lower(workflow, state).compile(
        programs._known_option("xla_cpu_use_fusion_emitters", True)
    )
    for _ in range(EPISODE_STEPS + 2):
        _, state = step(workflow, state)
    assert int(state.replay_state.size) == EPISODE_STEPS + 2
    stored = state.replay_state.data
    ended = EPISODE_STEPS - 1
    np.testing.assert_array_equal(stored.next_obs[:ended], stored.obs[1 : ended + 1])
    assert (np.asarray(stored.next_obs[ended]) != np.asarray(stored.obs[ended + 1])).any(axis=-1).all()
    assert not np.asarray(stored.extras.termination).any()  # Pendulum ends only by its time limit


def test_the_oldest_make_room() -> None:
    workflow = small("sac", replay_capacity=2 * NUM_ENVS)
    state = workflow.init(0)
    for _ in range(3):
        _, state = workflow.step(state)
    assert (int(state.replay_state.size), int(state.replay_state.cursor)) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"replay_capacity": 7}, ("replay_capacity=7", "one iteration")),
        ({"batch_size": 0}, ("batch_size", "got 0")),
        ({"n_step": 17}, ("n_step=17", "16 steps", "replay_capacity=128")),
        ({"updates_per_iteration": -1}, ("updates_per_iteration", "got -1")),
        ({"updates_per_iteration": 4e-5}, ("updates_per_iteration", "at least 0.0001", "got 4e-05")),  # rounded to 0
        ({"batchsize": 3}, ("'batchsize'", "'batch_size'")),
        ({"critic_optimizer": {"lerning_rate": 1.0}}, ("'lerning_rate'", "'learning_rate'")),
        ({"agent": {"temprature": 1.0}}, ("'temprature'", "'temperature'")),
        ({"agent": {"network": {"torsos": [8]}}}, ("'torsos'", "'torso'")),
    ],
)
def test_nonsense_is_refused_in_words(changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("sac", **changes)


def test_sampled_rewards_are_scaled_by_the_steps_in_their_order() -> None:
    """Learning with ``reward_bound`` equals learning from a buffer whose rewards were divided by today's scale."""
    workflow = small("sac", "Pendulum-v1", reward_bound=5.0, learning_starts=1e6)
    state = workflow.init(0)
    for _ in range(EPISODE_STEPS + 3):  # episodes end
        _, state = workflow.step(state)
    data = state.replay_state.data
    rewards, dones = (np.asarray(x)[: EPISODE_STEPS + 3] for x in (data.rewards, data.dones))
    assert dones.any()
    sums, seen = np.zeros(NUM_ENVS), []
    for reward, done in zip(rewards, dones, strict=True):
        sums = workflow.discount * sums + reward
        seen.append(sums)
        sums = np.where(done, 0.0, sums)
    divisor = max(np.std(seen), np.abs(seen).max() / 5.0)
    np.testing.assert_allclose(state.reward_scale.greatest, np.abs(seen).max(), rtol=1e-5)
    plain = small("sac", "Pendulum-v1", learning_starts=1e6)
    divided = data.replace(rewards=data.rewards / np.float32(divisor))
    arguments = ((jax.random.key(1), jax.random.key(2)), 2, 0.0)
    scaled, _ = jax.jit(workflow.learn_repeatedly)(state, *arguments)
    stored = state.replace(replay_state=state.replay_state.replace(data=divided))
    expected, _ = jax.jit(plain.learn_repeatedly)(stored, *arguments)
    np.testing.assert_allclose(scaled.critic_loss, expected.critic_loss, rtol=1e-4)
    unscaled, _ = jax.jit(plain.learn_repeatedly)(state, *arguments)
    assert float(unscaled.critic_loss) > 2.0 * float(scaled.critic_loss)

"""Transitions relabeled with goals of their episodes equal a loop over the recorded data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box
from evorl.envs.goals.task import GoalTask
from evorl.replay_buffers.episode import EpisodeReplayBuffer
from evorl.replay_buffers.hindsight import take_hindsight
from evorl.replay_buffers.slots import SlotReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.whole_programs import Whole

NUM_ENVS, ROWS, DISCOUNT = 3, 16, 0.9
BUFFER = EpisodeReplayBuffer(capacity=ROWS * NUM_ENVS, num_envs=NUM_ENVS, only_complete=False)
relabeled = jax.jit(take_hindsight, static_argnames=("num_envs", "num_steps", "task", "strategy"))
SLOTS = SlotReplayBuffer(capacity=4 * 41 * NUM_ENVS, num_envs=NUM_ENVS, episode_steps=41)


def _reward(achieved: jax.Array, desired: jax.Array, action: jax.Array, observation: jax.Array) -> jax.Array:
    """Return a reward that depends on all arguments."""
    return 0.1 * (desired[0] - achieved[0]) + 0.01 * action[0] + 0.001 * observation[0]


def _is_equal(achieved: jax.Array, desired: jax.Array) -> jax.Array:
    return jnp.all(achieved == desired)


TASK = GoalTask(Box(-1e6, 1e6, (1,)), _reward, _is_equal)
ENDING_TASK = GoalTask(Box(-1e6, 1e6, (1,)), _reward, _is_equal, terminate_on_success=True)


def _history(length: int, task: GoalTask, seed: int = 0) -> SampleBatch:
    """Return steps with achieved goals ``1000 env + t + 1``; episodes end at random, some by termination.

    Some desired goals are achieved, which ends the episode if the task requires it.
    """
    rng = np.random.default_rng(seed)
    t, env = np.meshgrid(np.arange(length), np.arange(NUM_ENVS), indexing="ij")
    achieved = (1000 * env + t + 1).astype(np.float32)[..., None]
    desired = np.where(rng.random((length, NUM_ENVS)) < 0.2, achieved[..., 0], -1.0).astype(np.float32)[..., None]
    is_success = (achieved == desired)[..., 0]
    own_end, own_termination = rng.random((2, length, NUM_ENVS)) < np.array([0.15, 0.1])[:, None, None]
    termination = own_termination | (is_success & task.terminate_on_success)
    return SampleBatch(
        obs=PyTreeDict(observation=achieved - 1, achieved_goal=achieved - 1, desired_goal=desired),
        actions=rng.normal(size=(length, NUM_ENVS, 1)).astype(np.float32),
        rewards=np.full((length, NUM_ENVS), np.nan, np.float32),  # rewards of the original goal are unused
        next_obs=PyTreeDict(observation=achieved, achieved_goal=achieved, desired_goal=desired),
        dones=termination | own_end,
        extras=PyTreeDict(termination=termination),
    )


def _stored(history: SampleBatch) -> Any:
    return _added(BUFFER, Whole(BUFFER).init(_first(history)), history)


def _first(history: SampleBatch) -> SampleBatch:
    return jax.tree.map(lambda x: x[0, 0], history)


def _added(buffer: UniformReplayBuffer, state: Any, history: SampleBatch) -> Any:
    for start in range(0, len(history), 3):
        state = Whole(buffer).add(state, history[start : start + 3])
    return state


def _drawn(
    state: Any,
    num: int,
    task: GoalTask,
    strategy: Any,
    num_steps: int = 1,
    ratio: float = 4.0,
    buffer: UniformReplayBuffer = BUFFER,
) -> Any:
    draw_key, goal_key = jax.random.split(jax.random.key(5))
    rows, envs = Whole(buffer).draw_indices(state, draw_key, num)
    batch = relabeled(
        state,
        rows,
        envs,
        goal_key,
        num_envs=NUM_ENVS,
        num_steps=num_steps,
        discount=DISCOUNT,
        task=task,
        strategy=strategy,
        ratio=ratio,
    )
    return jax.tree.map(np.asarray, (rows, envs, batch))


def _episode(history: SampleBatch, t: int, env: int) -> tuple[int, int]:
    """Return the first and last stored step of the episode with step ``t``."""
    ends = np.flatnonzero(np.asarray(history.dones[:, env]))
    return int(max([-1, *ends[ends < t]]) + 1), int(min([len(history) - 1, *ends[ends >= t]]))


def _may_have(history: SampleBatch, t: int, env: int, strategy: str) -> set[float]:
    """Return the goals with which step ``t`` may be relabeled."""
    first, last = _episode(history, t, env)
    steps = {"future": range(t, last + 1), "final": [last], "episode": range(first, last + 1), "none": []}[strategy]
    return {float(history.next_obs.achieved_goal[k, env, 0]) for k in steps}


def _worth(history: SampleBatch, t: int, env: int, goal: float, task: GoalTask, num_steps: int) -> tuple:
    """Return reward, discount, number of rewards and last observation of the transition from step ``t``
    under ``goal``.
    """
    total, weight, k = 0.0, 1.0, t
    while True:
        achieved, desired = float(history.next_obs.achieved_goal[k, env, 0]), float(history.obs.desired_goal[k, env, 0])
        total += weight * (0.1 * (goal - achieved) + 0.01 * float(history.actions[k, env, 0]) + 0.001 * achieved)
        weight *= DISCOUNT
        by_own_success = task.terminate_on_success and achieved == desired
        terminates = bool(history.extras.termination[k, env]) and not by_own_success
        terminates |= task.terminate_on_success and achieved == goal
        is_last = terminates or bool(history.dones[k, env]) or k + 1 == len(history) or k + 1 - t == num_steps
        if is_last:
            return total, 0.0 if terminates else weight, k + 1 - t, achieved
        k += 1


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("task", [TASK, ENDING_TASK], ids=["goes on", "ends"])
@pytest.mark.parametrize("strategy", ["future", "final", "episode", "none"])
@pytest.mark.parametrize("length", [7, 41], ids=["part of the ring", "around the ring"])
def test_it_is_what_a_loop_finds(length: int, strategy: str, task: GoalTask, num_steps: int) -> None:
    history = _history(length, task)
    rows, envs, batch = _drawn(_stored(history), 300, task, strategy, num_steps)
    oldest = max(0, length - ROWS)
    times = oldest + (rows - oldest) % ROWS
    assert all(_episode(history, t, env)[0] >= oldest for t, env in zip(times, envs, strict=True))
    _check(history, times, envs, batch, task, strategy, num_steps)


@pytest.mark.parametrize(("strategy", "num_steps"), [("future", 3), ("final", 1), ("episode", 1)])
def test_episodes_in_slots_are_relabeled_as_well(strategy: str, num_steps: int) -> None:
    history = _history(41, ENDING_TASK)
    state = _added(SLOTS, Whole(SLOTS).init(_first(history), jax.random.key(1)), history)
    assert state.size.max() > 1
    assert int(Whole(SLOTS).num_transitions(state)) < history.dones.size  # some were overwritten
    rows, slots, batch = _drawn(state, 300, ENDING_TASK, strategy, num_steps, buffer=SLOTS)
    times = batch.obs.observation[:, 0].astype(int) % 1000
    envs = slots // SLOTS.slots_per_env
    assert [_episode(history, t, env)[0] for t, env in zip(times, envs, strict=True)] == (times - rows).tolist()
    _check(history, times, envs, batch, ENDING_TASK, strategy, num_steps)


def _check(
    history: SampleBatch, times: Any, envs: Any, batch: Any, task: GoalTask, strategy: str, num_steps: int
) -> None:
    """Assert that a batch equals a loop over the sampled steps."""
    for i, (t, env) in enumerate(zip(times.tolist(), envs.tolist(), strict=True)):
        goal = float(batch.obs.desired_goal[i, 0])
        if batch.extras.is_relabeled[i]:
            assert goal in _may_have(history, t, env, strategy)
        else:
            assert goal == float(history.obs.desired_goal[t, env, 0])
        reward, discount, num_rewards, last = _worth(history, t, env, goal, task, num_steps)
        np.testing.assert_allclose(batch.rewards[i], reward, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(batch.extras.discounts[i], discount, rtol=1e-5)
        assert batch.extras.num_rewards[i] == num_rewards
        assert batch.next_obs.desired_goal[i, 0] == goal
        assert batch.next_obs.observation[i, 0] == last
        assert batch.obs.observation[i, 0] == float(history.obs.observation[t, env, 0])
    assert batch.extras.is_relabeled.any() == (strategy != "none")
    assert not batch.extras.is_relabeled.all()


@pytest.mark.parametrize("ratio", [0.0, 1.0, 4.0])
def test_the_share_of_other_goals_follows_the_ratio(ratio: float) -> None:
    batch = _drawn(_stored(_history(41, TASK)), 100_000, TASK, "future", ratio=ratio)[2]
    assert abs(batch.extras.is_relabeled.mean() - (1.0 - 1.0 / (1.0 + ratio))) < 0.01


@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_the_steps_whose_goals_are_taken_are_equally_likely(strategy: str) -> None:
    """Goals are chosen uniformly from the steps that the strategy allows (chi-squared test)."""
    history = _history(10, TASK)
    history = history.replace(dones=np.broadcast_to(np.arange(10)[:, None] == 9, (10, NUM_ENVS)))
    state = _stored(history)
    num = 100_000
    rows, envs = np.full(num, 4, np.int32), np.zeros(num, np.int32)
    batch = relabeled(
        state,
        rows,
        envs,
        jax.random.key(0),
        num_envs=NUM_ENVS,
        num_steps=1,
        discount=DISCOUNT,
        task=TASK,
        strategy=strategy,
        ratio=4.0,
    )
    goals = np.asarray(batch.obs.desired_goal)[np.asarray(batch.extras.is_relabeled), 0]
    first = 4 if strategy == "future" else 0
    counts = np.array([(goals == t + 1).sum() for t in range(first, 10)])
    assert counts.sum() == len(goals)
    expected = len(goals) / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # nine degrees of freedom, p = 0.001


def test_what_is_stored_stays() -> None:
    state = _stored(_history(41, TASK))
    before = jax.tree.map(np.array, state)
    _drawn(state, 300, TASK, "future")
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, state))


def test_the_same_key_gives_the_same_goals() -> None:
    state = _stored(_history(41, TASK))
    first, again = (_drawn(state, 300, TASK, "future")[2].obs.desired_goal for _ in range(2))
    np.testing.assert_array_equal(first, again)

"""Episodes in slots equal loops over the added data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.replay_buffers.ring import ReplayState, take_n_step
from evorl.replay_buffers.slots import SlotReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.replay_buffer import DRAWS, LONGER_THAN_THE_RING, NUM_ENVS, ROWS, ReplayBufferContract
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical
from tests.support.whole_programs import Whole, whole

STEPS = 5  # capacity of a slot
ONCE_IN_A_THOUSAND = {1: 10.8, 2: 13.8, 8: 26.1}  # chi-squared, by degrees of freedom


class TestContract(ReplayBufferContract):
    """The contract except for eviction: slots have four steps, like the episodes."""

    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return SlotReplayBuffer(capacity=capacity, num_envs=num_envs, episode_steps=4)

    @staticmethod
    def init_state(buffer: Any, sample_spec: Any) -> ReplayState:
        return Whole(buffer).init(sample_spec, jax.random.key(7))

    def check_same(self, actual: ReplayState, expected: ReplayState) -> None:
        assert_identical(_only_stored(actual), _only_stored(expected))

    def test_the_latest_are_kept(self) -> None:
        """Running episodes and their predecessors are kept completely."""
        for num_rows in (3, 9, LONGER_THAN_THE_RING):
            state = self.stored(num_rows)
            assert int(self.whole.num_choices(state)) == int(self.whole.num_transitions(state))
            assert int(self.whole.num_transitions(state)) <= min(num_rows, ROWS) * NUM_ENVS
        steps = (np.asarray(state.data.obs) // 100).T.reshape(NUM_ENVS, -1)  # per environment
        sizes = np.asarray(state.size).reshape(NUM_ENVS, -1)
        assert all(sorted(of_env) == [2, 4, 4] for of_env in sizes.tolist())
        assert all({24, 25, 26, 27, 28, 29} <= set(of_env) for of_env in steps)

    def test_what_is_drawn_is_stored_and_belongs_together(self) -> None:
        for num_rows in (9, LONGER_THAN_THE_RING):
            sample = self.whole.sample(self.stored(num_rows), jax.random.key(0), DRAWS)
            sample = jax.tree.map(np.asarray, sample)
            np.testing.assert_array_equal(sample.rewards, -sample.obs)
            np.testing.assert_array_equal(sample.dones, sample.obs // 100 % 4 == 3)
            assert sample.obs.max() < 100 * num_rows
            assert set((sample.obs % 100).tolist()) == set(range(NUM_ENVS))


def _only_stored(state: Any) -> Any:
    """Replace leftovers of longer overwritten episodes by zeros."""
    steps, size = np.arange(state.data.obs.shape[0])[:, None], np.asarray(state.size)
    return state.replace(data=jax.tree.map(lambda x: np.where(steps < size, x, 0), state.data))


def _history(length: int, num_envs: int, ends: Any) -> SampleBatch:
    """Return steps ``1000 b + t``, with episode ends where ``ends(t, b)`` is True."""
    t, b = np.meshgrid(np.arange(length), np.arange(num_envs), indexing="ij")
    number = (1000 * b + t).astype(np.float32)
    dones = np.broadcast_to(ends(t, b), t.shape)
    return SampleBatch(
        obs=number,
        actions=number,
        rewards=np.sin(number),
        next_obs=number + 0.5,
        dones=dones,
        extras=PyTreeDict(termination=dones & (t % 2 == 0)),
    )


def _empty(buffer: SlotReplayBuffer, history: SampleBatch, seed: int = 0) -> Any:
    return Whole(buffer).init(jax.tree.map(lambda x: x[0, 0], history), jax.random.key(seed))


def _filled(buffer: SlotReplayBuffer, history: SampleBatch, rows_at_once: int, seed: int = 0) -> Any:
    state = _empty(buffer, history, seed)
    for start in range(0, len(history), rows_at_once):
        state = Whole(buffer).add(state, history[start : start + rows_at_once])
    return state


def _contents(state: Any) -> list[list[int]]:
    """Return the step numbers in each slot."""
    return [
        np.asarray(state.data.obs)[:size, i].astype(int).tolist() for i, size in enumerate(np.asarray(state.size)[0])
    ]


@pytest.mark.parametrize(("seed", "share"), [(0, 0.3), (1, 0.05), (2, 0.8), (3, 1.0), (4, 0.0)])
def test_slots_are_those_of_a_loop(seed: int, share: float) -> None:
    """A new episode opens another slot, an empty one if available; other slots are unchanged."""
    buffer = SlotReplayBuffer(capacity=8 * STEPS, num_envs=2, episode_steps=STEPS)
    rng = np.random.default_rng(seed)
    history = _history(60, 2, lambda t, _: rng.random(t.shape) < share)
    mask = rng.random(len(history)) < 0.8
    state, add = _empty(buffer, history, seed), Whole(buffer).add
    expected: list[list[int]] = [[] for _ in range(8)]
    starts, opened = [True, True], [-1, -1]
    for t in range(len(history)):
        state = add(state, history[t : t + 1], mask[t : t + 1])
        for env in range(2):
            if not mask[t]:
                continue
            slot = 4 * env + int(state.cursor[0, env])
            if starts[env]:
                empty = [i for i in range(4 * env, 4 * env + 4) if not expected[i]]
                assert slot == empty[0] if empty else slot != opened[env]
                expected[slot] = []
            else:
                assert slot == opened[env]  # the running episode stays in its slot
            opened[env] = slot
            expected[slot].append(1000 * env + t)
            starts[env] = bool(history.dones[t, env]) or len(expected[slot]) == STEPS
        assert _contents(state) == expected
    assert int(Whole(buffer).num_transitions(state)) == sum(map(len, expected))
    # The same in few large pieces, which open slots repeatedly.
    at_once = _empty(buffer, history, seed)
    for start in (0, 20, 40):
        at_once = add(at_once, history[start : start + 20], mask[start : start + 20])
    assert_identical(_only_stored(at_once), _only_stored(state))


def test_episodes_of_three_and_of_five_steps() -> None:
    buffer = SlotReplayBuffer(capacity=8 * STEPS, num_envs=2, episode_steps=STEPS)
    history = _history(60, 2, lambda t, b: np.where(b == 0, t % 3 == 2, t % 5 == 4))
    state = _filled(buffer, history, 15)
    assert state.size.tolist() == [[3, 3, 3, 3, 5, 5, 5, 5]]
    for env, length in enumerate((3, 5)):
        for steps in _contents(state)[4 * env : 4 * env + 4]:
            first = steps[0] - 1000 * env
            assert first % length == 0
            assert steps == [1000 * env + first + i for i in range(length)]
    half = Whole(buffer).add(state, history[:2])  # both are running, with two steps each
    assert half.running.tolist() == [[2, 2]]
    span = Whole(half).span(np.array([1]), np.asarray(half.cursor)[0, :1], 2)
    assert [int(x[0]) for x in (span.step, span.start, span.end, span.length)] == [1, 0, 1, 2]


def test_nothing_is_lost_while_a_slot_is_empty() -> None:
    buffer = SlotReplayBuffer(capacity=8 * STEPS, num_envs=2, episode_steps=STEPS)
    history = _history(12, 2, lambda t, _: t % 3 == 2)
    state = _filled(buffer, history, 4)
    stored = sorted(step for steps in _contents(state) for step in steps)
    assert stored == sorted(np.asarray(history.obs).astype(int).ravel().tolist())
    again = Whole(buffer).add(state, history[:1])  # now every slot is in use
    assert int(Whole(buffer).num_transitions(again)) == len(stored) - 2 * 3 + 2 * 1


def test_an_episode_longer_than_a_slot_goes_on_in_another() -> None:
    buffer = SlotReplayBuffer(capacity=4 * STEPS, episode_steps=STEPS)
    state = _filled(buffer, _history(13, 1, lambda t, _: t == 12), 13)
    assert _contents(state) == [[*range(5)], [*range(5, 10)], [10, 11, 12], []]


def test_what_is_overwritten_is_equally_likely() -> None:
    """Each slot except for the last one is overwritten with equal probability, independently per environment."""
    num_envs = 4000
    buffer = SlotReplayBuffer(capacity=4 * num_envs, num_envs=num_envs, episode_steps=1)
    state = _filled(buffer, _history(4, num_envs, lambda *_: True), 4)
    shifts = []
    for _ in range(2):
        before = state
        state = Whole(buffer).add(before, _history(1, num_envs, lambda *_: True))
        shifts.append((np.asarray(state.cursor) - np.asarray(before.cursor))[0] % 4)
    for counts, cells in ((np.bincount(shifts[0] - 1), 3), (np.bincount(3 * shifts[0] + shifts[1] - 4), 9)):
        assert len(counts) == cells
        expected = num_envs / cells
        assert ((counts - expected) ** 2 / expected).sum() < ONCE_IN_A_THOUSAND[cells - 1]


def test_episodes_are_drawn_in_proportion_to_their_lengths() -> None:
    """Episodes are sampled in proportion to their lengths of one and nine, and each step equally often."""
    buffer, draws = SlotReplayBuffer(capacity=27, episode_steps=9), 100_000
    state = _filled(buffer, _history(10, 1, lambda t, _: (t == 0) | (t == 9)), 10)
    assert state.size.tolist() == [[1, 9, 0]]
    rows, slots = (np.asarray(x) for x in Whole(buffer).draw_indices(state, jax.random.key(3), draws))
    counts, expected = np.bincount(slots), draws * np.array([0.1, 0.9])
    assert ((counts - expected) ** 2 / expected).sum() < ONCE_IN_A_THOUSAND[1]
    steps = np.bincount(rows[slots == 1])
    assert len(steps) == 9
    assert ((steps - steps.mean()) ** 2 / steps.mean()).sum() < ONCE_IN_A_THOUSAND[8]


@pytest.mark.parametrize("num_steps", [1, 3, 2 * STEPS])
def test_transitions_over_several_steps_are_those_of_a_loop(num_steps: int) -> None:
    """n-step transitions end with the stored part of their episode, independent of earlier contents of the slot."""
    buffer = SlotReplayBuffer(capacity=8 * STEPS, num_envs=2, episode_steps=STEPS)
    rng = np.random.default_rng(5)
    history = _history(60, 2, lambda t, _: rng.random(t.shape) < 0.3)
    state = _filled(buffer, history, 15)
    places = [(row, slot) for slot, size in enumerate(np.asarray(state.size)[0]) for row in range(size)]
    rows, slots = np.array(places, np.int32).T
    batch = jax.tree.map(np.asarray, whole(take_n_step)(state, rows, slots, 2, num_steps, 0.9))
    contents = _contents(state)
    for i, (row, slot) in enumerate(places):
        steps = contents[slot][row : row + num_steps]
        env, times = steps[0] // 1000, [step % 1000 for step in steps]
        assert batch.obs[i] == steps[0]
        assert batch.next_obs[i] == steps[-1] + 0.5
        assert batch.extras.num_rewards[i] == len(steps)
        reward = sum(0.9**k * float(history.rewards[t, env]) for k, t in enumerate(times))
        np.testing.assert_allclose(batch.rewards[i], reward, rtol=1e-5, atol=1e-6)
        ended = bool(history.extras.termination[times[-1], env])
        np.testing.assert_allclose(batch.extras.discounts[i], 0.0 if ended else 0.9 ** len(steps), rtol=1e-6)


def test_what_cannot_be_is_told() -> None:
    with raises_naming(ValueError, "T=10 steps", "39", "3 slots", "num_envs=2", "replay_capacity=40 or more"):
        SlotReplayBuffer(capacity=39, num_envs=2, episode_steps=10)
    with raises_naming(ValueError, "episode_steps", "got 0"):
        SlotReplayBuffer(capacity=39, episode_steps=0)
    with raises_naming(ValueError, "init", "key"):
        SlotReplayBuffer(capacity=40, episode_steps=10).init(jnp.zeros(()))


def test_a_cut_episode_leaves_its_slot() -> None:
    buffer = SlotReplayBuffer(capacity=4 * STEPS * 2, num_envs=2, episode_steps=STEPS)
    steps = SampleBatch(obs=np.arange(6.0).reshape(3, 2), dones=np.zeros((3, 2), np.bool_))
    state = Whole(buffer).init(jax.tree.map(lambda x: x[0, 0], steps), jax.random.key(0))
    state = Whole(buffer).add(Whole(buffer).add(state, steps).end_episodes(np.array([True, False])), steps[:1])
    assert np.asarray(state.size).reshape(2, -1)[:, :2].tolist() == [[3, 1], [4, 0]]

"""Steps of whole episodes equal loops over the added data."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.replay_buffers.episode import EpisodeReplayBuffer, EpisodeReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from tests.conformance.replay_buffer import ReplayBufferContract
from tests.support.whole_programs import Whole

NUM_ENVS, ROWS = 4, 12
COMPLETE = EpisodeReplayBuffer(capacity=ROWS * NUM_ENVS, num_envs=NUM_ENVS)
RUNNING_TOO = COMPLETE.replace(only_complete=False)


class TestContract(ReplayBufferContract):
    copied = frozenset({"pred"})  # one byte per step: ``dones`` are read where they are written

    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return EpisodeReplayBuffer(capacity=capacity, num_envs=num_envs)


def _history(length: int, ends: float = 0.3) -> SampleBatch:
    """Return steps ``100 t + b`` with random ends, except for the last environment, which never ends."""
    t, b = np.meshgrid(np.arange(length), np.arange(NUM_ENVS), indexing="ij")
    dones = (np.random.default_rng(1).random((length, NUM_ENVS)) < ends) & (b < NUM_ENVS - 1)
    return SampleBatch(obs=(100 * t + b).astype(np.float32), dones=dones)


def _stored(history: SampleBatch, buffer: EpisodeReplayBuffer = COMPLETE, rows_at_once: int = 3) -> EpisodeReplayState:
    state = Whole(buffer).init(jax.tree.map(lambda x: x[0, 0], history))
    for start in range(0, len(history), rows_at_once):
        state = Whole(buffer).add(state, history[start : start + rows_at_once])
    return state


def _expected(history: SampleBatch, only_complete: bool) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    """Return step, start, end (rows) and length of every ``(row, env)`` that can be sampled."""
    length, found = len(history), {}
    for env in range(NUM_ENVS):
        start = 0
        for t in range(length):
            last = length - 1 == t
            if not bool(history.dones[t, env]) and (only_complete or not last):
                continue
            if start >= length - ROWS:
                for k in range(start, t + 1):
                    found[k % ROWS, env] = (k - start, start % ROWS, t % ROWS, t + 1 - start)
            start = t + 1
    return found


def _span_of_each(state: EpisodeReplayState, places: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    rows, envs = (x.reshape(-1) for x in np.meshgrid(np.arange(ROWS), np.arange(NUM_ENVS), indexing="ij"))
    span = Whole(state).span(rows, envs, NUM_ENVS)  # for all positions: one program
    numbers = np.stack([span.step, span.start, span.end, span.length], axis=1).reshape(ROWS, NUM_ENVS, 4)
    return [tuple(numbers[place].tolist()) for place in places]


CASES = [
    (5, 0.3, 1),
    (12, 0.3, 5),
    (12, 0.0, 4),
    (17, 0.3, 3),
    (31, 0.3, 12),
    (40, 0.1, 7),
    (40, 1.0, 11),
    (61, 0.2, 1),
]


@pytest.mark.parametrize("buffer", [COMPLETE, RUNNING_TOO])
@pytest.mark.parametrize(("length", "ends", "rows_at_once"), CASES)
def test_episodes_are_those_that_were_added(
    length: int, ends: float, rows_at_once: int, buffer: EpisodeReplayBuffer
) -> None:
    history = _history(length, ends)
    state = _stored(history, buffer, rows_at_once)
    expected = _expected(history, buffer.only_complete)
    assert int(Whole(buffer).num_choices(state)) == len(expected)
    if not expected:
        return
    assert _span_of_each(state, list(expected)) == list(expected.values())
    rows, envs = Whole(buffer).draw_indices(state, jax.random.key(0), 2000)
    assert set(zip(rows.tolist(), envs.tolist(), strict=True)) == set(expected)


def test_the_cases_hold_episodes_that_are_cut_running_or_longer_than_the_ring() -> None:
    """The test cases contain truncated and running episodes, and ones longer than the ring."""
    numbers = [
        len(_expected(_history(length, ends), complete)) for length, ends, _ in CASES for complete in (True, False)
    ]
    assert 0 in numbers
    assert max(numbers) > ROWS
    assert not any(env == NUM_ENVS - 1 for _, env in _expected(_history(40, 0.1), only_complete=False))


@pytest.mark.parametrize("buffer", [COMPLETE, RUNNING_TOO])
def test_each_step_is_equally_likely(buffer: EpisodeReplayBuffer) -> None:
    """Each stored step is sampled with equal probability, so episodes in proportion to their length."""
    history, draws = _history(31), 20_000
    expected = _expected(history, buffer.only_complete)
    rows, envs = Whole(buffer).draw_indices(_stored(history, buffer), jax.random.key(1), draws)
    counts = dict.fromkeys(expected, 0)
    for place in zip(rows.tolist(), envs.tolist(), strict=True):
        counts[place] += 1
    mean = draws / len(counts)
    chi_square = sum((count - mean) ** 2 / mean for count in counts.values())
    degrees = len(counts) - 1
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)
    lengths = {(env, start): length for (_, env), (_, start, _, length) in expected.items()}
    assert len(set(lengths.values())) > 2
    for (env, start), length in lengths.items():
        count = sum(counts[place] for place, span in expected.items() if (place[1], span[1]) == (env, start))
        assert abs(count - mean * length) < 4 * np.sqrt(mean * length)


def test_another_step_of_the_same_episode() -> None:
    """A later step in the span of a sampled step belongs to the same episode."""
    state = _stored(_history(31))
    rows, envs = Whole(COMPLETE).draw_indices(state, jax.random.key(2), 2000)
    span = jax.tree.map(np.asarray, Whole(state).span(rows, envs, NUM_ENVS))
    later = np.random.default_rng(3).integers(span.step, span.length)
    later_span = Whole(state).span(np.asarray((span.start + later) % ROWS, np.int32), envs, NUM_ENVS)
    np.testing.assert_array_equal(later_span.start, span.start)
    np.testing.assert_array_equal(later_span.length, span.length)
    assert (later_span.step >= span.step).all()
    assert np.asarray(state.data.dones)[span.end, envs].all()


def test_episodes_that_were_cut_are_complete() -> None:
    """The steps equal a history that ended there, where the start is stored; an empty ring stays empty."""
    history = _history(21)
    mask = np.array([True, False, True, True])
    cut = history.replace(dones=history.dones.copy())
    cut.dones[14] |= mask
    state = _stored(history[:15]).end_episodes(mask)
    for start in range(15, 21, 3):
        state = Whole(COMPLETE).add(state, history[start : start + 3])
    expected = _stored(cut)
    places = list(_expected(cut, True))
    assert _span_of_each(state, places) == _span_of_each(expected, places)
    np.testing.assert_array_equal(state.lengths, expected.lengths)
    empty = Whole(COMPLETE).init(jax.tree.map(lambda x: x[0, 0], history))
    np.testing.assert_array_equal(empty.end_episodes(True).lengths, 0)

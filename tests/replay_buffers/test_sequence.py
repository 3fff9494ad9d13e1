"""Sequences of consecutive steps equal loops over the added data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.sum_tree import get_weights
from evorl.replay_buffers.sequence import PrioritizedSequenceReplayBuffer, SequenceReplayBuffer, take_sequences
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.conformance.replay_buffer import ReplayBufferContract
from tests.support.errors import raises_naming
from tests.support.whole_programs import Whole, whole

NUM_ENVS, ROWS, LENGTH, PERIOD = 4, 12, 5, 2
BUFFER = SequenceReplayBuffer(capacity=ROWS * NUM_ENVS, num_envs=NUM_ENVS, length=LENGTH, period=PERIOD)
PRIORITIZED = PrioritizedSequenceReplayBuffer(
    capacity=ROWS * NUM_ENVS, num_envs=NUM_ENVS, length=LENGTH, period=PERIOD, exponent=0.5
)
LENGTHS_OF_HISTORY = [3, 5, 9, 12, 17, 28]  # less than a sequence, one, some, a full ring, and a wrapped-around one


class TestContract(ReplayBufferContract):
    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return SequenceReplayBuffer(capacity=capacity, num_envs=num_envs, length=4, period=2)


class TestPrioritizedContract(ReplayBufferContract):
    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return PrioritizedSequenceReplayBuffer(capacity=capacity, num_envs=num_envs, length=4, period=2)


def _history(length: int) -> SampleBatch:
    """Return steps ``100 t + b`` with random ends and recurrent state ``[t, b]``."""
    t, b = np.meshgrid(np.arange(length), np.arange(NUM_ENVS), indexing="ij")
    return SampleBatch(
        obs=(100 * t + b).astype(np.float32),
        dones=np.random.default_rng(0).random((length, NUM_ENVS)) < 0.3,
        extras=PyTreeDict(
            recurrent_state=PyTreeDict(hidden=np.stack([t, b], axis=-1).astype(np.float32)),
            termination=t % 3 == 0,
        ),
    )


def _stored(history: SampleBatch, buffer: SequenceReplayBuffer = BUFFER) -> Any:
    state = Whole(buffer).init(jax.tree.map(lambda x: x[0, 0], history))
    for start in range(0, len(history), 3):
        state = Whole(buffer).add(state, history[start : start + 3])
    return state


def _legal_starts(length: int) -> set[tuple[int, int]]:
    """Return the steps of the history, and environments, from which a whole sequence is stored."""
    times = range(max(0, length - ROWS), length - LENGTH + 1)
    return {(t, env) for t in times if t % PERIOD == 0 for env in range(NUM_ENVS)}


def _step_of(row: int, length: int) -> int:
    """Return the step of the history that a row contains."""
    return next(t for t in range(length - 1, -1, -1) if t % ROWS == row)


@pytest.mark.parametrize("length", LENGTHS_OF_HISTORY)
def test_sequences_are_what_was_added(length: int) -> None:
    history = _history(length)
    oldest = max(0, length - ROWS)
    places = np.meshgrid(np.arange(oldest, length), np.arange(NUM_ENVS))
    times, envs = (np.resize(x, ROWS * NUM_ENVS) for x in places)  # repeated to the size of a full ring
    batch = whole(take_sequences)(_stored(history), times % ROWS, envs, NUM_ENVS, LENGTH)
    batch = jax.tree.map(np.asarray, batch)
    assert batch.obs.shape == (LENGTH, len(times))
    for i, (time, env) in enumerate(zip(times, envs, strict=True)):
        np.testing.assert_array_equal(batch.extras.recurrent_state.hidden[i], [time, env])
        for k in range(LENGTH):
            is_stored = time + k < length
            assert bool(batch.extras.mask[k, i]) == is_stored
            if is_stored:
                assert batch.obs[k, i] == history.obs[time + k, env]
                assert batch.extras.termination[k, i] == history.extras.termination[time + k, env]
                assert bool(batch.extras.starts[k, i]) == (k > 0 and bool(history.dones[time + k - 1, env]))


def test_memory_is_optional() -> None:
    history = _history(9)
    history = history.replace(extras=PyTreeDict(termination=history.extras.termination))
    batch = whole(take_sequences)(_stored(history), np.array([2]), np.array([1]), NUM_ENVS, 3)
    assert set(batch.extras) == {"termination", "mask", "starts"}


@pytest.mark.parametrize("length", LENGTHS_OF_HISTORY[1:])
def test_legal_starts_are_equally_likely(length: int) -> None:
    state, legal, draws = _stored(_history(length)), _legal_starts(length), 20_000
    assert int(Whole(BUFFER).num_choices(state)) == len(legal)
    rows, envs = Whole(BUFFER).draw_indices(state, jax.random.key(1), draws)
    counts = dict.fromkeys(legal, 0)
    for row, env in zip(rows.tolist(), envs.tolist(), strict=True):
        counts[_step_of(row, length), env] += 1
    assert counts.keys() == legal
    expected = draws / len(legal)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    degrees = len(legal) - 1
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("buffer", [BUFFER, PRIORITIZED])
def test_before_there_is_a_whole_one_the_oldest_step_is_drawn(buffer: SequenceReplayBuffer) -> None:
    state = _stored(_history(3), buffer)
    assert int(Whole(buffer).num_choices(state)) == 0
    rows, envs = Whole(buffer).draw_indices(state, jax.random.key(0), 20)
    assert not np.asarray(rows).any()
    mask = whole(take_sequences)(state, rows, envs, NUM_ENVS, LENGTH).extras.mask
    np.testing.assert_array_equal(mask, np.broadcast_to((np.arange(LENGTH) < 3)[:, None], mask.shape))


@pytest.mark.parametrize("rows_at_once", [1, 3, 5, 11, 12])
def test_only_whole_sequences_have_priorities(rows_at_once: int) -> None:
    """After every addition exactly the complete sequences have priorities, which they keep."""
    history = _history(40)
    state = Whole(PRIORITIZED).init(jax.tree.map(lambda x: x[0, 0], history))
    given = {}
    for end in range(rows_at_once, 41, rows_at_once):
        state = Whole(PRIORITIZED).add(state, history[end - rows_at_once : end])
        legal = _legal_starts(end)
        given = {start: given.get(start, float(state.greatest)) for start in legal}
        stored = np.asarray(whole(get_weights)(state.priorities, np.arange(ROWS * NUM_ENVS))).reshape(ROWS, NUM_ENVS)
        expected = np.zeros((ROWS, NUM_ENVS))
        for (time, env), priority in given.items():
            expected[time % ROWS, env] = priority
        np.testing.assert_allclose(stored, expected, rtol=1e-6)
        if legal:
            time, env = sorted(legal)[end % len(legal)]
            state = Whole(PRIORITIZED).set_priorities(
                state, np.array([time % ROWS]), np.array([env]), np.array([end], np.float32)
            )
            given[time, env] = end**0.5


def test_masked_rows_change_no_priority() -> None:
    state, more = _stored(_history(17), PRIORITIZED), _history(4)
    none = Whole(PRIORITIZED).add(state, more, np.zeros(4, bool))
    jax.tree.map(np.testing.assert_array_equal, none, state)
    some = Whole(PRIORITIZED).add(state, more, np.array([True, False, False, True]))
    both = Whole(PRIORITIZED).add(state, jax.tree.map(lambda x: x[np.array([0, 3])], more))
    jax.tree.map(np.testing.assert_array_equal, some, both)


def test_sequences_are_drawn_in_proportion_to_raised_priorities() -> None:
    state, draws = _stored(_history(17), PRIORITIZED), 40_000
    legal = sorted(_legal_starts(17))
    times, envs = (np.array(x) for x in zip(*legal, strict=True))
    errors = np.arange(len(legal), dtype=np.float32)
    state = Whole(PRIORITIZED).set_priorities(state, times % ROWS, envs, errors)
    rows, drawn_envs = Whole(PRIORITIZED).draw_indices(state, jax.random.key(0), draws)
    counts = np.zeros(len(legal))
    for row, env in zip(rows.tolist(), drawn_envs.tolist(), strict=True):
        counts[legal.index((_step_of(row, 17), env))] += 1
    shares = (np.asarray(errors) + 1e-6) ** 0.5
    expected = draws * shares / shares.sum()
    chi_square = (np.square(counts - expected) / expected)[1:].sum()
    degrees = len(legal) - 2
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)
    weights = Whole(PRIORITIZED).importance_weights(state, rows, drawn_envs, 1.0)
    np.testing.assert_allclose(
        weights, shares.sum() / len(legal) / shares[_indices(rows, drawn_envs, legal)], rtol=1e-4
    )


def _indices(rows: jax.Array, envs: jax.Array, legal: list[tuple[int, int]]) -> list[int]:
    return [legal.index((_step_of(row, 17), env)) for row, env in zip(rows.tolist(), envs.tolist(), strict=True)]


def test_rows_are_rounded_up_to_the_period() -> None:
    buffer = SequenceReplayBuffer(capacity=26, num_envs=2, length=4, period=5)
    assert buffer.num_rows == 15
    assert buffer.init({"x": jnp.zeros(3)}).data["x"].shape == (15, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"length": 13}, ("13 steps", "every 1 steps", "12 steps")),
        ({"length": 8, "period": 6}, ("8 steps", "every 6 steps", "12 steps")),
        ({"length": 0}, ("length=0",)),
        ({"period": 0}, ("period=0",)),
    ],
)
@pytest.mark.parametrize("cls", [SequenceReplayBuffer, PrioritizedSequenceReplayBuffer])
def test_impossible_sequences_are_refused(
    cls: type[SequenceReplayBuffer], arguments: dict, parts: tuple[str, ...]
) -> None:
    with raises_naming(ValueError, *parts):
        cls(capacity=48, num_envs=4, **arguments)

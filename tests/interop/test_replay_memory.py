from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.interop.replay_memory import ReplayMemory
from evorl.replay_buffers.episode import EpisodeReplayBuffer
from evorl.replay_buffers.latest import CombinedReplayBuffer
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer
from evorl.replay_buffers.recency import RecencyReplayBuffer
from evorl.replay_buffers.sequence import PrioritizedSequenceReplayBuffer, SequenceReplayBuffer
from evorl.replay_buffers.slots import SlotReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming

BUFFERS = [
    UniformReplayBuffer(capacity=10),
    CombinedReplayBuffer(capacity=10),
    RecencyReplayBuffer(capacity=10),
    PrioritizedReplayBuffer(capacity=10),
]


def _transitions(first: int, num: int) -> dict[str, Any]:
    number = np.arange(first, first + num)
    return {
        "obs": np.repeat(number[:, None], 5, axis=1).astype(np.float32),
        "actions": number.astype(np.int32),
        "dones": number % 4 == 3,
        "logp": -number.astype(np.float32),
    }


def _rows(first: int, num: int, num_envs: int) -> dict[str, Any]:
    """Return steps with number ``100 t + b`` for step t of environment b."""
    number = 100 * np.arange(first, first + num)[:, None] + np.arange(num_envs)
    return {"number": number.astype(np.int32), "dones": np.zeros(number.shape, bool)}


@pytest.mark.parametrize("buffer", BUFFERS, ids=lambda buffer: type(buffer).__name__)
def test_the_oldest_make_room_and_every_entry_comes_back(buffer: UniformReplayBuffer) -> None:
    memory = ReplayMemory(buffer)
    stored = []
    for first, num in ((0, 3), (3, 1), (4, 5), (9, 4)):
        stored += memory.store(_transitions(first, num)).tolist()
    assert stored == [i % 10 for i in range(13)]
    assert len(memory) == 10
    batch = memory.sample(200)
    assert batch.logp.shape == (200,)
    assert set(batch.actions.tolist()) == set(range(3, 13))
    np.testing.assert_array_equal(batch.logp, -batch.actions)
    np.testing.assert_array_equal(batch.obs, np.repeat(batch.actions[:, None], 5, axis=1))
    np.testing.assert_array_equal(batch.indices, batch.actions % 10)
    assert all(type(leaf) is np.ndarray and leaf.flags.writeable for leaf in batch.values())
    again = memory.take(batch.indices)
    np.testing.assert_array_equal(again.obs, batch.obs)


def test_nothing_is_drawn_from_nothing() -> None:
    memory = ReplayMemory(UniformReplayBuffer(capacity=4))
    assert memory.sample(2) is None
    assert (len(memory), memory.num_bytes) == (0, 0)
    with raises_naming(ValueError, "nothing is stored"):
        memory.take([0])


def test_memory_is_taken_once() -> None:
    memory = ReplayMemory(UniformReplayBuffer(capacity=1000))
    memory.store(_transitions(0, 1))
    assert memory.num_bytes == 1000 * (5 * 4 + 4 + 4 + 1 + 3)  # records are aligned to 4 bytes
    state = memory.state
    memory.store(_transitions(1, 1))
    assert state.data.obs[1, 0, 0] == 1.0  # the same memory
    memory = ReplayMemory(RecencyReplayBuffer(capacity=1000))
    memory.store(_transitions(0, 1))
    assert memory.num_bytes == 1000 * (5 * 4 + 4 + 1 + 4) + 8 + 1001 * 4
    state = memory.state
    memory.store(_transitions(1, 1))
    assert state.data.obs.is_deleted()  # donated to the program that writes in place


@pytest.mark.parametrize("num_batches", [None, 3])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("cls", [UniformReplayBuffer, CombinedReplayBuffer])
def test_what_is_kept_on_the_host_is_drawn_as_by_the_buffer(cls: type, num_envs: int, num_batches: int | None) -> None:
    """Samples from host memory equal ``draw_indices`` of the buffer with equal keys."""
    buffer = cls(capacity=30, num_envs=num_envs)
    memory, state = ReplayMemory(buffer, seed=5), None
    for call, (first, num) in enumerate([(0, 2), (2, 5), (7, 9), (16, 1)]):
        rows = _rows(first, num, num_envs)
        memory.store(jax.tree.map(lambda x: x[:, 0], rows) if num_envs == 1 else rows)
        rows = PyTreeDict(jax.tree.map(jnp.asarray, rows))
        state = buffer.init(jax.tree.map(lambda x: x[0, 0], rows)) if state is None else state
        state = buffer.add(state, rows)
        drawn = memory.sample(7, num_batches)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(5), call), num_batches or 1)
        for key, batch in zip(keys, [drawn] if num_batches is None else drawn, strict=True):
            row, env = buffer.draw_indices(state, key, 7)
            np.testing.assert_array_equal(batch.indices, row * num_envs + env)
            expected = buffer.sample(state, key, 7)
            np.testing.assert_array_equal(batch.number, expected.number)
            np.testing.assert_array_equal(batch.dones, expected.dones)
    for name in ("number", "dones"):
        np.testing.assert_array_equal(memory.state.data[name], state.data[name])
    assert (memory.state.cursor, memory.state.size) == (state.cursor, state.size)


def test_numbers_are_stored_as_jax_has_them() -> None:
    memory = ReplayMemory(UniformReplayBuffer(capacity=4))
    for _ in range(2):
        memory.store({"wide": np.arange(3), "nested": {"double": np.ones((3, 2)), "image": np.ones((3, 2), np.uint8)}})
    batch = memory.take([0, 1])
    assert [x.dtype.name for x in jax.tree.leaves(batch)] == ["int32", "float32", "uint8", "int32"]
    assert (batch.wide.tolist(), batch.nested.double.tolist()) == ([1, 2], [[1.0, 1.0]] * 2)


@pytest.mark.parametrize("buffer", [BUFFERS[0], BUFFERS[3]], ids=["on_host", "in_jax"])
@pytest.mark.parametrize(("number", "dtype"), [(2**40 + 5, "int64"), (-(2**31) - 1, "int64"), (2**32, "uint64")])
def test_integers_that_32_bits_cannot_hold_are_refused(buffer: UniformReplayBuffer, number: int, dtype: str) -> None:
    memory = ReplayMemory(buffer)
    for num_stored in (0, 2):
        with raises_naming(ValueError, "deep", "count", dtype.replace("64", "32"), str(number)):
            memory.store({"deep": {"count": np.array([1, number], dtype)}})
        assert len(memory) == num_stored
        memory.store({"deep": {"count": np.array([1, 2**31 - 1], dtype)}})


def test_copies_of_a_memory_are_independent() -> None:
    memory = ReplayMemory(UniformReplayBuffer(capacity=10), seed=1)
    memory.store(_transitions(0, 4))
    memory.sample(3)
    other = copy.deepcopy(memory)
    other.update({"indices": [0], "logp": [9.0]})
    assert (memory.take([0]).logp[0], other.take([0]).logp[0]) == (0.0, 9.0)
    other.store(_transitions(4, 2))
    assert other.take([5]).actions.tolist() == [5]
    assert (len(memory), len(other)) == (4, 6)


def test_more_than_there_is_room_for_leaves_the_newest() -> None:
    memory = ReplayMemory(UniformReplayBuffer(capacity=10))
    assert memory.store(_transitions(0, 27)).tolist() == [i % 10 for i in range(27)]
    assert set(memory.sample(200).actions.tolist()) == set(range(17, 27))
    large = ReplayMemory(UniformReplayBuffer(capacity=10_000))
    large.store(_transitions(0, 9_999))
    assert len(large) == 9_999
    np.testing.assert_array_equal(large.take(np.arange(9_999)).actions, np.arange(9_999))


def test_columns_that_transitions_lack_are_zeros_until_they_are_written() -> None:
    memory = ReplayMemory(UniformReplayBuffer(capacity=10), extra_columns={"example": (1,)})
    memory.store(_transitions(0, 5))
    assert memory.state.data.example.shape == (10, 1, 1)  # rows, environments, and the column itself
    memory.update({"indices": [3], "example": [[7]], "logp": [0.5]})
    batch = memory.take([2, 3])
    assert (batch.example.tolist(), batch.logp.tolist()) == ([[0.0], [7.0]], [-2.0, 0.5])
    memory.store({**_transitions(5, 1), "example": np.ones((1, 1), np.float32)})
    assert memory.take([5]).example.tolist() == [[1.0]]


def test_several_batches_are_drawn_at_once() -> None:
    memory = ReplayMemory(CombinedReplayBuffer(capacity=100))
    memory.store(_transitions(0, 60))
    batches = memory.sample(20, num_batches=3)
    assert [len(batch.actions) for batch in batches] == [20] * 3
    assert [batch.indices[0] for batch in batches] == [59] * 3  # the newest comes first in each batch
    assert len({tuple(batch.actions.tolist()) for batch in batches}) == 3


def test_draws_follow_from_the_seed() -> None:
    drawn = []
    for seed in (0, 0, 1):
        memory = ReplayMemory(UniformReplayBuffer(capacity=100), seed=seed)
        memory.store(_transitions(0, 100))
        drawn.append([memory.sample(8).actions.tolist() for _ in range(2)])
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


def test_priorities_decide_what_is_drawn() -> None:
    """Sampling frequencies are proportional to the root of the errors, and weights to their inverse."""
    memory = ReplayMemory(PrioritizedReplayBuffer(capacity=10, exponent=0.5))
    memory.store(_transitions(0, 3))
    memory.update({"indices": [0, 1, 2], "errors": [1.0, 0.25, 4.0]})
    batch = memory.sample(100_000)
    shares = np.bincount(batch.indices, minlength=3) / 100_000
    np.testing.assert_allclose(shares, [0.2857, 0.1429, 0.5714], rtol=0.02)
    for index, weight in enumerate([0.5, 1.0, 0.25]):
        np.testing.assert_allclose(batch.weights[batch.indices == index], weight, rtol=1e-4)
    memory.store(_transitions(3, 1))  # new ones get the maximum priority so far
    batch = memory.sample(100_000)
    np.testing.assert_allclose((batch.indices == 3).mean(), 2 / 5.5, rtol=0.02)


@pytest.mark.parametrize(
    "errors", [[1.0], [1.0] * 3, [[1.0], [1.0]], 1.0, [np.nan, 1.0], [1.0, np.inf], [1e300, 1.0], ["a", "b"]]
)
@pytest.mark.parametrize("cls", [PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer])
def test_errors_that_are_no_priorities_are_refused_and_change_nothing(cls: type, errors: Any) -> None:
    memory = ReplayMemory(cls(capacity=10, **({"length": 1} if cls is PrioritizedSequenceReplayBuffer else {})))
    memory.store(_transitions(0, 4))
    with raises_naming(ValueError, "errors"):
        memory.update({"indices": [0, 1], "logp": [8.0, 9.0], "errors": errors})
    batch = memory.sample(300)
    assert set(batch.indices.tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(batch.weights, 1.0)
    np.testing.assert_array_equal(memory.take([0, 1]).logp.ravel(), [0.0, -1.0])


@pytest.mark.parametrize("buffer", BUFFERS, ids=lambda buffer: type(buffer).__name__)
def test_an_empty_list_of_indices_changes_nothing(buffer: UniformReplayBuffer) -> None:
    memory = ReplayMemory(buffer)
    memory.store(_transitions(0, 4))
    errors = {"errors": []} if isinstance(buffer, PrioritizedReplayBuffer) else {}
    memory.update({"indices": [], "logp": [], **errors})
    assert memory.take([]).logp.shape == (0,)
    assert set(memory.sample(300).logp.tolist()) == {0.0, -1.0, -2.0, -3.0}


@pytest.mark.parametrize("buffer", BUFFERS, ids=lambda buffer: type(buffer).__name__)
@pytest.mark.parametrize(
    ("entry", "values"),
    [
        ("actions", [1.7, 1.0]),
        ("actions", [np.nan, 1.0]),
        ("actions", np.array([2**40, 1])),
        ("actions", ["a", "b"]),
        ("dones", [2, 0]),
        ("dones", [0.5, 0.0]),
        ("logp", ["1.5", "2"]),
        ("logp", [1.0, None]),
    ],
)
def test_values_that_a_stored_type_cannot_hold_are_refused(
    buffer: UniformReplayBuffer, entry: str, values: Any
) -> None:
    memory = ReplayMemory(buffer)
    memory.store(_transitions(0, 4))
    with raises_naming(ValueError, entry, memory.state.data[entry].dtype.name):
        memory.update({"indices": [2, 3], "obs": np.zeros((2, 5)), entry: values})
    stored = memory.take([2, 3])
    np.testing.assert_array_equal(stored.obs[:, 0], [2.0, 3.0])
    np.testing.assert_array_equal(stored[entry], _transitions(2, 2)[entry])


@pytest.mark.parametrize("buffer", BUFFERS, ids=lambda buffer: type(buffer).__name__)
def test_values_that_a_stored_type_can_hold_are_converted(buffer: UniformReplayBuffer) -> None:
    memory = ReplayMemory(buffer)
    memory.store(_transitions(0, 4))
    memory.update({"indices": [2, 3], "actions": [7.0, 8.0], "dones": [1, 0], "logp": [3, 4]})
    stored = memory.take([2, 3])
    assert (stored.actions.tolist(), stored.dones.tolist(), stored.logp.tolist()) == ([7, 8], [True, False], [3, 4])


@pytest.mark.parametrize("num_added", [3, 7, 10, 26])
@pytest.mark.parametrize("cls", [SequenceReplayBuffer, PrioritizedSequenceReplayBuffer])
def test_sequences_are_consecutive_and_never_cross_what_is_written_next(num_added: int, cls: type) -> None:
    memory = ReplayMemory(cls(capacity=10, length=4))
    for first in range(0, num_added, 3):
        memory.store(_transitions(first, min(3, num_added - first)))
    batch = memory.sample(300)
    if num_added < 4:  # no complete sequence yet
        assert batch is None
        return
    assert batch.obs.shape == (300, 4, 5)
    np.testing.assert_array_equal(batch.actions, batch.actions[:, :1] + np.arange(4))
    assert set(batch.actions[:, 0].tolist()) == set(range(max(0, num_added - 10), num_added - 3))
    np.testing.assert_array_equal(batch.dones, batch.actions % 4 == 3)
    np.testing.assert_array_equal(batch.indices, batch.actions[:, 0] % 10)
    assert batch.mask.all()
    unfinished = memory.take([(num_added - 2) % 10])
    np.testing.assert_array_equal(unfinished.mask, [[True, True, False, False]])
    np.testing.assert_array_equal(unfinished.actions[0, :2], [num_added - 2, num_added - 1])


def test_rows_of_simulators_are_stored_side_by_side() -> None:
    memory = ReplayMemory(SequenceReplayBuffer(capacity=30, num_envs=3, length=2))
    np.testing.assert_array_equal(memory.store(_rows(0, 4, 3)), np.arange(12).reshape(4, 3))
    assert len(memory) == 12
    batch = memory.sample(100)
    np.testing.assert_array_equal(batch.number[:, 1], batch.number[:, 0] + 100)
    np.testing.assert_array_equal(batch.indices, batch.number[:, 0] // 100 * 3 + batch.number[:, 0] % 100)
    memory.update({"indices": [4], "dones": [True]})
    assert memory.take([4]).dones.tolist() == [[True, False]]


def test_what_does_not_fit_is_refused_in_words() -> None:
    memory = ReplayMemory(UniformReplayBuffer(capacity=10))
    memory.store(_transitions(0, 4))
    batch = _transitions(4, 2)
    wrong = {
        ("unexpected ['a']", "missing []"): lambda: memory.store({**batch, "a": np.zeros(2)}),
        ("unexpected []", "missing ['logp']"): lambda: memory.store({k: v for k, v in batch.items() if k != "logp"}),
        ("axes [N]", "shapes {'obs': (2, 5), 'actions': (1,)"): lambda: memory.store(
            {**batch, "actions": np.zeros(1, np.int32)}
        ),
        ("logp']", "is int32"): lambda: memory.store({**batch, "logp": np.zeros(2, np.int32)}),
        ("new values of obs", "shape [2, 5]", "got [2]"): lambda: memory.update({"indices": [0, 1], "obs": [1, 2]}),
        ("indices", "got ['logp']"): lambda: memory.update({"logp": [1.0]}),
        ("'logg'", "'logp'"): lambda: memory.update({"indices": [0], "logg": [1.0]}),
        ("0 to 3", "got -1 to 3"): lambda: memory.take([-1, 3]),
        ("indices", "integers", "float64"): lambda: memory.take([0.9]),
        ("indices", "integers", "bool"): lambda: memory.take(np.array([True, False, True, False])),
        ("indices", "integers", "object"): lambda: memory.update({"indices": [None]}),
        ("0 to 3", "got 10 to 10"): lambda: memory.update({"indices": [10]}),
        ("called indices", "rename"): lambda: ReplayMemory(memory.buffer).store({**batch, "indices": batch["actions"]}),
        ("UniformReplayBuffer", "priorities"): lambda: memory.update({"indices": [0], "errors": [1.0]}),
    }
    for parts, act in wrong.items():
        with raises_naming(ValueError, *parts):
            act()
    with raises_naming(TypeError, "EpisodeReplayBuffer", "SampleBatch"):
        ReplayMemory(EpisodeReplayBuffer(capacity=10))
    with raises_naming(TypeError, "SlotReplayBuffer", "SampleBatch"):
        ReplayMemory(SlotReplayBuffer(capacity=10, episode_steps=5))
    rows = ReplayMemory(UniformReplayBuffer(capacity=12, num_envs=3))
    with raises_naming(ValueError, "axes [T, 3]"):
        rows.store(_rows(0, 2, 4))


@pytest.mark.parametrize("kind", [UniformReplayBuffer, PrioritizedReplayBuffer, SequenceReplayBuffer])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("num_rows", [0, 2, 4])
def test_only_stored_transitions_have_an_index(kind: type[UniformReplayBuffer], num_envs: int, num_rows: int) -> None:
    memory = ReplayMemory(kind(capacity=4 * num_envs, num_envs=num_envs))
    shape = (num_rows,) if num_envs == 1 else (num_rows, num_envs)
    memory.store({"x": np.ones(shape, np.float32)})
    stored = np.arange(len(memory))
    if num_rows:
        memory.update({"indices": stored, "x": np.full(len(memory), 2.0, np.float32)})
        assert (memory.take(stored).x.reshape(len(memory), -1)[:, 0] == 2.0).all()
    for act in (lambda i: memory.take(i), lambda i: memory.update({"indices": i, "x": np.zeros(len(i), np.float32)})):
        with raises_naming(ValueError, "stored"):
            act([*stored, len(memory)])

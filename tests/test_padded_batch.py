"""Padded batches equal manual results; NumPy stays NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.padded_batch import PaddedBatch, concatenate, pad_episodes, padded_batch, split_episodes
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming

LENGTHS = [6, 10, 3]


def _batch(lengths: list[int], num_steps: int = 10) -> PaddedBatch:
    """Return steps with number ``100 b + t`` for step t of row b, also beyond its length."""
    number = 100 * np.arange(len(lengths))[:, None] + np.arange(num_steps)
    data = PyTreeDict(obs=number[..., None].astype(np.float32), actions=number.astype(np.int32))
    return padded_batch(data, np.array(lengths), info=PyTreeDict(agent_id=np.arange(len(lengths))))


def _is_host(tree: Any) -> bool:
    return all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree))


def test_the_mask_counts_steps() -> None:
    batch = _batch(LENGTHS)
    assert batch.lengths.dtype == np.int32
    assert (batch.num_rows, batch.num_steps) == (3, 10)
    assert batch.mask.sum() == 19
    np.testing.assert_array_equal(batch.mask.sum(axis=1), LENGTHS)
    np.testing.assert_array_equal(padded_batch(batch.data).lengths, [10, 10, 10])


def test_slices_of_time_have_the_lengths_that_are_left() -> None:
    batch = _batch(LENGTHS)
    np.testing.assert_array_equal(batch.between(0, 4).lengths, [4, 4, 3])
    later = batch.between(4, 8)
    np.testing.assert_array_equal(later.lengths, [2, 4, 0])
    np.testing.assert_array_equal(later.data.actions[1], [104, 105, 106, 107])
    np.testing.assert_array_equal(later.info.agent_id, [0, 1, 2])
    np.testing.assert_array_equal(batch.between(8, 20).lengths, [0, 2, 0])
    with raises_naming(ValueError, "between(4, 2)"):
        batch.between(4, 2)


def test_one_step_of_all_and_of_those_that_still_run() -> None:
    batch = _batch(LENGTHS)
    np.testing.assert_array_equal(batch.at(5).actions, [5, 105, 205])
    np.testing.assert_array_equal(batch.at(np.array([5, 0, 2])).actions, [5, 100, 202])
    step, rows = batch.running_at(5)
    np.testing.assert_array_equal(rows, [0, 1])
    np.testing.assert_array_equal(step.obs, [[5], [105]])
    assert batch.running_at(9)[1].tolist() == [1]
    assert batch.running_at(10**6)[1].size == 0


def test_rows_are_chosen_and_a_single_one_is_no_batch() -> None:
    batch = _batch(LENGTHS)
    np.testing.assert_array_equal(batch[1:].lengths, [10, 3])
    chosen = batch[np.array([2, 0])]
    np.testing.assert_array_equal(chosen.lengths, [3, 6])
    np.testing.assert_array_equal(chosen.data.actions[:, 0], [200, 0])
    np.testing.assert_array_equal(chosen.info.agent_id, [2, 0])
    for single in (1, np.int32(1), np.array(1), jnp.array(1)):
        with raises_naming(TypeError, "episodes()[1]"):
            batch[single]
    for flag in (True, np.True_, jnp.array(True)):
        with raises_naming(TypeError, "batch[True]", "single row"):
            batch[flag]
    with raises_naming(TypeError, "single row", "episodes()"):
        jax.jit(lambda lengths: batch[jnp.argmax(lengths)].mask)(jnp.arange(3))
    with raises_naming(TypeError, "PaddedBatch", "not iterable"):
        iter(batch)


def test_padding_of_all_rows_is_cut_off() -> None:
    short = _batch([2, 4, 3]).shorten()
    assert short.num_steps == 4
    assert short.data.obs.shape == (3, 4, 1)
    assert _batch([0, 0]).shorten().num_steps == 0


def test_batches_of_different_lengths_are_joined_with_zeros() -> None:
    joined = concatenate([_batch(LENGTHS), _batch([4, 1], num_steps=4)])
    np.testing.assert_array_equal(joined.lengths, [*LENGTHS, 4, 1])
    assert joined.data.obs.shape == (5, 10, 1)
    np.testing.assert_array_equal(joined.data.actions[4], [100, 101, 102, 103, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(joined.info.agent_id, [0, 1, 2, 0, 1])


def test_rows_of_zeros_are_added_and_types_stay() -> None:
    more = _batch(LENGTHS).expand(5)
    np.testing.assert_array_equal(more.lengths, [*LENGTHS, 0, 0])
    assert (more.data.actions.dtype, more.data.obs.dtype) == (np.int32, np.float32)
    assert not more.data.obs[3:].any()
    assert more.mask.sum() == 19
    with raises_naming(ValueError, "batch[:2]"):
        more.expand(2)


def test_episodes_go_in_and_come_out() -> None:
    episodes = [PyTreeDict(obs=np.full((n, 2), n, np.float32), rewards=np.arange(n)) for n in (3, 1, 4)]
    batch = pad_episodes(episodes, info=PyTreeDict(seed=np.array([7, 8, 9])))
    np.testing.assert_array_equal(batch.lengths, [3, 1, 4])
    assert batch.data.obs.shape == (3, 4, 2)
    np.testing.assert_array_equal(batch.data.rewards, [[0, 1, 2, 0], [0, 0, 0, 0], [0, 1, 2, 3]])
    jax.tree.map(np.testing.assert_array_equal, batch.episodes(), episodes)


def test_a_trajectory_is_split_where_episodes_end() -> None:
    """A trajectory of two environments is split after steps 1 and 3, and after step 2."""
    dones = np.array([[0, 0], [1, 0], [0, 1], [1, 0]])
    trajectory = SampleBatch(obs=np.arange(8).reshape(4, 2), dones=dones)
    batch = split_episodes(trajectory, dones)
    np.testing.assert_array_equal(batch.lengths, [2, 2, 3, 1])
    np.testing.assert_array_equal(batch.data.obs, [[0, 2, 0], [4, 6, 0], [1, 3, 5], [7, 0, 0]])
    assert {name: x.tolist() for name, x in batch.info.items()} == {
        "env": [0, 0, 1, 1],
        "starts": [0, 2, 0, 3],
        "ended": [True, True, True, False],
    }


def test_what_is_on_the_host_stays_there() -> None:
    batch = _batch(LENGTHS)
    results = [batch, batch.mask, batch.between(1, 3), batch.at(0), batch.shorten(), batch.expand(4), batch[:2]]
    results += [concatenate([batch, batch]), pad_episodes(batch.episodes()), batch.running_at(2)]
    assert all(_is_host(result) for result in results)


def test_all_that_has_fixed_shapes_may_be_traced() -> None:
    def operations(batch: PaddedBatch) -> Any:
        joined = concatenate([batch, batch.between(2, 6)]).expand(8)
        return joined, joined.mask, batch.at(batch.lengths - 1), batch[jnp.array([1, 2])], padded_batch(batch.data)

    batch = _batch(LENGTHS)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(operations)(batch), operations(batch))
    for name in ("shorten", "episodes"):
        with raises_naming(ValueError, name, "lengths"):
            jax.jit(lambda batch, name=name: getattr(batch, name)())(batch)


def test_what_does_not_agree_is_refused_in_words() -> None:
    data = _batch(LENGTHS).data
    wrong = {
        ("3 lengths", "shape (2,)"): lambda: padded_batch(data, np.array([1, 2])),
        ("0 to 10", "got 1 to 11"): lambda: padded_batch(data, np.array([1, 2, 11])),
        ("info", "3 rows"): lambda: padded_batch(data, info=np.zeros(2)),
        ("axes [B, T]",): lambda: padded_batch({"a": np.zeros((3, 2)), "b": np.zeros((3, 4))}),
        ("at least one episode",): lambda: pad_episodes([]),
        ("episode 1", "[2, 3]"): lambda: pad_episodes([{"a": np.zeros(2)}, {"a": np.zeros(2), "b": np.zeros(3)}]),
    }
    for parts, build in wrong.items():
        with raises_naming(ValueError, *parts):
            build()

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.sample_batch import (
    Episode,
    SampleBatch,
    first_episodes,
    valid_mask,
)
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming

T, B = 4, 2


def _batch() -> SampleBatch:
    rewards = jnp.arange(float(T * B)).reshape(T, B)
    dones = jnp.array([[0, 0], [1, 0], [0, 0], [1, 0]], jnp.float32)
    obs = {"position": jnp.zeros((T, B, 3)), "pixels": jnp.zeros((T, B, 5, 5), jnp.uint8)}
    return SampleBatch(obs=obs, rewards=rewards, dones=dones, extras=PyTreeDict(steps=jnp.ones((T, B))))


def test_fields_are_optional_and_do_not_count_as_leaves() -> None:
    batch = SampleBatch(obs=jnp.ones((3, 4)))
    assert batch.actions is None
    assert len(jax.tree.leaves(batch)) == 1
    assert len(batch) == 3
    assert len(SampleBatch()) == 0


def test_rows_are_indexed_in_every_leaf() -> None:
    batch = _batch()
    assert batch[1:3].obs["pixels"].shape == (2, B, 5, 5)
    assert batch[-1, 0].extras.steps.shape == ()
    np.testing.assert_array_equal(batch[jnp.array([3, 0])].rewards[:, 0], [6.0, 0.0])
    with pytest.raises(TypeError):
        iter(batch)


def test_flatten_joins_time_and_environments() -> None:
    flat = jax.jit(lambda b: b.flatten())(_batch())
    assert flat.obs["pixels"].shape == (T * B, 5, 5)
    np.testing.assert_array_equal(flat.rewards, np.arange(T * B))
    assert flat.next_obs is None


def test_valid_mask_ends_with_the_first_done() -> None:
    expected = np.array([[1, 1], [1, 1], [0, 1], [0, 1]], bool)
    np.testing.assert_array_equal(valid_mask(_batch().dones), expected)
    np.testing.assert_array_equal(valid_mask(_batch().dones.astype(bool)), expected)


def test_episode_sums_up_to_its_end() -> None:
    episode = Episode(_batch())
    np.testing.assert_array_equal(episode.length, [2, 4])
    np.testing.assert_array_equal(episode.episode_return, [0 + 2, 1 + 3 + 5 + 7])
    with raises_naming(ValueError, "'dones'"):
        _ = Episode(SampleBatch(rewards=jnp.ones(3))).valid_mask
    with raises_naming(ValueError, "'rewards'"):
        _ = Episode(SampleBatch(dones=jnp.ones(3))).episode_return


def test_first_episodes_are_chosen_turn_by_turn() -> None:
    """Episodes are chosen in turn over environments: of five, environment 0 has two and the others one."""
    dones = jnp.array([[1, 0], [0, 0], [1, 1], [0, 0]])
    for num_episodes, first, second in ((2, 0, 0), (3, 1, 0), (4, 1, 3), (7, 3, 3), (8, 3, 4), (11, 4, 4)):
        chosen = first_episodes(dones, num_episodes, jnp.array([2, 3]), 4)
        np.testing.assert_array_equal(chosen.sum(axis=0), [first, second])
        assert all(chosen[:n, i].all() for i, n in enumerate((first, second)))


def test_the_page_on_extras_names_all_that_is_read():
    root = Path(__file__).resolve().parent.parent
    page = (root / "docs" / "reference" / "data.md").read_text("utf-8")
    sources = [path.read_text("utf-8") for path in (root / "evorl").rglob("*.py")]
    names = {name for text in sources for name in re.findall(r"\bextras\.(?:(?:env|policy)_extras\.)?(\w+)", text)}
    names -= {"get", "items", "pop", "replace"}  # methods
    assert {"termination", "weights", "log_prob"} <= names
    missing = [name for name in sorted(names) if not re.search(rf"`([\w.]+\.)?{name}`", page)]
    assert not missing, f"docs/reference/data.md does not tell of {missing} in the extras of a SampleBatch"

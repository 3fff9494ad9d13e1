"""Parent selection: the worst members continue from the best, and no member from a worse one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.selection import best_member, clones, pair_parents, truncation_parents

KEYS = jax.random.split(jax.random.key(0), 2000)


@pytest.mark.parametrize(
    ("num_members", "share", "num_replaced"), [(8, 0.25, 2), (10, 0.2, 2), (5, 0.5, 2), (6, 0.01, 1)]
)
def test_the_lowest_share_goes_on_from_the_highest(num_members: int, share: float, num_replaced: int) -> None:
    scores = jax.random.permutation(jax.random.key(1), jnp.arange(float(num_members)))
    parents = np.asarray(jax.vmap(lambda key: truncation_parents(key, scores, share))(KEYS))
    replaced = parents != np.arange(num_members)
    np.testing.assert_array_equal(replaced, np.broadcast_to(scores < num_replaced, replaced.shape))
    chosen = np.asarray(scores)[parents[replaced]]
    values, counts = np.unique(chosen, return_counts=True)
    assert values.tolist() == list(range(num_members - num_replaced, num_members))
    np.testing.assert_allclose(counts / counts.sum(), 1 / num_replaced, atol=0.03)


def test_every_replaced_member_draws_a_parent_of_its_own() -> None:
    scores = jnp.arange(8.0)
    parents = np.asarray(jax.vmap(lambda key: truncation_parents(key, scores, 0.25))(KEYS))
    assert abs((parents[:, 0] == parents[:, 1]).mean() - 0.5) < 0.05


def test_equals_are_left_alone_and_members_that_diverged_are_not() -> None:
    key = jax.random.key(0)
    own = np.arange(6)
    for select in (lambda s: truncation_parents(key, s, 0.5), lambda s: pair_parents(key, s)):
        np.testing.assert_array_equal(select(jnp.full(6, 500.0)), own)
        np.testing.assert_array_equal(select(jnp.full(6, -jnp.inf)), own)
    scores = jnp.array([-jnp.inf, 3.0, -jnp.inf, 1.0, 2.0, -jnp.inf])
    parents = truncation_parents(key, scores, 0.2)
    np.testing.assert_array_equal(parents, [1, 1, 1, 3, 4, 1])


def test_members_whose_score_is_not_known_are_left_alone_and_not_gone_on_from() -> None:
    scores = jnp.array([jnp.nan, 3.0, jnp.nan, 1.0, -jnp.inf, jnp.nan])
    parents = np.asarray(jax.vmap(lambda key: truncation_parents(key, scores, 0.5))(KEYS))
    assert (parents[:, [0, 1, 2, 5]] == [0, 1, 2, 5]).all()
    assert set(parents[:, 4]) == {1, 3, 4}  # itself if an unknown one was drawn
    pairs = np.asarray(jax.vmap(lambda key: pair_parents(key, scores))(KEYS))
    assert (pairs[:, [0, 1, 2, 5]] == [0, 1, 2, 5]).all()
    assert set(pairs[:, 3]) == {1, 3}
    assert [int(best_member(x)) for x in (scores, scores.at[1].set(jnp.nan), jnp.full(3, jnp.nan))] == [1, 3, 0]


@pytest.mark.parametrize("num_members", [2, 6, 7])
def test_pairs_are_random_and_their_losers_go_on_from_the_winners(num_members: int) -> None:
    scores = jnp.arange(float(num_members))
    parents = np.asarray(jax.vmap(lambda key: pair_parents(key, scores))(KEYS))
    replaced = parents != np.arange(num_members)
    assert (replaced.sum(axis=1) == num_members // 2).all()
    assert (parents >= np.arange(num_members)).all()
    for row, of_row in zip(parents[:100], replaced[:100], strict=True):
        assert len(set(row[of_row])) == num_members // 2  # every winner has one loser
        assert not of_row[row[of_row]].any()
    assert not replaced[:, -1].any()
    met = set(np.unique(parents[:, 0]))  # all others; itself if unpaired
    assert met == set(range(num_members)) - (set() if num_members % 2 else {0})


def test_clones_keep_their_keys() -> None:
    members = {"weights": jnp.arange(6.0).reshape(3, 2), "key": jax.random.split(jax.random.key(0), (3, 4))}
    copied = clones(members, jnp.array([0, 0, 2]))
    np.testing.assert_array_equal(copied["weights"], [[0, 1], [0, 1], [4, 5]])
    np.testing.assert_array_equal(jax.random.key_data(copied["key"]), jax.random.key_data(members["key"]))

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.networks.heads import network_input
from evorl.ops import normalization
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.normalization import (
    RewardScale,
    RunningStatistics,
    add_groups,
    add_row,
    bounded_rewards,
    init_statistics,
    normalize,
    normalize_rewards,
    update_statistics,
)

update = jax.jit(update_statistics)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal([100.0, -3.0], [0.5, 20.0], (60, 2)).astype(np.float32)


def test_batches_in_any_cut_give_the_statistics_of_all_rows(rows: np.ndarray) -> None:
    for cut in ((60,), (10, 10, 40)):
        statistics = init_statistics(jax.ShapeDtypeStruct((2,), jnp.float32))
        for part in np.split(rows, np.cumsum(cut)[:-1]):
            statistics = update(statistics, part.reshape(2, -1, 2))
        assert statistics.count == 60
        np.testing.assert_allclose(statistics.mean, rows.mean(0), rtol=1e-5)
        np.testing.assert_allclose(statistics.variance, rows.var(0), rtol=1e-4)


def test_normalized_rows_have_mean_0_and_variance_1(rows: np.ndarray) -> None:
    statistics = update(init_statistics(rows[0]), rows)
    result = np.asarray(normalize(statistics, rows))
    np.testing.assert_allclose(result.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(result.std(0), 1.0, atol=1e-3)
    np.testing.assert_array_equal(normalize(statistics, rows[0] + 1e6), [10.0, 10.0])
    np.testing.assert_array_equal(normalize(statistics, rows[0] - 1e6, clip=3.0), [-3.0, -3.0])


def test_without_rows_it_is_the_identity() -> None:
    obs = jnp.array([1e5, -2.0])
    statistics = init_statistics(obs)
    np.testing.assert_array_equal(normalize(statistics, obs), obs)
    np.testing.assert_array_equal(statistics.variance, 1.0)


def test_masked_rows_do_not_count_whatever_they_hold(rows: np.ndarray) -> None:
    mask = np.arange(60) % 3 > 0
    poisoned = np.where(mask[:, None], rows, np.nan)
    statistics = update(init_statistics(rows[0]), poisoned, mask)
    assert statistics.count == 40
    np.testing.assert_allclose(statistics.mean, rows[mask].mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, rows[mask].var(0), rtol=1e-4)
    unchanged = update(statistics, poisoned, np.zeros(60, bool))
    jax.tree.map(np.testing.assert_array_equal, unchanged, statistics)


def _by_single_rows(steps: np.ndarray, mask: np.ndarray) -> RunningStatistics:
    """Return statistics ``[B]`` of steps ``[T, B, ...]``, updated row by row."""

    def step(statistics: RunningStatistics, step: tuple) -> tuple[RunningStatistics, None]:
        return jax.vmap(add_row)(statistics, *step), None

    empty = jax.vmap(init_statistics)(jnp.asarray(steps[0]))
    return jax.jit(lambda *steps: jax.lax.scan(step, empty, steps)[0])(jnp.asarray(steps), jnp.asarray(mask))


@pytest.mark.parametrize("num_before", [0, 20])
def test_single_rows_give_the_same_statistics(rows: np.ndarray, num_before: int) -> None:
    """Statistics updated by single rows equal statistics of batches, with masked and non-finite rows."""
    before = init_statistics(rows[0])
    if num_before:
        before = update(before, rows[:num_before])
    steps = rows.reshape(20, 3, 2)
    mask = (np.arange(20)[:, None] < 10) | (np.arange(3) < 2)
    broken = np.array([[[1.0, np.nan], [np.inf, 1.0], [-np.inf, np.nan]]], np.float32)
    poisoned = np.concatenate([np.where(mask[..., None], steps, np.nan), broken])
    groups = _by_single_rows(poisoned, np.concatenate([mask, np.ones((1, 3), bool)]))
    np.testing.assert_array_equal(groups.count, [20, 20, 10])
    np.testing.assert_allclose(groups.mean[2], steps[:10, 2].mean(0), rtol=1e-5)
    actual, expected = jax.jit(add_groups)(before, groups), update(before, steps, mask)
    assert actual.count == expected.count == num_before + 50
    np.testing.assert_allclose(actual.mean, expected.mean, rtol=1e-5)
    np.testing.assert_allclose(actual.variance, expected.variance, rtol=1e-4)


@pytest.mark.parametrize(("offset", "rtol"), [(1e3, 1e-4), (-1e5, 5e-3)])
def test_far_from_zero_the_variance_stays_right(offset: float, rtol: float) -> None:
    """Every way to update the statistics matches float64, also far from zero."""
    steps = np.random.default_rng(1).normal(offset, 1.0, (500, 4, 3)).astype(np.float32)
    empty, everywhere = init_statistics(steps[0, 0]), np.ones((500, 4), bool)
    all_rows = steps.reshape(-1, 3).astype(np.float64)
    in_parts = empty
    for part in np.split(steps, 5):
        in_parts = update(in_parts, part)
    for statistics in (add_groups(empty, _by_single_rows(steps, everywhere)), update(empty, steps), in_parts):
        np.testing.assert_allclose(statistics.variance, all_rows.var(0), rtol=rtol)
        np.testing.assert_allclose(statistics.mean, all_rows.mean(0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int32, jnp.bool_, jnp.float32])
def test_without_rows_networks_read_the_same_numbers_as_without_normalization(dtype: jax.typing.DTypeLike) -> None:
    obs = jnp.arange(0, 256, 15).reshape(2, 3, 3).astype(dtype)
    read = network_input(obs, 2, 2)
    np.testing.assert_array_equal(network_input(normalize(init_statistics(obs[0]), obs), 2, 2), read)
    assert read.max() == (1 if dtype in (jnp.uint8, jnp.bool_) else 255)


def test_trees_and_integers_become_float32() -> None:
    obs = {"pixels": jnp.full((4, 2, 2), 200, jnp.uint8), "position": jnp.arange(4.0)}
    statistics = update(init_statistics(jax.tree.map(lambda x: x[0], obs)), obs)
    np.testing.assert_array_equal(statistics.mean["pixels"], 200.0)
    result = normalize(statistics, obs)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(result))
    np.testing.assert_array_equal(result["pixels"], 0.0)  # a constant feature stays finite
    with pytest.raises(AssertionError, match="tree structs"):
        update_statistics(statistics, {"position": obs["position"]})


def test_variance_stays_right_when_the_count_is_full(monkeypatch: pytest.MonkeyPatch, rows: np.ndarray) -> None:
    monkeypatch.setattr(normalization, "MAX_COUNT", 100.0)
    statistics = init_statistics(rows[0])
    for _ in range(10):
        statistics = update_statistics(statistics, rows)
    assert statistics.count == 100.0
    np.testing.assert_allclose(statistics.variance, rows.var(0), rtol=1e-3)


def test_sharded_rows_count_once_each(rows: np.ndarray) -> None:
    mesh = jax.make_mesh((4,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    empty = init_statistics(rows[0])

    @jax.jit
    @jax.shard_map(
        mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec(DATA_AXIS)), out_specs=PartitionSpec(), check_vma=False
    )
    def sharded_update(statistics: RunningStatistics, part: jax.Array) -> tuple[RunningStatistics, RunningStatistics]:
        one_each = jax.vmap(add_row)(jax.vmap(init_statistics)(part), part, jnp.ones(len(part), bool))
        return update_statistics(statistics, part, sharded=True), add_groups(statistics, one_each)

    for actual in sharded_update(empty, rows):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), actual, update(empty, rows))


def test_rewards_are_measured_by_the_spread_of_discounted_sums() -> None:
    """The reward scale equals a plain loop over the steps of each trajectory."""
    rng = np.random.default_rng(3)
    rewards = rng.normal(-20.0, 5.0, (12, 3)).astype(np.float32)
    dones = rng.random((12, 3)) < 0.2
    scale, sums, seen = RewardScale.of_none(3), np.zeros(3), []
    for part in (slice(0, 5), slice(5, 12)):
        result, scale = jax.jit(normalize_rewards)(scale, rewards[part], dones[part], 0.9)
        for reward, done in zip(rewards[part], dones[part], strict=True):
            sums = 0.9 * sums + reward
            seen.append(sums)
            sums = np.where(done, 0.0, sums)
        expected = rewards[part] / np.std(np.stack(seen))
        np.testing.assert_allclose(result, expected, rtol=1e-4)
        np.testing.assert_allclose(scale.sums, sums, rtol=1e-5)
    assert scale.statistics.count == 36
    steep, _ = normalize_rewards(scale, jnp.array([[1e6, -1e6, 0.0]]), dones[:1], 0.0, clip=2.0)
    np.testing.assert_array_equal(steep, [[2.0, -2.0, 0.0]])


def test_bounded_rewards_follow_the_sums_in_the_order_of_the_environments() -> None:
    """The divisor of rewards of any shape equals a plain loop over all steps; a sum restarts after an episode."""
    rng = np.random.default_rng(4)
    rewards, dones = rng.normal(3.0, 1.0, (12, 3)).astype(np.float32), rng.random((12, 3)) < 0.2
    scale, sums, seen = RewardScale.of_none(3, bounded=True), np.zeros(3), []
    for part in (slice(0, 5), slice(5, 12)):
        scale = jax.jit(RewardScale.after)(scale, rewards[part], dones[part], 0.9)
    for reward, done in zip(rewards, dones, strict=True):
        sums = 0.9 * sums + reward
        seen.append(sums)
        sums = np.where(done, 0.0, sums)
    std, greatest = np.std(np.stack(seen)), np.abs(np.stack(seen)).max()
    np.testing.assert_allclose(scale.greatest, greatest, rtol=1e-5)
    sampled = np.full((2, 4), 7.0, np.float32)
    np.testing.assert_allclose(bounded_rewards(scale, sampled, 1.0), sampled / greatest, rtol=1e-5)
    np.testing.assert_allclose(bounded_rewards(scale, sampled, 1e6), sampled / std, rtol=1e-4)
    assert greatest > std > greatest / 1e6  # each side of the maximum was tested


def test_a_running_filter_gives_the_known_numbers() -> None:
    """Normalized 1, 2, 4 equal RELAAX's ZFilter after conversion from its sample variance (N - 1)."""
    statistics, seen = init_statistics(jax.ShapeDtypeStruct((), jnp.float32)), []
    for count, x in enumerate((1.0, 2.0, 4.0), start=1):
        statistics = update_statistics(statistics, jnp.asarray([x]))
        seen.append(float(normalize(statistics, jnp.float32(x), 5.0)) * np.sqrt((count - 1) / count))
    np.testing.assert_allclose(seen, [0.0, 0.7071, 1.0911], atol=1e-4)
    assert float(normalize(statistics, jnp.float32(1e6), 5.0)) == 5.0


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
def test_few_rows_at_a_time_keep_the_variance_at_the_largest_count(num_rows: int) -> None:
    full = jnp.float32(normalization.MAX_COUNT)
    start = RunningStatistics(count=full, mean=jnp.zeros(()), m2=full)

    @jax.jit
    def updated(key: jax.Array) -> RunningStatistics:
        def one_step(statistics: RunningStatistics, rows: jax.Array) -> tuple[RunningStatistics, None]:
            return update_statistics(statistics, rows), None

        return jax.lax.scan(one_step, start, jax.random.normal(key, (200_000, num_rows)))[0]

    after = updated(jax.random.key(0))
    assert after.count == full
    assert abs(after.variance - 1.0) < 0.004

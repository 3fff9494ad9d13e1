from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.ops import normalization
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.normalization import ObservationSums, init_statistics, normalize, update_statistics

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


@pytest.mark.parametrize("num_before", [0, 20])
def test_sums_of_single_rows_give_the_same_statistics(rows: np.ndarray, num_before: int) -> None:
    """Twenty steps of three rows, of which the last one is not counted from the tenth step on."""
    before = init_statistics(rows[0])
    if num_before:
        before = update(before, rows[:num_before])
    steps = rows.reshape(20, 3, 2)
    mask = (np.arange(20)[:, None] < 10) | (np.arange(3) < 2)
    sums = ObservationSums.start(before, steps[0])
    for obs, counted in zip(np.where(mask[..., None], steps, np.nan), mask, strict=True):
        sums = sums.add(jnp.asarray(obs), jnp.asarray(counted))
    np.testing.assert_array_equal(sums.count, [20, 20, 10])
    broken = jnp.array([[1.0, jnp.nan], [jnp.inf, 1.0], [-jnp.inf, jnp.nan]])
    sums = sums.add(broken, jnp.ones(3, bool))  # one row of many may have broken its simulation
    np.testing.assert_array_equal(sums.count, [20, 20, 10])
    actual, expected = sums.added_to(before), update(before, steps, mask)
    assert actual.count == expected.count == num_before + 50
    np.testing.assert_allclose(actual.mean, expected.mean, rtol=1e-5)
    # Without a known mean the squares of far observations lose digits.
    np.testing.assert_allclose(actual.variance, expected.variance, rtol=1e-4 if num_before else 0.05)


def test_trees_and_integers_become_float32() -> None:
    obs = {"pixels": jnp.full((4, 2, 2), 200, jnp.uint8), "position": jnp.arange(4.0)}
    statistics = update(init_statistics(jax.tree.map(lambda x: x[0], obs)), obs)
    np.testing.assert_array_equal(statistics.mean["pixels"], 200.0)
    result = normalize(statistics, obs)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(result))
    np.testing.assert_array_equal(result["pixels"], 0.0)  # a feature that never varies stays finite
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
    def sharded_update(statistics: normalization.RunningStatistics, part: jax.Array) -> normalization.RunningStatistics:
        return update_statistics(statistics, part, sharded=True)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), sharded_update(empty, rows), update(empty, rows)
    )

"""Archives equal a dict that is filled with one candidate after another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.archives import Archive, ArchiveState, CentroidArchive, GridArchive
from tests.support.errors import raises_naming

GRID = GridArchive(low=(-1.0, 0.0), high=(1.0, 10.0), bins=(3, 4))
CENTROIDS = CentroidArchive(low=(-1.0, 0.0), high=(1.0, 10.0), num_centroids=7)
ARCHIVES = [GRID, CENTROIDS]
START = {"w": jnp.full(2, -7.0), "b": jnp.zeros(())}
add = jax.jit(lambda archive, *args: archive.add(*args))


def _candidates(seed: int, num: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return many candidates per cell, including equal and non-finite fitness, and descriptors outside of the box."""
    rng = np.random.default_rng(seed)
    fitness = rng.integers(-4, 5, num).astype(np.float32)
    descriptors = rng.uniform((-1.5, -3.0), (1.5, 13.0), (num, 2)).astype(np.float32)
    fitness[rng.random(num) < 0.05] = np.nan
    fitness[rng.random(num) < 0.05] = np.inf
    descriptors[rng.random(num) < 0.05, 0] = np.nan
    return (
        {"w": rng.normal(size=(num, 2)).astype(np.float32), "b": np.arange(num, dtype=np.float32)},
        fitness,
        descriptors,
    )


def _filled_by_hand(archive: Archive, elites: dict[int, tuple], candidates: tuple) -> dict[int, tuple]:
    solutions, fitness, descriptors = candidates
    elites = dict(elites)
    cells = np.asarray(archive.cells(jnp.asarray(descriptors)))
    for i, (value, descriptor) in enumerate(zip(fitness, descriptors, strict=True)):
        if not np.isfinite(value) or not np.isfinite(descriptor).all():
            continue
        if cells[i] not in elites or value > elites[cells[i]][0]:
            elites[int(cells[i])] = (value, descriptor, {name: x[i] for name, x in solutions.items()})
    return elites


def _check(archive: Archive, state: ArchiveState, elites: dict[int, tuple]) -> None:
    assert set(np.flatnonzero(state.is_filled)) == set(elites)
    for cell, (value, descriptor, solution) in elites.items():
        assert state.fitness[cell] == value
        np.testing.assert_array_equal(state.descriptors[cell], descriptor)
        for name, x in solution.items():
            np.testing.assert_array_equal(state.solutions[name][cell], x)
    assert float(archive.coverage(state)) == pytest.approx(len(elites) / archive.num_cells)
    total = sum(value - (-4.0) for value, _, _ in elites.values())
    assert float(archive.qd_score(state, -4.0)) == pytest.approx(total)
    if elites:
        solution, fitness = archive.best(state)
        assert fitness == max(value for value, _, _ in elites.values())
        assert any(value == fitness and elite["b"] == solution["b"] for value, _, elite in elites.values())


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: type(archive).__name__)
@pytest.mark.parametrize("num", [1, 9, 60])
def test_like_a_dict(archive: Archive, num: int) -> None:
    state, elites = archive.init(START), {}
    for seed in range(6):
        candidates = _candidates(seed, num)
        elites = _filled_by_hand(archive, elites, candidates)
        before, state = state, add(archive, state, *candidates)
        _check(archive, state, elites)
        assert (np.asarray(state.fitness) >= np.asarray(before.fitness)).all()  # no elite is replaced by a worse one
        for name, x in state.solutions.items():
            assert np.isfinite(x).all(), name
    assert len(elites) > 3 or num == 1


def test_many_archives_at_once_are_what_each_is_alone() -> None:
    batches = [_candidates(seed, 20) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    states = jax.vmap(
        lambda solutions, fitness, descriptors: GRID.add(GRID.init(START), solutions, fitness, descriptors)
    )(*stacked)
    for i, batch in enumerate(batches):
        alone = add(GRID, GRID.init(START), *batch)
        jax.tree.map(lambda many, one, i=i: np.testing.assert_array_equal(many[i], one), states, alone)


def test_equals_do_not_replace_one_another() -> None:
    archive = GridArchive(bins=(2,))
    state = archive.init(jnp.zeros(()))
    state = archive.add(state, jnp.arange(3.0), jnp.array([1.0, 2.0, 2.0]), jnp.array([[0.1], [0.2], [0.3]]))
    assert float(state.solutions[0]) == 1.0
    state = archive.add(state, jnp.full(1, 9.0), jnp.array([2.0]), jnp.array([[0.4]]))
    assert float(state.solutions[0]) == 1.0
    np.testing.assert_allclose(state.descriptors[0], [0.2])


def test_a_box_as_wide_as_float32() -> None:
    archive = GridArchive(low=(-3e38,), high=(3e38,), bins=(4,))
    np.testing.assert_array_equal(archive.cells(jnp.array([[-3e38], [-1e38], [2e38], [3.4e38]])), [0, 1, 3, 3])


def test_elites_are_drawn_alike() -> None:
    archive = GridArchive(bins=(8,))
    state = archive.init(jnp.full((), -1.0))
    assert (np.asarray(archive.sample(state, jax.random.key(0), 5)) == -1.0).all()
    state = archive.add(state, jnp.arange(3.0), jnp.array([-5.0, 0.0, 100.0]), jnp.array([[0.05], [0.5], [0.95]]))
    drawn = np.asarray(archive.sample(state, jax.random.key(1), 6000))
    values, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(values, [0.0, 1.0, 2.0])
    assert (np.abs(counts - 2000) < 200).all()
    keys = jax.random.split(jax.random.key(2), 4)
    one_by_one = [archive.sample(state, keys[i : i + 1], 1)[0] for i in range(4)]
    np.testing.assert_array_equal(archive.sample(state, keys, 4), one_by_one)


def test_scores_of_an_empty_archive() -> None:
    state = GRID.init(START)
    assert float(GRID.coverage(state)) == 0.0
    assert float(GRID.qd_score(state, -10.0)) == 0.0


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"low": (0.0, 0.0)}, ("low has 2", "high 1")),
        ({"low": (1.0,)}, ("low=1", "high=1")),
        ({"low": 3.0}, ("low", "list", "got 3.0")),
        ({"high": ()}, ("high", "list")),
        ({"bins": (3, 3)}, ("1 dimensions", "got [3, 3]")),
        ({"bins": (0,)}, ("bins", "positive")),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        GridArchive(**fields)


def test_descriptors_of_another_size_are_refused() -> None:
    with raises_naming(ValueError, "2 dimensions", "3 solutions", "shape [3, 2]", "got [3, 1]"):
        GRID.add(GRID.init(START), {"w": jnp.zeros((3, 2)), "b": jnp.zeros(3)}, jnp.zeros(3), jnp.zeros((3, 1)))


def _thresholds_by_hand(archive: Archive, thresholds: np.ndarray, candidates: tuple) -> np.ndarray:
    """CMA-MAE's batch update: each of the k accepted in a cell moves the threshold, all towards their mean."""
    _, fitness, descriptors = candidates
    cells = np.asarray(archive.cells(jnp.asarray(descriptors)))
    updated = thresholds.copy()
    for cell in range(archive.num_cells):
        valid = np.isfinite(fitness) & np.isfinite(descriptors).all(axis=1) & (cells == cell)
        accepted = fitness[valid & (fitness > thresholds[cell])]
        if len(accepted):
            kept = (1.0 - archive.threshold_rate) ** len(accepted)
            updated[cell] = kept * thresholds[cell] + (1.0 - kept) * accepted.mean()
    return updated


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: type(archive).__name__)
def test_thresholds_follow_what_they_accept(archive: Archive, rate: float) -> None:
    """Elites are the best candidates all the same."""
    soft = archive.replace(threshold_min=-2.0, threshold_rate=rate)
    state, elites, thresholds = soft.init(START), {}, np.full(soft.num_cells, -2.0)
    for seed in range(6):
        candidates = _candidates(seed, 30)
        thresholds = _thresholds_by_hand(soft, thresholds, candidates)
        elites = _filled_by_hand(soft, elites, candidates)
        state = add(soft, state, *candidates)
        np.testing.assert_allclose(state.thresholds, thresholds, rtol=1e-5, atol=1e-5)
        _check(soft, state, elites)


def test_the_best_candidate_is_the_elite_though_it_is_not_accepted() -> None:
    """The result archive of CMA-MAE has no thresholds: they steer the emitters only."""
    soft = GridArchive(bins=(1,), threshold_min=5.0, threshold_rate=0.5)
    state = soft.add(soft.init(jnp.zeros(())), jnp.ones(1), jnp.array([3.0]), jnp.array([[0.5]]))
    assert (float(state.fitness[0]), float(state.thresholds[0])) == (3.0, 5.0)
    state = soft.add(state, jnp.ones(1), jnp.array([9.0]), jnp.array([[0.5]]))
    state = soft.add(state, jnp.zeros(1), jnp.array([8.0]), jnp.array([[0.5]]))  # accepted, but not better
    assert (float(state.fitness[0]), float(state.solutions[0]), float(state.thresholds[0])) == (9.0, 1.0, 7.5)


@pytest.mark.parametrize("threshold_min", [None, -1.0])
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: type(archive).__name__)
def test_candidates_are_judged_by_the_archive_before_them(archive: Archive, threshold_min: float | None) -> None:
    """Several in one empty cell are all new; without a threshold a new cell is worth the fitness itself."""
    archive = archive.replace(threshold_min=threshold_min, threshold_rate=0.5)
    before = add(archive, archive.init(START), *_candidates(0, 5))
    solutions, fitness, descriptors = _candidates(1, 40)
    verdicts = jax.jit(lambda archive, *args: archive.judge(*args))(archive, before, fitness, descriptors)
    cells = np.asarray(archive.cells(jnp.asarray(descriptors)))
    bars = np.asarray(before.fitness if threshold_min is None else before.thresholds)
    for i, cell in enumerate(cells):
        status, improvement = int(verdicts.status[i]), float(verdicts.improvement[i])
        if not (np.isfinite(fitness[i]) and np.isfinite(descriptors[i]).all()):
            assert (status, improvement) == (0, -np.inf)
            continue
        is_empty = not bool(before.is_filled[cell])
        expected = 0 if fitness[i] <= bars[cell] else (2 if is_empty else 1)
        assert status == expected
        assert improvement == pytest.approx(fitness[i] - (bars[cell] if np.isfinite(bars[cell]) else 0.0))
    assert {0, 2} <= set(np.asarray(verdicts.status).tolist())
    after = add(archive, before, solutions, fitness, descriptors)
    entered = np.asarray(after.fitness) > np.asarray(before.fitness)
    if threshold_min is None:
        assert set(np.flatnonzero(entered)) == set(cells[np.asarray(verdicts.status) > 0])


def test_an_archive_without_thresholds_keeps_none() -> None:
    """Checkpoints of elites alone have no further entry."""
    state = GRID.init(START)
    assert state.thresholds is None
    assert add(GRID, state, *_candidates(0, 4)).thresholds is None
    with pytest.raises(TypeError):
        GRID.replace(threshold=1.0)

"""The archive of Dominated Novelty Search against its rule, one solution after another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.archives import ArchiveState, DominatedNoveltyArchive
from tests.support.errors import raises_naming

ARCHIVE = DominatedNoveltyArchive(low=(0.0, -2.0), high=(1.0, 2.0), bins=(4,), capacity=10)
START = {"w": jnp.full(2, -7.0)}
add = jax.jit(lambda archive, *args: archive.add(*args))


def _novelty(fitness: np.ndarray, descriptors: np.ndarray, k: int) -> list[float]:
    """Distances in units of the box: 1 wide, 4 high."""
    scaled = descriptors / np.array([1.0, 4.0])
    scores = []
    for i in range(len(fitness)):
        fitter = [j for j, value in enumerate(fitness) if value > fitness[i] or (value == fitness[i] and j < i)]
        nearest = sorted(float(np.linalg.norm(scaled[i] - scaled[j])) for j in fitter)[:k]
        scores.append(float(np.mean(nearest)) if nearest else np.inf)
    return scores


def _batch(seed: int, num: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    fitness = rng.normal(size=num).astype(np.float32)
    descriptors = rng.uniform((-0.5, -3.0), (1.5, 3.0), (num, 2)).astype(np.float32)
    return {"w": rng.normal(size=(num, 2)).astype(np.float32)}, fitness, descriptors


@pytest.mark.parametrize("k", [1, 3, 40])
def test_survivors_are_the_most_novel_ones(k: int) -> None:
    """With fewer neighbors than k at first, and empty slots, which never survive a solution."""
    archive = ARCHIVE.replace(num_neighbors=k)
    state, fitness, descriptors = archive.init(START), np.zeros(0, np.float32), np.zeros((0, 2), np.float32)
    for seed in range(6):
        solutions, new_fitness, new_descriptors = _batch(seed, 4)
        fitness, descriptors = np.append(fitness, new_fitness), np.concatenate([descriptors, new_descriptors])
        scores = _novelty(fitness, descriptors, k)
        best = sorted(np.argsort(scores)[::-1][:10].tolist())
        fitness, descriptors = fitness[best], descriptors[best]
        state = add(archive, state, solutions, new_fitness, new_descriptors)
        filled = np.asarray(state.is_filled)
        assert filled.sum() == len(fitness) == min(10, 4 * (seed + 1))
        assert sorted(np.asarray(state.fitness)[filled]) == sorted(fitness)
        for value, descriptor in zip(fitness, descriptors, strict=True):
            slot = int(np.flatnonzero(np.asarray(state.fitness) == value)[0])
            np.testing.assert_array_equal(state.descriptors[slot], descriptor)


def test_the_fittest_solution_is_the_most_novel_one() -> None:
    """It has no fitter neighbor: its novelty is infinite, not a missing number that happens to be sorted last."""
    fitness = jnp.array([1.0, 5.0, -jnp.inf, 2.0])
    novelty = np.asarray(ARCHIVE.novelty(fitness, jnp.zeros((4, 2))))
    np.testing.assert_array_equal(novelty, [0.0, np.inf, -np.inf, 0.0])
    state = ARCHIVE.init(START)
    for seed in range(20):
        before, state = state, add(ARCHIVE, state, *_batch(seed, 4))
        assert float(ARCHIVE.best(state)[1]) >= float(ARCHIVE.best(before)[1])


def test_equal_solutions_compete() -> None:
    """The first counts as fitter than the others, so that copies of one solution do not fill the archive."""
    archive = ARCHIVE.replace(capacity=3)
    descriptors = np.array([[0.5, 0.0]] * 3 + [[0.1, 0.0], [0.9, 0.0]], np.float32)
    fitness = np.array([1.0, 1.0, 1.0, 0.0, 0.0], np.float32)
    state = archive.add(archive.init(START), {"w": jnp.zeros((5, 2))}, jnp.asarray(fitness), jnp.asarray(descriptors))
    np.testing.assert_allclose(sorted(np.asarray(state.descriptors)[:, 0]), [0.1, 0.5, 0.9], rtol=1e-6)


def test_one_of_the_fittest_survives_ties() -> None:
    state = ARCHIVE.init(START)
    for seed in range(8):  # four new champions with equal behavior, more of them than free slots in the end
        solutions, _, descriptors = _batch(seed, 4)
        state = add(ARCHIVE, state, solutions, np.full(4, seed, np.float32), descriptors[:1].repeat(4, axis=0))
        assert float(ARCHIVE.best(state)[1]) == seed
    fitness = np.random.default_rng(0).integers(0, 3, 12).astype(np.float32)
    descriptors = _batch(0, 12)[2]
    np.testing.assert_allclose(ARCHIVE.novelty(fitness, descriptors), _novelty(fitness, descriptors, 3), rtol=1e-5)


def test_what_is_not_finite_is_ignored() -> None:
    solutions, fitness, descriptors = _batch(0, 6)
    fitness[0], fitness[1], descriptors[2, 0] = np.nan, np.inf, np.nan
    state = add(ARCHIVE, ARCHIVE.init(START), solutions, fitness, descriptors)
    assert sorted(np.asarray(state.fitness)[np.asarray(state.is_filled)]) == sorted(fitness[3:])
    for leaf in (state.descriptors, state.solutions["w"]):
        assert np.isfinite(np.asarray(leaf)).all()


def test_scores_are_those_of_the_grid() -> None:
    """Several solutions of one cell count once, with the best of them."""
    descriptors = jnp.array([[0.1, -1.9], [0.15, -1.8], [0.9, 1.9], [5.0, 9.0]])
    fitness = jnp.array([1.0, 3.0, 10.0, 4.0])
    state = ARCHIVE.add(ARCHIVE.init(START), {"w": jnp.zeros((4, 2))}, fitness, descriptors)
    assert int(state.is_filled.sum()) == 4
    assert float(ARCHIVE.qd_score(state)) == 13.0
    assert float(ARCHIVE.qd_score(state, -1.0)) == 15.0
    assert float(ARCHIVE.coverage(state)) == 2 / 16
    empty = ARCHIVE.init(START)
    assert float(ARCHIVE.qd_score(empty)) == float(ARCHIVE.coverage(empty)) == 0.0


def test_every_slot_with_a_solution_is_sampled() -> None:
    """One archive has fewer slots than cells, the other has more."""
    for capacity in (4, 40):
        archive = ARCHIVE.replace(capacity=capacity)
        state = archive.add(archive.init(START), *_batch(1, 4))
        samples = np.asarray(archive.sample(state, jax.random.key(0), 200)["w"])
        assert len(np.unique(samples, axis=0)) == 4
        assert (samples != -7.0).all()


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"capacity": 0}, ("capacity", "got 0")),
        ({"num_neighbors": 0}, ("num_neighbors", "got 0")),
        ({"threshold_min": 1.0}, ("threshold_min=1.0", "grid")),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        DominatedNoveltyArchive(**fields)
    state: ArchiveState = ARCHIVE.init(START)
    with raises_naming(ValueError, "no cells", "emitter"):
        ARCHIVE.judge(state, jnp.zeros(1), jnp.zeros((1, 2)))

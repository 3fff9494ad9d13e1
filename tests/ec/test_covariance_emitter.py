"""Emitters against one generation of CMA-ME and CMA-MAE by hand, and the sphere function with linear projections."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.learning.sphere import Sphere
from evorl.ec.archives import Archive, ArchiveState, CentroidArchive, GridArchive
from evorl.ec.covariance_emitter import CovarianceEmitter
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical, static_fractions

BOX = {"low": (-10.0, -10.0), "high": (10.0, 10.0)}
GRID = GridArchive(**BOX, bins=(5,))
SOFT = GRID.replace(threshold_min=-14.0, threshold_rate=0.1)
NUM_EMITTERS, SHARE, N = 3, 8, 6
POP_SIZE = NUM_EMITTERS * SHARE
RANKINGS = ("imp", "2imp", "obj", "2obj", "rd", "2rd")
ask = jax.jit(CovarianceEmitter.ask, static_argnums=2)
tell = jax.jit(CovarianceEmitter.tell)


def _evaluated(solutions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Fitness with both signs, and descriptors that fill a few of the cells."""
    return 2.0 - jnp.square(solutions - 1.0).sum(axis=1), 4.0 * solutions[:, :2]


def _emitter(**changes: Any) -> CovarianceEmitter:
    return CovarianceEmitter(**{"num_emitters": NUM_EMITTERS, **changes})


def _start(emitter: CovarianceEmitter, archive: Archive, seed: int = 0) -> tuple[PyTreeDict, ArchiveState]:
    """Emitters that start apart, and an archive with some elites."""
    starts = jax.random.normal(jax.random.key(seed), (NUM_EMITTERS, N))
    elites = jax.random.normal(jax.random.key(seed + 1), (12, N))
    state = emitter.init(starts, jax.random.key(seed + 2), POP_SIZE, 2)
    return state, archive.add(archive.init(jnp.zeros(N)), elites, *_evaluated(elites))


def _generation(
    emitter: CovarianceEmitter, archive: Archive, state: PyTreeDict, before: ArchiveState, spoil: Any = None
):
    """Solutions, fitness, descriptors, the archive after them, and the emitters' next state."""
    solutions = ask(emitter, state, POP_SIZE)
    fitness, descriptors = _evaluated(solutions)
    if spoil is not None:
        fitness, descriptors = spoil(fitness, descriptors)
    after = archive.add(before, solutions, fitness, descriptors)
    key = jax.random.key(9)
    return (
        solutions,
        fitness,
        descriptors,
        after,
        tell(emitter, state, key, archive, before, after, fitness=fitness, descriptors=descriptors),
    )


def _by_hand(emitter: CovarianceEmitter, archive: Archive, before: ArchiveState, direction, fitness, descriptors):
    """Order of an emitter's individuals, best first, and the number of accepted ones."""
    bars = np.asarray(before.fitness if before.thresholds is None else before.thresholds)
    elites = np.asarray(before.fitness)
    rows = []
    for i, (value, descriptor) in enumerate(zip(fitness, descriptors, strict=True)):
        cell = int(archive.cells(jnp.asarray(descriptor)[None])[0])
        status = 0 if value <= bars[cell] else (1 if np.isfinite(elites[cell]) else 2)
        improvement = value - (bars[cell] if np.isfinite(bars[cell]) else 0.0)
        along = float(descriptor @ (np.asarray(direction) / 20.0))
        score = {"imp": improvement, "obj": value, "rd": along}[emitter.ranking[-3:].lstrip("2")]
        entered = (status > 0) * (emitter.selection == "filter")
        rows.append((entered, status if emitter.ranking[0] == "2" else 0, score, i, status))
    order = [row[3] for row in sorted(rows, reverse=True)]
    return order, sum(row[4] > 0 for row in rows)


@pytest.mark.parametrize("archive", [GRID, SOFT], ids=["elites", "thresholds"])
@pytest.mark.parametrize("selection", ["filter", "mu"])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_a_generation_is_the_published_one(ranking: Any, selection: Any, archive: Archive) -> None:
    """Mean and covariance of each emitter after one generation, from positive weights only."""
    emitter = _emitter(ranking=ranking, selection=selection, restart="basic")
    state, before = _start(emitter, archive)
    solutions, fitness, descriptors, _, after = _generation(emitter, archive, state, before)
    assert not np.asarray(after.restarts).any()
    counts = set()
    for e in range(NUM_EMITTERS):
        rows = slice(e * SHARE, (e + 1) * SHARE)
        x = np.asarray(solutions[rows], np.float64)
        given = np.asarray(fitness[rows]), np.asarray(descriptors[rows])
        order, accepted = _by_hand(emitter, archive, before, state.directions[e], *given)
        parents = accepted if selection == "filter" else SHARE // 2
        assert parents > 0
        counts.add(parents)
        weights = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
        weights = weights / weights.sum()
        mean = np.asarray(state.searches.mean[e], np.float64)
        np.testing.assert_allclose(after.searches.mean[e], weights @ x[order[:parents]], rtol=1e-4, atol=1e-5)
        mu_eff = 1 / (weights**2).sum()
        c_1 = 2 / ((N + 1.3) ** 2 + mu_eff)
        c_mu = min(1 - c_1, 2 * (0.25 + mu_eff + 1 / mu_eff - 2) / ((N + 2) ** 2 + mu_eff))
        steps = (x[order[:parents]] - mean) / 0.5
        path = np.asarray(after.searches.covariance_path[e], np.float64)
        c_c = (4 + mu_eff / N) / (N + 4 + 2 * mu_eff / N)
        stalled = 0.0 if np.abs(path).max() > 0 else c_1 * c_c * (2 - c_c)
        covariance = (1 - c_1 - c_mu + stalled) * np.eye(N) + c_1 * np.outer(path, path)
        covariance += c_mu * (steps * weights[:, None]).T @ steps
        factor = np.asarray(after.searches.factor[e], np.float64)
        change = np.asarray(after.searches.change[e], np.float64)
        np.testing.assert_allclose(factor @ change @ factor.T, covariance, rtol=2e-3, atol=2e-3)
    assert len(counts) > 1 or selection == "mu"  # numbers of parents differ within one program


def test_parents_are_those_that_entered_even_if_others_rank_higher() -> None:
    """The fittest individuals improve nothing, because their cells have better elites."""
    emitter = _emitter(ranking="obj", selection="filter", restart="basic")
    state, before = _start(emitter, GRID)
    solutions = ask(emitter, state, POP_SIZE)
    fitness, descriptors = jnp.arange(1.0, POP_SIZE + 1), jnp.zeros((POP_SIZE, 2))
    descriptors = descriptors.at[::SHARE].set(9.0)  # the least fit of each emitter is alone in an empty cell
    before = before.replace(fitness=jnp.full_like(before.fitness, 1e3).at[-1].set(-jnp.inf))
    after = GRID.add(before, solutions, fitness, descriptors)
    adapted = tell(emitter, state, jax.random.key(0), GRID, before, after, fitness=fitness, descriptors=descriptors)
    np.testing.assert_allclose(adapted.searches.mean, solutions[::SHARE], rtol=1e-5)


@pytest.mark.parametrize("restart", ["no_improvement", "basic"])
def test_an_emitter_without_accepted_individuals_restarts_at_an_elite(restart: Any) -> None:
    emitter = _emitter(restart=restart)
    state, before = _start(emitter, GRID)

    def worse(fitness: jax.Array, descriptors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return fitness.at[:SHARE].add(-1e4), descriptors.at[:SHARE].set(0.0)

    before = GRID.add(before, jnp.zeros((1, N)), jnp.zeros(1), jnp.zeros((1, 2)))
    _, _, _, archived, after = _generation(emitter, GRID, state, before, worse)
    restarts = np.asarray(after.restarts)
    assert restarts.tolist() == [int(restart == "no_improvement"), 0, 0]
    if restart == "basic":
        # Without parents the distribution is the same; the next generation is another one.
        assert_identical(after.searches.mean[0], state.searches.mean[0])
        assert int(after.searches.generation[0]) == 1
        return
    elites = np.asarray(archived.solutions)[np.asarray(archived.is_filled)]
    assert (elites == np.asarray(after.searches.mean[0])).all(axis=1).any()
    assert float(after.searches.sigma[0]) == 0.5
    assert int(after.searches.generation[0]) == 0
    np.testing.assert_array_equal(after.searches.factor[0], np.eye(N))
    assert (after.directions[0] != state.directions[0]).all()
    np.testing.assert_array_equal(after.directions[1:], state.directions[1:])
    again = ask(emitter, after, POP_SIZE)[:SHARE]
    assert (np.asarray(again) - elites.mean(axis=0) != np.asarray(ask(emitter, state, POP_SIZE)[:SHARE])).all()


@pytest.mark.parametrize(
    "converged",
    [
        {"sigma": jnp.full(NUM_EMITTERS, 1e-12)},
        {"factor": jnp.stack([jnp.diag(jnp.geomspace(1e-3, 1e3, N))] * NUM_EMITTERS),
         "inverse": jnp.stack([jnp.diag(jnp.geomspace(1e3, 1e-3, N))] * NUM_EMITTERS)},
    ],
    ids=["extent", "condition"],
)  # fmt: skip
def test_a_converged_search_restarts(converged: dict[str, jax.Array]) -> None:
    emitter = _emitter(restart="basic", selection="mu")
    state, before = _start(emitter, GRID)
    unconverged = _generation(emitter, GRID, state, before)[-1]
    assert not np.asarray(unconverged.restarts).any()
    state = state.replace(searches=state.searches.replace(**converged))
    assert np.asarray(_generation(emitter, GRID, state, before)[-1].restarts).all()


def test_flat_rankings_restart() -> None:
    emitter = _emitter(restart="basic", selection="mu", ranking="obj")
    state, before = _start(emitter, GRID)

    def flat(fitness: jax.Array, descriptors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return fitness.at[:SHARE].set(-3.0), descriptors

    assert np.asarray(_generation(emitter, GRID, state, before, flat)[-1].restarts).tolist() == [1, 0, 0]


@pytest.mark.parametrize("selection", ["filter", "mu"])
def test_failures_are_no_parents(selection: Any) -> None:
    emitter = _emitter(ranking="obj", selection=selection, restart="basic")
    state, before = _start(emitter, GRID)

    def broken(fitness: jax.Array, descriptors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return fitness.at[::2].set(jnp.nan), descriptors.at[1, 0].set(jnp.inf)

    solutions, _, _, _, after = _generation(emitter, GRID, state, before, broken)
    assert np.isfinite(np.asarray(after.searches.mean)).all()
    survivors = np.asarray(solutions).reshape(NUM_EMITTERS, SHARE, N)[:, 1::2]
    inside = np.asarray(after.searches.mean)[:, None] - survivors
    assert (np.abs(inside).min(axis=1) < np.ptp(survivors, axis=1) + 1e-5).all()
    for e in range(NUM_EMITTERS):
        weights = np.linalg.lstsq(
            np.vstack([survivors[e].T, np.ones(SHARE // 2)]), np.append(after.searches.mean[e], 1.0), rcond=None
        )[0]
        np.testing.assert_allclose(survivors[e].T @ weights, after.searches.mean[e], atol=1e-4)

    def all_broken(fitness: jax.Array, descriptors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return fitness * jnp.nan, descriptors

    _, _, _, _, after = _generation(emitter, GRID, state, before, all_broken)
    assert np.isfinite(np.asarray(ask(emitter, after, POP_SIZE))).all()


def test_numbers_are_data() -> None:
    assert static_fractions(_emitter()) == set()


@pytest.mark.parametrize(
    ("emitter", "settings"),
    [
        (CovarianceEmitter(3), {}),
        (CovarianceEmitter(3, ranking="obj"), {}),
        (CovarianceEmitter(3, ranking="2rd", optimizer="sep_cmaes"), {}),
        (CovarianceEmitter(3, ranking="imp", selection="mu", restart="basic"), {"threshold_min": 0.0}),
    ],
    ids=["imp", "obj", "rd, diagonal", "thresholds"],
)
def test_the_gate_of_qdax(emitter: CovarianceEmitter, settings: dict[str, float]) -> None:
    """20 coordinates, 50 x 50 cells, 3 emitters of 36: QDax asks for coverage 25 %, fitness 95 and QD 50,000."""
    env, extent = Sphere(20), 10 * 5.12
    archive = GridArchive(low=(-extent,) * 2, high=(extent,) * 2, bins=(50,), **settings)
    pop_size = 36 * emitter.num_emitters

    @functools.partial(jax.jit, static_argnums=1)
    def search(key: jax.Array, num_generations: int) -> ArchiveState:
        def generation(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
            state, before = carry
            solutions = emitter.ask(state, pop_size)
            ends = jax.vmap(env.step, (None, 0))(env.reset(key), solutions)
            judged = ends.reward, ends.info.metrics.measures
            after = archive.add(before, solutions, *judged)
            return (
                emitter.tell(state, key, archive, before, after, fitness=judged[0], descriptors=judged[1]),
                after,
            ), None

        state = emitter.init(jnp.zeros((emitter.num_emitters, 20)), key, pop_size, 2)
        keys = jax.random.split(key, num_generations)
        return jax.lax.scan(generation, (state, archive.init(jnp.zeros(20))), keys)[0][1]

    state = search(jax.random.key(0), 2000)
    assert float(archive.coverage(state)) > 0.25
    assert float(archive.best(state)[1]) > 95.0
    assert float(archive.qd_score(state)) > 50_000


def test_any_archive_with_cells_is_searched() -> None:
    archive = CentroidArchive(**BOX, num_centroids=9)
    state, before = _start(_emitter(), archive)
    assert not np.asarray(_generation(_emitter(), archive, state, before)[-1].restarts).all()


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"num_emitters": 0}, ("num_emitters", "got 0")),
        ({"negative_weights": True}, ("negative_weights", "selection=mu")),
        ({"negative_weights": True, "selection": "mu", "optimizer": "sep_cmaes"}, ("negative_weights", "cmaes")),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        _emitter(**fields)
    for pop_size in (POP_SIZE + 1, 3 * NUM_EMITTERS):
        with raises_naming(ValueError, f"pop_size={pop_size}", "num_emitters=3"):
            _emitter().search(pop_size)

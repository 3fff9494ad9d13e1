"""Optimizers reach 1e-6 in 20 dimensions with as few evaluations as evosax, CMA-ES in any rotation."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from benchmarks.learning.evolution_budgets import PROBLEMS, best_so_far, cases, evaluations_needed

# Evaluations until the target, or the final cost, as printed by the command: medians of 11 seeds, evosax 0.3.2.
# optimizer  of        sphere   Rosenbrock   rotated ellipsoid   ellipsoid
# CMAES      evorl      4,288       22,752              13,920      14,240
#            evosax     4,224       22,880              14,144      14,048
# SepCMAES   evorl      3,200   (cost 8.7)        (cost 2,000)       5,952
#            evosax     4,160    (cost 10)        (cost 2,800)      17,984
# OpenES     evorl     18,560   (cost 8.1)          (cost 900)  (cost 480)
#            evosax    18,752   (cost 7.9)          (cost 800)  (cost 650)
# VanillaES  evorl      8,480    (cost 17)       (cost 11,000)  (cost 13,000)
#            evosax    20,160    (cost 16)        (cost 8,200)  (cost 8e-5), its SimpleES, which adapts deviations
# ARS        evorl  (cost 0.008) (cost 16)        (cost 9,300)  (cost 7,800)
#            evosax (cost 0.009) (cost 16)        (cost 8,300)  (cost 8,100)
# SepCEM     evorl     32,000    (cost 16)        (cost 2,800)  (cost 5e-4); not in evosax
BUDGETS = {
    "CMAES": {"sphere": 4_224, "Rosenbrock": 22_880, "rotated ellipsoid": 14_144, "ellipsoid": 14_048},
    "SepCMAES": {"sphere": 4_160, "ellipsoid": 17_984},
    "OpenES": {"sphere": 18_752},
    "VanillaES": {"sphere": 20_160},
    "ARS": {},
    "SepCEM": {"sphere": 32_000},
}
TOLERATED = 1.2
# Without covariance, or without adaptation, so few generations do not solve a bent valley or rotated axes.
BOUNDS = {
    "SepCMAES": {"Rosenbrock": 12.0, "rotated ellipsoid": 4e3},
    "OpenES": {"Rosenbrock": 12.0, "rotated ellipsoid": 2e3},
    "VanillaES": {"Rosenbrock": 20.0, "rotated ellipsoid": 2e4},
    "ARS": {"sphere": 0.02, "Rosenbrock": 20.0, "rotated ellipsoid": 2e4},
    "SepCEM": {"Rosenbrock": 20.0, "rotated ellipsoid": 6e3},
}
PROBLEMS_OF_ALL = ("sphere", "Rosenbrock", "rotated ellipsoid")
KEYS = jax.random.split(jax.random.key(1), 9)


@functools.cache
def _outcome(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return per problem the evaluations that each seed needed and its final cost."""
    case = cases()[name]
    problems = tuple(PROBLEMS) if "ellipsoid" in BUDGETS[name] else PROBLEMS_OF_ALL
    best = best_so_far(case.optimizer, problems, KEYS, case.generations)
    needed = evaluations_needed(best, case.optimizer.pop_size)
    return dict(zip(problems, needed)), dict(zip(problems, np.asarray(best)[..., -1]))


@pytest.mark.parametrize("name", BUDGETS)
def test_evaluations_until_the_target(name: str) -> None:
    needed, left = _outcome(name)
    assert {*BUDGETS[name], *BOUNDS.get(name, {})} == needed.keys()
    for problem, budget in BUDGETS[name].items():
        assert np.median(needed[problem]) <= TOLERATED * budget, problem
    for problem, bound in BOUNDS.get(name, {}).items():
        assert np.median(left[problem]) < bound, problem


def test_cma_es_does_not_know_directions() -> None:
    needed, _ = _outcome("CMAES")
    along, across = needed["ellipsoid"], needed["rotated ellipsoid"]
    spread = np.sqrt(np.var(along) / len(along) + np.var(across) / len(across))
    assert abs(across.mean() - along.mean()) < max(3 * spread, 0.03 * along.mean())
    # Adapting only variances is faster along the axes, but does not solve the rotated problem.
    needed, _ = _outcome("SepCMAES")
    assert np.isfinite(needed["ellipsoid"]).all()
    assert np.isinf(needed["rotated ellipsoid"]).all()

"""Contract of all evolutionary optimizers. The test of an optimizer defines how to build it and inherits the rest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec import EvoOptimizer
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.populations import SOLUTION, flat
from tests.support.small_workflows import assert_close, assert_identical, static_fractions

KEY = jax.random.key(3)
POP_SIZE = 8
OTHERS = PyTreeDict({name: jnp.stack([x + 5.0, x - 7.0]) for name, x in SOLUTION.items()})
OTHER_ROWS = jnp.array([POP_SIZE - 2, POP_SIZE - 1])
TARGET = 1.0  # optimum of the sphere in every coordinate


def sphere(population: Any, num_objectives: int) -> jax.Array:
    """Return fitness ``[P]`` or objectives ``[P, M]``: negative squared distances to ``TARGET``, ``TARGET + 1``, ..."""
    rows = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(population)]
    numbers = jnp.concatenate(rows, axis=1)
    objectives = [-jnp.square(numbers - TARGET - shift).sum(axis=1) for shift in range(num_objectives)]
    return objectives[0] if num_objectives == 1 else jnp.stack(objectives, axis=-1)


class EvoOptimizerContract:
    """Inherit as ``Test...`` and define ``make``; set the attributes where the defaults do not fit."""

    num_objectives = 1
    num_generations = 30  # after which the sphere's solution has improved
    takes_others = False  # the optimizer accepts external solutions
    shaping: frozenset[str] = frozenset()  # fraction fields that change the program
    chunk_tolerance = 0.0  # between a population in chunks and the whole population

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        """Build the optimizer under test."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def runs(cls) -> dict[str, Any]:
        """Return the results of ``run_three``."""
        return cls.run_three()

    @classmethod
    def run_three(cls) -> dict[str, Any]:
        """Run ``generations`` for three searches under ``vmap``, the first two with equal keys."""
        optimizer = cls.make(POP_SIZE)
        keys = jnp.stack([KEY, KEY, jax.random.key(4)])
        return jax.jit(jax.vmap(lambda key: cls.generations(optimizer, key)))(keys)

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, runs: dict[str, Any]) -> dict[str, Any]:
        """Return the results of the first search."""
        return jax.tree.map(lambda x: x[0], runs)

    @classmethod
    def generations(cls, optimizer: EvoOptimizer, key: jax.Array) -> dict[str, Any]:
        """Run two generations and return all checked results."""
        first = optimizer.init(SOLUTION, key)
        population = optimizer.ask(first)
        fitness = sphere(population, cls.num_objectives)
        second = optimizer.tell(first, fitness)
        failed = optimizer.tell(first, fitness.at[2].set(jnp.nan))
        step = optimizer.group_size
        cuts = ((0, step), (step, POP_SIZE - 2 * step), (POP_SIZE - step, step))  # minimal chunks at both ends
        parts = [optimizer.ask(second, first, count) for first, count in cuts]
        return {
            "first": first,
            "population": population,
            "second": second,
            "next": optimizer.ask(second),
            "parts": jax.tree.map(lambda *rows: jnp.concatenate(rows), *parts),
            "beyond": optimizer.ask(second, POP_SIZE, step),
            "solution": optimizer.solution(second),
            "failed": (optimizer.solution(failed), optimizer.ask(failed)),
            "injected": cls.with_others(optimizer, second) if cls.takes_others else (),
        }

    @classmethod
    def with_others(cls, optimizer: EvoOptimizer, state: PyTreeDict) -> dict[str, Any]:
        """Return populations after injected solutions, whole and in part, and after an injection that replaces no
        individual.
        """
        injected = optimizer.inject(state, OTHERS, OTHER_ROWS)
        step = optimizer.group_size
        later = optimizer.tell(injected, sphere(optimizer.ask(injected), cls.num_objectives))
        assert jax.tree.structure(optimizer.inject(later, OTHERS, OTHER_ROWS)) == jax.tree.structure(injected)
        return {
            "whole": optimizer.ask(injected),
            "part": optimizer.ask(injected, POP_SIZE - step, step),
            "unchanged": optimizer.ask(optimizer.inject(state, OTHERS, jnp.full(2, POP_SIZE))),
        }

    def test_a_population_is_solutions_with_an_axis(self, run: dict) -> None:
        for population in (run["population"], run["next"]):
            assert jax.tree.structure(population) == jax.tree.structure(run["solution"])
            for rows, leaf in zip(jax.tree.leaves(population), jax.tree.leaves(SOLUTION), strict=True):
                assert (rows.shape, rows.dtype) == ((POP_SIZE, *leaf.shape), leaf.dtype)
            assert np.isfinite(flat(population, 1)).all()
        assert len(np.unique(flat(run["population"], 1), axis=0)) == POP_SIZE
        for leaf, like in zip(jax.tree.leaves(run["solution"]), jax.tree.leaves(SOLUTION), strict=True):
            assert (leaf.shape, leaf.dtype) == (like.shape, like.dtype)

    def test_the_state_keeps_its_types(self, run: dict) -> None:
        before, after = run["first"], run["second"]
        assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(lambda x: (x.shape, x.dtype), after)

    def test_a_population_in_parts_is_the_whole(self, run: dict) -> None:
        """Chunks of a population equal the whole; individuals past the last one are ignored."""
        assert_close(run["parts"], run["next"], self.chunk_tolerance)
        assert flat(run["beyond"], 1).shape[0] in (1, 2)

    def test_the_same_key_is_the_same_search(self, runs: dict) -> None:
        one, same = (jax.tree.map(lambda x, i=i: x[i], runs) for i in range(2))
        assert_identical(same, one)

    def test_seeds_and_generations_differ(self, runs: dict, run: dict) -> None:
        """Seeds and generations have different individuals, except that the first may be the start of the search."""
        for name in ("population", "next"):
            other = flat(jax.tree.map(lambda x: x[2], runs[name]), 1)
            assert (flat(run[name], 1)[1:] != other[1:]).mean() > 0.5
        assert (flat(run["population"], 1)[1:] != flat(run["next"], 1)[1:]).any(axis=1).any()

    def test_numbers_are_leaves(self) -> None:
        optimizer = self.make(POP_SIZE)
        assert static_fractions(optimizer) <= self.shaping
        assert hash(jax.tree.structure(self.make(POP_SIZE))) == hash(jax.tree.structure(optimizer))

    def test_it_climbs_a_sphere(self) -> None:
        optimizer = self.make(4 * POP_SIZE)

        @jax.jit
        def search(key: jax.Array) -> jax.Array:
            def generation(state: PyTreeDict, _: None) -> tuple[PyTreeDict, None]:
                return optimizer.tell(state, sphere(optimizer.ask(state), self.num_objectives)), None

            state, _ = jax.lax.scan(generation, optimizer.init(SOLUTION, key), length=self.num_generations)
            return sphere(jax.tree.map(lambda x: x[None], optimizer.solution(state)), 1)[0]

        start = sphere(jax.tree.map(lambda x: x[None], SOLUTION), 1)[0]
        assert float(search(KEY)) > 0.7 * float(start)  # both are negative

    def test_a_failed_individual_spoils_nothing(self, run: dict) -> None:
        solution, population = run["failed"]
        assert np.isfinite(flat(solution)).all()
        assert np.isfinite(flat(population, 1)).all()

    def test_solutions_from_outside(self, run: dict) -> None:
        """External solutions replace individuals bit for bit, also in chunks; other optimizers raise an error."""
        optimizer = self.make(POP_SIZE)
        assert (optimizer.num_replaceable > 0) == self.takes_others
        if not self.takes_others:
            with raises_naming(ValueError, type(optimizer).__name__, "injection"):
                optimizer.inject(run["second"], OTHERS, OTHER_ROWS)
            return
        population, part = (flat(run["injected"][name], 1) for name in ("whole", "part"))
        np.testing.assert_array_equal(population[-2:], flat(OTHERS, 1))
        np.testing.assert_array_equal(population[:-2], flat(run["next"], 1)[:-2])
        np.testing.assert_array_equal(part, population[-len(part) :])
        assert_identical(run["injected"]["unchanged"], run["next"])

"""Strategies with low-rank noise equal their formulas on explicit populations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.ec import noise
from evorl.ec.low_rank import LowRankStrategy
from evorl.ec.optimizers import ARS, OpenES, VanillaES
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.low_rank import PerturbedMatrix, explicit
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.errors import raises_naming
from tests.support.populations import FITNESS, POP_SIZE, flat, later, parts_of
from tests.support.small_workflows import assert_close, assert_identical

KEY = jax.random.key(7)
# Two matrices of one shape detect factors that are shared between layers.
SOLUTION = {"bias": jnp.zeros(3), "first": jnp.ones((4, 3)), "second": jnp.zeros((4, 3)), "kernel": jnp.ones((2, 2, 3))}
MATRICES = ("first", "second")
OPTIMIZERS = {"openes": OpenES, "vanilla_es": VanillaES, "ars": ARS}


class TestContract(EvoOptimizerContract):
    takes_others = True

    @staticmethod
    def make(pop_size: int) -> LowRankStrategy:
        return OpenES(pop_size=pop_size, rank=2)


class TestUnpairedContract(EvoOptimizerContract):
    takes_others = True

    @staticmethod
    def make(pop_size: int) -> LowRankStrategy:
        return VanillaES(pop_size=pop_size, rank=1)


class TestDirectionsContract(EvoOptimizerContract):
    @staticmethod
    def make(pop_size: int) -> LowRankStrategy:
        return ARS(pop_size=pop_size, rank=1)


def _check_separate(rows: dict[str, jax.Array]) -> None:
    """Assert that no two matrices of an individual, and no two individuals, have equal or proportional noise."""
    matrices = np.concatenate([np.asarray(rows[name]).reshape(-1, 12) for name in MATRICES])
    directions = matrices / np.linalg.norm(matrices, axis=1, keepdims=True)
    cosines = np.abs(directions @ directions.T) - np.eye(len(matrices))
    assert cosines.max() < 0.999


def test_every_matrix_of_every_individual_has_its_own_factors() -> None:
    rows = {name: x.matrix() for name, x in noise.noise_rows(KEY, SOLUTION, 0, 20, 1).items() if name in MATRICES}
    _check_separate(rows)
    with pytest.raises(AssertionError):
        _check_separate(rows | {"second": rows["first"]})
    both = np.concatenate([rows[name].reshape(20, -1) for name in MATRICES], axis=1)
    assert np.abs(np.corrcoef(both.T)[:12, 12:]).max() < 0.9


def test_leaves_that_are_not_matrices_have_full_noise() -> None:
    low, full = (noise.noise_rows(KEY, SOLUTION, 2, 3, rank) for rank in (1, None))
    for name in ("bias", "kernel"):
        assert_identical(low[name], full[name])
    for name in MATRICES:
        np.testing.assert_array_equal(np.linalg.matrix_rank(low[name].matrix()), 1)
        np.testing.assert_array_equal(np.linalg.matrix_rank(full[name]), 3)


def test_mirrored_individuals_are_opposite() -> None:
    rows = explicit_noise(noise.mirrored_rows(KEY, SOLUTION, 0, POP_SIZE, 2))
    np.testing.assert_array_equal(flat(rows, 1)[1::2], -flat(rows, 1)[0::2])
    assert np.abs(flat(rows, 1)).min() > 0


def explicit_noise(rows: Any) -> Any:
    return jax.tree.map(lambda x: x.matrix() if noise.is_noise(x) else x, rows, is_leaf=noise.is_noise)


@pytest.mark.parametrize("block_numbers", [1, 60, 1 << 19])  # blocks of 1, 2 and all individuals
@pytest.mark.parametrize("mirrored", [True, False])
def test_sums_equal_explicit_ones_in_any_blocks(
    mirrored: bool, block_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "BLOCK_NUMBERS", block_numbers)
    rows_fn, sums_fn = (
        (noise.mirrored_rows, noise.mirrored_sums) if mirrored else (noise.noise_rows, noise.weighted_sums)
    )
    rows = flat(explicit_noise(rows_fn(KEY, SOLUTION, 0, POP_SIZE, 2)), 1)
    (sums,) = sums_fn(KEY, SOLUTION, (jnp.asarray(FITNESS), 1), rank=2)
    assert jax.tree.structure(sums) == jax.tree.structure(SOLUTION)
    np.testing.assert_allclose(flat(sums), np.asarray(FITNESS, np.float64) @ rows, rtol=1e-5, atol=1e-5)


def test_squares_of_low_rank_noise_are_refused() -> None:
    with raises_naming(ValueError, "power 1", "got 2", "rank=None"):
        noise.weighted_sums(KEY, SOLUTION, (jnp.asarray(FITNESS), 2), rank=2)


@pytest.mark.parametrize("num_devices", [2, 4])
def test_devices_share_individuals(num_devices: int) -> None:
    """Six individuals are not divisible by four devices, nor their three pairs by two."""
    mesh = jax.make_mesh((num_devices,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    optimizer = OpenES(pop_size=POP_SIZE, rank=1)
    state = optimizer.init(SOLUTION, KEY)

    def tell(fitness: jax.Array) -> Any:
        return optimizer.tell(state, fitness).mean

    whole, fitness = PartitionSpec(), jnp.asarray(FITNESS)
    on_mesh = jax.jit(jax.shard_map(tell, mesh=mesh, in_specs=(whole,), out_specs=whole, check_vma=False))
    assert_close(on_mesh(fitness), jax.jit(tell)(fitness), 1e-5)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_factors_are_the_individuals(kind: str) -> None:
    """Individuals are ``mean + std * E`` with the noise of ``noise_rows``, and any part of them can be requested."""
    optimizer = OPTIMIZERS[kind](pop_size=POP_SIZE, rank=2)
    state = optimizer.init(SOLUTION, KEY).replace(generation=jnp.asarray(3, jnp.int32))
    factored, whole = optimizer.ask_factored(state), optimizer.ask(state)
    assert {name for name, x in factored.items() if isinstance(x, PerturbedMatrix)} == set(MATRICES)
    assert_identical(explicit(factored), whole)
    rows = flat(explicit_noise(optimizer.noise(state, 0, POP_SIZE)), 1)
    np.testing.assert_allclose(flat(whole, 1), flat(state.mean) + float(optimizer.scale(state)) * rows, atol=1e-6)
    assert_identical(optimizer.ask_factored(state, 2, 2)["first"].noise.left, factored["first"].noise.left[2:4])


@pytest.mark.parametrize("mirror_sampling", [True, False])
def test_an_update_is_the_explicit_sum(mirror_sampling: bool) -> None:
    """One step adds ``lr / (P std) sum_i F_i E_i`` with the noise of the requested individuals, of full rank."""
    optimizer = OpenES(
        pop_size=POP_SIZE, rank=1, mirror_sampling=mirror_sampling, optimizer_name="sgd", fitness_shaping_fn=lambda x: x
    )
    state = later(optimizer)
    mean, std, rows = parts_of(optimizer, state)
    expected = mean + float(optimizer.lr_schedule.value_at(state.generation)) * FITNESS @ rows / (POP_SIZE * std)
    np.testing.assert_allclose(flat(optimizer.tell(state, jnp.asarray(FITNESS)).mean), expected, rtol=1e-5, atol=1e-5)


def test_an_update_has_full_rank() -> None:
    optimizer = OpenES(pop_size=POP_SIZE, rank=1, optimizer_name="sgd")
    state = optimizer.init(SOLUTION, KEY)
    step = optimizer.tell(state, jnp.asarray(FITNESS)).mean["first"] - SOLUTION["first"]
    assert np.linalg.matrix_rank(np.asarray(step)) == 3


def test_individuals_are_explicit_beside_injected_solutions() -> None:
    optimizer = OpenES(pop_size=POP_SIZE, rank=1)
    state = optimizer.init(SOLUTION, KEY)
    solutions = jax.tree.map(lambda x: x[None] + 1.0, SOLUTION)
    injected = optimizer.inject(state, solutions, jnp.array([3]))
    assert_identical(optimizer.ask_factored(injected), optimizer.ask(injected))
    assert_identical(jax.tree.map(lambda x: x[3:4], optimizer.ask(injected)), solutions)


def test_without_a_rank_nothing_is_factored() -> None:
    optimizer = VanillaES(pop_size=POP_SIZE)
    state = optimizer.init(SOLUTION, KEY)
    assert_identical(optimizer.ask_factored(state, 2, 3), optimizer.ask(state, 2, 3))
    assert optimizer.rank is None


def test_large_populations_need_the_memory_of_small_ones() -> None:
    """The update of 2^14 individuals has the memory of one of 2^12, up to the fitness itself."""

    def memory(pop_size: int) -> int:
        optimizer = OpenES(pop_size=pop_size, rank=1)
        state = jax.eval_shape(lambda: optimizer.init({"kernel": jnp.zeros((256, 256))}, KEY))
        fitness = jax.ShapeDtypeStruct((pop_size,), jnp.float32)
        compiled: Any = jax.jit(optimizer.tell).lower(state, fitness).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    small, large = memory(1 << 12), memory(1 << 14)
    assert large < 1.1 * small, (small, large)

"""Small populations for tests of evolutionary optimizers and operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ec.gaussian import GaussianStrategy
from evorl.ops.random import row_keys
from evorl.types import PyTreeDict

POP_SIZE = 6
# Two leaves of one shape detect a key that is used twice.
SOLUTION = {"bias": jnp.array([0.5, -1.0, 2.0]), "scale": jnp.ones((2, 2)), "shift": jnp.zeros(3)}
FITNESS = np.array([0.3, -2.0, 5.0, 1.5, 0.4, -0.7], np.float32)


def flat(tree: Any, num_axes: int = 0) -> np.ndarray:
    """Concatenate the leaves of a tree with ``num_axes`` shared leading axes."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:num_axes], -1) for leaf in leaves], axis=-1)


def later(optimizer: GaussianStrategy, num_generations: int = 2) -> PyTreeDict:
    """Return the state some generations later."""
    state = optimizer.init(SOLUTION, jax.random.key(3))
    return state.replace(generation=state.generation + num_generations)


def parts_of(optimizer: GaussianStrategy, state: PyTreeDict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean ``[n]``, standard deviations ``[n]`` and noise ``[P, n]`` of the sampled population."""
    population, mean = flat(optimizer.ask(state), 1), flat(state.mean)
    scale = optimizer.scale(state)
    std = np.full(mean.shape, float(scale)) if isinstance(scale, jax.Array) else flat(scale)
    return mean, std, (population - mean) / std


SIZE = 5


def population(seed: int, size: int = SIZE) -> dict[str, Any]:
    """Return individuals of two equally shaped layers, a bias and a scalar; all entries differ."""
    shapes = {"kernel": (size, 6, 4), "other": (size, 6, 4), "bias": (size, 4), "scale": (size,)}
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def same_population(size: int = SIZE) -> dict[str, Any]:
    """Return equal individuals with the same entry in all leaves."""
    return jax.tree.map(lambda x: jnp.asarray(np.ones(x.shape, x.dtype)), population(0, size))


def check_own_keys(operator: Callable[[jax.Array], Any]) -> None:
    """Assert that ``operator(key)`` uses separate keys for individuals and leaves.

    The result may be any pytree of leaves ``[SIZE, ...]`` with entries ``kernel`` and ``other``. Under ``jit`` and
    ``vmap`` the numbers are the same.
    """
    keys, other_keys, reversed_keys, two_keys = _keys()
    operator = jax.jit(operator)
    outcome = jax.tree.map(np.asarray, operator(keys))
    jax.tree.map(np.testing.assert_array_equal, outcome, operator(jax.random.key(0)))
    for individuals in outcome if isinstance(outcome, tuple) else (outcome,):
        rows = np.concatenate([x.reshape(SIZE, -1) for x in jax.tree.leaves(individuals)], axis=1)
        assert len(np.unique(rows, axis=0)) == SIZE
        assert (np.asarray(individuals["kernel"] != individuals["other"])).any(axis=(1, 2)).all()

    other = operator(other_keys)
    differ = [(a != np.asarray(b)).reshape(SIZE, -1).any(axis=1) for a, b in _leaf_pairs(outcome, other)]
    changed = np.stack(differ).any(axis=0)
    np.testing.assert_array_equal(changed, np.arange(SIZE) == 2)

    two = jax.vmap(operator)(two_keys)
    for both, first, second in zip(*map(jax.tree.leaves, (two, outcome, operator(reversed_keys))), strict=True):
        np.testing.assert_allclose(both, np.stack([first, second]), rtol=1e-6)


@functools.cache
def _keys() -> tuple[jax.Array, ...]:
    """Return one key per individual; with another third key; in reverse; and both orders stacked."""

    @jax.jit
    def made() -> tuple[jax.Array, ...]:
        keys = row_keys(jax.random.key(0), SIZE)
        return keys, keys.at[2].set(jax.random.key(7)), keys[::-1], jnp.stack([keys, keys[::-1]])

    return made()


def _leaf_pairs(one: Any, two: Any) -> Any:
    return zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)

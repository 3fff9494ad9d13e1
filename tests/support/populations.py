"""A small solution and its populations, for tests of evolutionary optimizers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ec.gaussian import GaussianStrategy
from evorl.types import PyTreeDict

POP_SIZE = 6
# Two leaves of one shape would show a key that is used twice.
SOLUTION = {"bias": jnp.array([0.5, -1.0, 2.0]), "scale": jnp.ones((2, 2)), "shift": jnp.zeros(3)}
FITNESS = np.array([0.3, -2.0, 5.0, 1.5, 0.4, -0.7], np.float32)


def flat(tree: Any, num_axes: int = 0) -> np.ndarray:
    """The numbers of a tree side by side, after ``num_axes`` leading axes that its leaves share."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:num_axes], -1) for leaf in leaves], axis=-1)


def later(optimizer: GaussianStrategy, num_generations: int = 2) -> PyTreeDict:
    """The state some generations on."""
    state = optimizer.init(SOLUTION, jax.random.key(3))
    return state.replace(generation=state.generation + num_generations)


def parts_of(optimizer: GaussianStrategy, state: PyTreeDict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean ``[n]``, standard deviations ``[n]`` and noise ``[P, n]`` of the population that is asked for."""
    population, mean = flat(optimizer.ask(state), 1), flat(state.mean)
    scale = optimizer.scale(state)
    std = np.full(mean.shape, float(scale)) if isinstance(scale, jax.Array) else flat(scale)
    return mean, std, (population - mean) / std

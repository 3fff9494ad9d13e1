"""Matrices ``shared + low-rank noise``, as sampled by low-rank evolution strategies.

A population multiplies its inputs by the shared matrix in one product, and by each individual's thin factors in two
small products; the individual matrices are never computed.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from evorl.types import Params, PyTreeData


class LowRankNoise(PyTreeData):
    """Matrix ``left^T right``, ``[..., I, O]``, of rank r, stored as its factors.

    Attributes:
        left: first factor, ``[..., r, I]``.
        right: second factor, ``[..., r, O]``.
    """

    left: jax.Array
    right: jax.Array

    @classmethod
    def from_normal(cls, numbers: jax.Array, num_inputs: int) -> LowRankNoise:
        """Return noise from standard normal numbers ``[..., r, I + O]``; its entries have mean 0 and variance 1."""
        scale = 1.0 / math.sqrt(numbers.shape[-2])  # each entry sums r products of variance 1
        return cls(left=scale * numbers[..., :num_inputs], right=numbers[..., num_inputs:])

    def scaled(self, factor: jax.Array | float) -> LowRankNoise:
        """Return the matrix times a scalar."""
        return self.replace(left=factor * self.left)

    def matrix(self) -> jax.Array:
        """Return the matrix, ``[..., I, O]``."""
        return jnp.einsum("...ri,...ro->...io", self.left, self.right)

    def product(self, x: jax.Array) -> jax.Array:
        """Return ``x @ matrix``, ``[..., I] -> [..., O]``, for factors without leading axes."""
        return (x @ self.left.T) @ self.right

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        """Return ``sum_p weights_p matrix_p``, ``[I, O]``, for factors ``[P, r, ...]``, as one product."""
        return jnp.tensordot(weights[:, None, None] * self.left, self.right, axes=((0, 1), (0, 1)))


class PerturbedMatrix(PyTreeData):
    """Matrix ``mean + noise``, ``[I, O]``; a population shares the mean.

    Attributes:
        mean: ``[I, O]``, without a population axis.
        noise: noise of one individual, or of a population, with a leading axis P.
    """

    mean: jax.Array
    noise: LowRankNoise

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix of one individual."""
        return self.mean.shape

    def matrix(self) -> jax.Array:
        """Return the matrix ``[I, O]``, or the matrices ``[P, I, O]`` of a population."""
        return self.mean + self.noise.matrix()

    def product(self, x: jax.Array) -> jax.Array:
        """Return ``x @ matrix``, ``[..., I] -> [..., O]``, for one individual; see ``population_axes`` for ``vmap``."""
        return x @ self.mean + self.noise.product(x)


def is_noise(x: Any) -> bool:
    """Return True if ``x`` is a ``LowRankNoise``; serves as ``is_leaf`` of ``jax.tree.map``."""
    return isinstance(x, LowRankNoise)


def _is_perturbed(x: Any) -> bool:
    return isinstance(x, PerturbedMatrix)


def explicit(population: Params, factored: Any = False) -> Params:
    """Return parameters with each ``PerturbedMatrix`` replaced by a dense array.

    Args:
        population: parameters of one individual or of a population.
        factored: True for matrices to leave unchanged: one bool, or a tree of bools, one per matrix or array.
    """

    def convert(x: Any, stays: bool) -> Any:
        return x.matrix() if _is_perturbed(x) and not stays else x

    if isinstance(factored, bool):
        return jax.tree.map(lambda x: convert(x, factored), population, is_leaf=_is_perturbed)
    return jax.tree.map(convert, population, factored, is_leaf=_is_perturbed)


def population_axes(population: Params) -> Any:
    """Return ``in_axes`` for ``vmap`` over a population: 0, except ``None`` for the mean of a ``PerturbedMatrix``."""

    def axes(x: Any) -> Any:
        return PerturbedMatrix(mean=None, noise=0) if _is_perturbed(x) else 0  # pyright: ignore[reportArgumentType]  # axes

    return jax.tree.map(axes, population, is_leaf=_is_perturbed)

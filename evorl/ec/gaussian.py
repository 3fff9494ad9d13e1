"""Strategies that sample around a mean: what they share, whatever they make of the fitness."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.noise import mirrored_rows, mirrored_sums, noise_rows, weighted_sums
from evorl.types import Key, Params, PyTreeDict


class GaussianStrategy(EvoOptimizer):
    """Individuals are ``mean + scale * noise``, with noise that is drawn again where it is needed (``evorl.ec.noise``).

    The state holds ``mean``, ``key`` and the generation's number ``generation``, int32, beside what a strategy adds.

    A solution from outside counts as the sample it would have been: its noise is its distance from the mean in units
    of the scale. So a recombined mean moves towards it by the weight that it has earned, as in CEM-RL (Pourchot &
    Sigaud 2019, https://arxiv.org/abs/1810.01222). It is not brought nearer first, as Hansen 2011
    (https://arxiv.org/abs/1110.4181) does for the sake of step-size adaptation: these strategies have none.

    Attributes:
        pop_size: number of individuals P; even with mirrored sampling.
        mirror_sampling: individuals come in pairs with opposite noise (Brockhoff et al. 2010).
    """

    pop_size: int
    mirror_sampling: bool = True

    ranks_failures: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pop_size < 2 or (self.mirror_sampling and self.pop_size % 2):
            raise ValueError(
                f"pop_size={self.pop_size}: mirrored sampling takes pairs, so an even number of individuals, at least "
                "2; or set mirror_sampling=false."
            )

    @property
    def group_size(self) -> int:
        """2 with mirrored sampling."""
        return 2 if self.mirror_sampling else 1

    @property
    def num_replaceable(self) -> int:
        """All."""
        return self.pop_size

    @abstractmethod
    def scale(self, state: PyTreeDict) -> jax.Array | Params:
        """Standard deviation of the samples: a scalar, or a tree like the solution."""

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The search starts at ``solution``."""
        mean = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), solution)
        return PyTreeDict(mean=mean, key=key, generation=jnp.zeros((), jnp.int32))

    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        """See ``EvoOptimizer.ask``."""
        draw = mirrored_rows if self.mirror_sampling else noise_rows
        count = self.pop_size if count is None else count
        noise = draw(self._noise_key(state), state.mean, first, count)
        scale = self._scale_tree(state)
        individuals = jax.tree.map(lambda mean, scale, noise: mean + scale * noise, state.mean, scale, noise)
        if "injected" not in state:
            return individuals
        rows = self._injected_rows(state) - first
        rows = jnp.where((rows >= 0) & (rows < count), rows, count)
        return jax.tree.map(lambda x, new: x.at[rows].set(new, mode="drop"), individuals, state.injected.solutions)

    def inject(self, state: PyTreeDict, solutions: Params, rows: jax.Array) -> PyTreeDict:
        """See ``EvoOptimizer.inject``; it holds for this generation."""
        if not self.num_replaceable:
            return super().inject(state, solutions, rows)
        return state | {"injected": PyTreeDict(solutions=solutions, rows=rows, generation=state.generation)}

    def solution(self, state: PyTreeDict) -> Params:
        """The mean."""
        return state.mean

    def noise_sums(self, state: PyTreeDict, *terms: tuple[jax.Array, int]) -> tuple[Params, ...]:
        """``sum_i w_i noise_i^k`` of this generation for each term ``(w, k)``: see ``evorl.ec.noise.weighted_sums``."""
        drawn_sums = mirrored_sums if self.mirror_sampling else weighted_sums
        if "injected" not in state:
            return drawn_sums(self._noise_key(state), state.mean, *terms)
        rows = self._injected_rows(state)
        drawn_terms = [(weights.at[rows].set(0.0, mode="drop"), power) for weights, power in terms]
        sums = drawn_sums(self._noise_key(state), state.mean, *drawn_terms)
        noise = jax.tree.map(
            lambda x, mean, scale: (x - mean) / scale, state.injected.solutions, state.mean, self._scale_tree(state)
        )

        def with_injected(total: Params, weights: jax.Array, power: int) -> Params:
            row_weights = weights.at[rows].get(mode="fill", fill_value=0.0)  # [K]
            return jax.tree.map(lambda x, noise: x + jnp.tensordot(row_weights, noise**power, axes=1), total, noise)

        return tuple(with_injected(total, *term) for total, term in zip(sums, terms, strict=True))

    def _injected_rows(self, state: PyTreeDict) -> jax.Array:
        """Which individuals of this generation are solutions from outside, ``[K]``; past the last one for none."""
        injected = state.injected
        return jnp.where(injected.generation == state.generation, injected.rows, self.pop_size)

    def _noise_key(self, state: PyTreeDict) -> Key:
        return jax.random.fold_in(state.key, state.generation)

    def _scale_tree(self, state: PyTreeDict) -> Params:
        scale = self.scale(state)
        is_tree = jax.tree.structure(scale) == jax.tree.structure(state.mean)
        return scale if is_tree else jax.tree.map(lambda _: scale, state.mean)

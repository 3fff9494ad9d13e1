"""Base class of evolution strategies that sample Gaussian noise around a mean."""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.noise import mirrored_rows, mirrored_sums, noise_rows, weighted_sums
from evorl.types import Key, Params, PyTreeDict


class GaussianStrategy(EvoOptimizer):
    """Strategy whose individuals are ``mean + scale * noise``; noise is recomputed, not stored (``evorl.ec.noise``).

    The state has ``mean``, ``key``, the generation number ``generation`` (int32), and the entries of the subclass.

    An injected solution counts as a sample whose noise is its difference from the mean in units of the scale. A
    recombined mean thus moves towards the solution according to its weight, as in CEM-RL (Pourchot & Sigaud 2019,
    https://arxiv.org/abs/1810.01222). Unlike in Hansen 2011 (https://arxiv.org/abs/1110.4181), the difference is not
    clipped: only strategies that adapt their step size require clipping, and the subclasses here do not adapt it.

    Attributes:
        pop_size: number of individuals P, at least 2; must be even with mirror_sampling.
        mirror_sampling: sample pairs of individuals with opposite noise (Brockhoff et al. 2010).
    """

    pop_size: int
    mirror_sampling: bool = True

    ranks_failures: ClassVar[bool] = True
    takes_solutions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pop_size < 2:
            raise ValueError(f"pop_size={self.pop_size} must be at least 2.")
        if self.mirror_sampling and self.pop_size % 2:
            raise ValueError(
                f"pop_size={self.pop_size} must be even for mirrored sampling: choose {self.pop_size - 1} or "
                f"{self.pop_size + 1}, or set mirror_sampling=false."
            )

    @property
    def group_size(self) -> int:
        return 2 if self.mirror_sampling else 1

    @abstractmethod
    def scale(self, state: PyTreeDict) -> jax.Array | Params:
        """Return the standard deviation of the samples: a scalar, or a tree with the structure of the solution."""

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        mean = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), solution)
        return PyTreeDict(mean=mean, key=key, generation=jnp.zeros((), jnp.int32))

    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        count = self.pop_size if count is None else count
        individuals = self.sample(state, first, count)
        if "injected" not in state:
            return individuals
        rows = self._injected_rows(state) - first
        rows = jnp.where((rows >= 0) & (rows < count), rows, count)
        return jax.tree.map(lambda x, new: x.at[rows].set(new, mode="drop"), individuals, state.injected.solutions)

    def sample(self, state: PyTreeDict, first: jax.Array | int, count: int) -> Params:
        """Return the sampled individuals ``first .. first + count - 1``, ``[count, ...]``, ignoring injections."""
        noise, scale = self.noise(state, first, count), self.scale_tree(state)
        return jax.tree.map(lambda mean, scale, noise: mean + scale * noise, state.mean, scale, noise)

    def noise(self, state: PyTreeDict, first: jax.Array | int, count: int) -> Params:
        """Return the noise of individuals ``first .. first + count - 1``, see ``noise_rows`` and ``mirrored_rows``."""
        draw = mirrored_rows if self.mirror_sampling else noise_rows
        return draw(self._noise_key(state), state.mean, first, count, self.noise_rank)

    @property
    def noise_rank(self) -> int | None:
        """Rank of the noise of matrices, see ``noise.noise_rows``; ``None`` for independent entries."""
        return None

    def inject(self, state: PyTreeDict, solutions: Params, rows: jax.Array) -> PyTreeDict:
        """Return the state with solutions for this generation only, see ``EvoOptimizer.inject``."""
        if not self.takes_solutions:
            return super().inject(state, solutions, rows)
        return state | {"injected": PyTreeDict(solutions=solutions, rows=rows, generation=state.generation)}

    def solution(self, state: PyTreeDict) -> Params:
        return state.mean

    def noise_sums(self, state: PyTreeDict, *terms: tuple[jax.Array, int]) -> tuple[Params, ...]:
        """Return ``sum_i w_i noise_i^k``, injections included, for each term ``(w, k)``, with weights w ``[P]``."""
        sums_fn = mirrored_sums if self.mirror_sampling else weighted_sums
        sample_sums = functools.partial(sums_fn, rank=self.noise_rank)
        if "injected" not in state:
            return sample_sums(self._noise_key(state), state.mean, *terms)
        rows = self._injected_rows(state)
        sample_terms = [(weights.at[rows].set(0.0, mode="drop"), power) for weights, power in terms]
        sums = sample_sums(self._noise_key(state), state.mean, *sample_terms)
        trees = (state.injected.solutions, state.mean, self.scale_tree(state))
        noise = jax.tree.map(lambda x, mean, scale: (x - mean) / scale, *trees)

        def with_injected(total: Params, weights: jax.Array, power: int) -> Params:
            row_weights = weights.at[rows].get(mode="fill", fill_value=0.0)  # [K]

            def add(x: jax.Array, noise: jax.Array) -> jax.Array:
                # A diverged learner injects non-finite solutions, whose fitness is not finite either: weight 0.
                powers = jnp.where(jnp.isfinite(noise), noise, 0.0) ** power
                return x + jnp.tensordot(row_weights, powers, axes=1)

            return jax.tree.map(add, total, noise)

        return tuple(with_injected(total, *term) for total, term in zip(sums, terms, strict=True))

    def _injected_rows(self, state: PyTreeDict) -> jax.Array:
        """Return the indices ``[K]`` of replaced individuals; P, past the end, for injections of past generations."""
        injected = state.injected
        return jnp.where(injected.generation == state.generation, injected.rows, self.pop_size)

    def _noise_key(self, state: PyTreeDict) -> Key:
        return jax.random.fold_in(state.key, state.generation)

    def scale_tree(self, state: PyTreeDict) -> Params:
        """Return the standard deviations as a tree with the structure of the solution; leaves are scalars or arrays."""
        scale = self.scale(state)
        is_tree = jax.tree.structure(scale) == jax.tree.structure(state.mean)
        return scale if is_tree else jax.tree.map(lambda _: scale, state.mean)

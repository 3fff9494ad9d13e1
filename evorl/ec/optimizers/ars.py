"""Augmented random search (Mania et al. 2018, https://arxiv.org/abs/1803.07055).

The update is the sum of the directions with the best results, each weighted by the difference between its results
forwards and backwards, divided by the standard deviation of these results. With all directions (the default) this is
V1 of the paper, otherwise V1-t; with ``agent.normalize_obs=true``, V2 or V2-t.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from evorl.ec.fitness_shaping import raw_fitness, scaled_to_square
from evorl.ec.low_rank import LowRankStrategy
from evorl.ec.safeguards import advance
from evorl.fields import Within
from evorl.types import PyTreeDict


class ARS(LowRankStrategy):
    """Augmented random search.

    Attributes:
        pop_size: number of individuals P, two with opposite noise per direction; must be even.
        num_elites: number b of best directions used for the update; ``None`` uses all P / 2.
        learning_rate: step size alpha.
        noise_std: standard deviation nu of the samples.
        rank: rank of the noise of weight matrices; ``None`` for independent entries.
    """

    pop_size: int
    num_elites: int | None = None
    learning_rate: Annotated[float, Within("[0, inf)")] = 0.02
    noise_std: Annotated[float, Within("(0, inf)")] = 0.03
    mirror_sampling: bool = True

    takes_solutions: ClassVar[bool] = False  # individuals are evaluated in pairs with opposite noise

    def __post_init__(self) -> None:
        if self.pop_size % 2 or not self.mirror_sampling:
            raise ValueError(
                "ARS evaluates opposite directions: pop_size must be even, at least 2, and mirror_sampling true; got "
                f"pop_size={self.pop_size} and mirror_sampling={str(self.mirror_sampling).lower()}."
            )
        super().__post_init__()
        directions = self.pop_size // 2
        if not 1 <= self._num_elites <= directions:
            raise ValueError(
                f"num_elites={self.num_elites} is out of range for pop_size={self.pop_size}, which gives {directions} "
                f"directions: choose 1 to {directions}."
            )

    @property
    def _num_elites(self) -> int:
        return self.pop_size // 2 if self.num_elites is None else self.num_elites

    def scale(self, state: PyTreeDict) -> jax.Array:
        return jnp.asarray(self.noise_std, jnp.float32)

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Update the mean by ``alpha / (b std_R) sum_k (r(+k) - r(-k)) delta_k`` over the best directions (alg. 2)."""
        fitness = scaled_to_square(raw_fitness(fitness)).reshape(-1, 2)  # [P/2, 2]: forwards, backwards
        order = jnp.argsort(-fitness.max(axis=1), stable=True)[: self._num_elites]
        spread = fitness[order].std() + 1e-8
        chosen = jnp.zeros(fitness.shape[0]).at[order].set(1.0)
        # The mean of a pair cancels in the sum. Subtracting it first avoids rounding errors, which a vanishing spread
        # would amplify.
        differences = fitness - fitness.mean(axis=1, keepdims=True)
        weights = (chosen[:, None] * differences / (self._num_elites * spread)).reshape(-1)
        (step,) = self.noise_sums(state, (weights, 1))
        mean = jax.tree.map(lambda mean, step: mean + self.learning_rate * step, state.mean, step)
        return advance(state, state.replace(mean=mean, generation=state.generation + 1))

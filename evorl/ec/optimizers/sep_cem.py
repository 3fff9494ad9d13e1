"""Cross-entropy method with a diagonal covariance, as in CEM-RL (Pourchot & Sigaud 2019,
https://arxiv.org/abs/1810.01222, section 2.2).
"""

from __future__ import annotations

from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from evorl.ec.fitness_shaping import is_flat, log_rank_weights, weights_by_rank
from evorl.ec.gaussian import GaussianStrategy
from evorl.ec.optimizers.elites import elite_count
from evorl.ec.safeguards import MAX_STD, advance
from evorl.fields import Within
from evorl.ops.schedules import ExponentialScheduleSpec, NonNegativeSchedule
from evorl.types import Key, Params, PyTreeDict


class SepCEM(GaussianStrategy):
    """Cross-entropy method: fits mean and variances to the elites and adds a decaying extra variance.

    The extra variance prevents premature convergence.

    Attributes:
        pop_size: number of individuals P.
        num_elites: number of best individuals to which the distribution is fitted; ``None`` for half of the population.
        elite_weights: weights of the elites: ``log`` (better elites count more) or ``equal``.
        initial_std: standard deviation of the first samples, without the extra variance.
        extra_variance: variance added to the fitted variances, as a function of the generation.
        variance_divisor: number by which the elites' variances are divided: 1 in the paper's equation, the number of
            elites in the authors' code.
        mirror_sampling: sample pairs of individuals with opposite noise.
    """

    pop_size: int
    num_elites: int | None = None
    elite_weights: Literal["log", "equal"] = "log"
    initial_std: Annotated[float, Within("(0, inf)")] = 0.1
    extra_variance: NonNegativeSchedule = ExponentialScheduleSpec(init=1e-2, final=1e-5, decay=0.95)
    variance_divisor: Annotated[float, Within("(0, inf)")] = 1.0
    mirror_sampling: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        elite_count(self.num_elites, self.pop_size)

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        state = super().init(solution, key)
        return state | {"variance": jax.tree.map(lambda x: jnp.full(x.shape, self.initial_std**2, x.dtype), state.mean)}

    def scale(self, state: PyTreeDict) -> Params:
        """Return the standard deviation of each entry of a solution, including the extra variance."""
        extra = self.extra_variance.value_at(state.generation)
        return jax.tree.map(lambda variance: jnp.sqrt(variance + extra), state.variance)

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Fit mean and variances to the elites; variances are relative to the old mean (eq. 2 of the paper).

        Flat fitness leaves both unchanged.
        """
        num_elites = elite_count(self.num_elites, self.pop_size)
        best = log_rank_weights(num_elites) if self.elite_weights == "log" else jnp.full(num_elites, 1.0 / num_elites)
        weights, precision = weights_by_rank(fitness, best)
        step, square = self.noise_sums(state, (weights, 1), (weights, 2))
        scale, divisor = self.scale(state), self.variance_divisor

        def variance(old: jax.Array, scale: jax.Array, square: jax.Array) -> jax.Array:
            elites = jnp.minimum(jnp.square(scale) * square / divisor, MAX_STD**2)
            return precision * elites + (1 - precision) * old

        new = state.replace(
            mean=jax.tree.map(lambda mean, scale, step: mean + scale * step, state.mean, scale, step),
            variance=jax.tree.map(variance, state.variance, scale, square),
            generation=state.generation + 1,
        )
        return advance(state, new, is_flat(fitness))

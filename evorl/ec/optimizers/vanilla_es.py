"""Evolution strategy with weighted recombination, ``(mu/mu_w, lambda)`` (Beyer & Schwefel 2002; Hansen 2016).

The mean moves to the weighted mean of the elites; the standard deviation follows a schedule.
"""

from __future__ import annotations

import jax

from evorl.ec.fitness_shaping import is_flat, log_rank_weights, weights_by_rank
from evorl.ec.low_rank import LowRankStrategy
from evorl.ec.optimizers.elites import elite_count
from evorl.ec.safeguards import advance
from evorl.ops.schedules import ExponentialScheduleSpec, PositiveSchedule
from evorl.types import PyTreeDict


class VanillaES(LowRankStrategy):
    """Evolution strategy with weighted recombination.

    Attributes:
        pop_size: number of individuals P.
        num_elites: number of best individuals to recombine; ``None`` means half of the population.
        noise_std_schedule: standard deviation of the samples, as a function of the generation.
        mirror_sampling: sample pairs of individuals with opposite noise.
        rank: rank of the noise of weight matrices; ``None`` for independent entries.
    """

    pop_size: int
    num_elites: int | None = None
    noise_std_schedule: PositiveSchedule = ExponentialScheduleSpec(init=0.1, final=0.01, decay=0.99)
    mirror_sampling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        elite_count(self.num_elites, self.pop_size)

    def scale(self, state: PyTreeDict) -> jax.Array:
        return self.noise_std_schedule.value_at(state.generation)

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Move the mean to the weighted mean of the elites; flat fitness leaves it unchanged."""
        best = log_rank_weights(elite_count(self.num_elites, self.pop_size))
        weights, _ = weights_by_rank(fitness, best)
        (step,) = self.noise_sums(state, (weights, 1))
        std = self.scale(state)
        mean = jax.tree.map(lambda mean, step: mean + std * step, state.mean, step)
        return advance(state, state.replace(mean=mean, generation=state.generation + 1), is_flat(fitness))

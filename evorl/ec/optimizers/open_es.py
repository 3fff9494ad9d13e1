"""Evolution strategies of OpenAI (Salimans et al. 2017, https://arxiv.org/abs/1703.03864).

Shaped fitness times noise, averaged over the population, estimates the gradient of the fitness of the smoothed
problem; an ordinary gradient optimizer follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from evorl.ec.fitness_shaping import compute_centered_ranks
from evorl.ec.gaussian import GaussianStrategy
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import ExponentialScheduleSpec
from evorl.types import Key, Params, PyTreeDict, pytree_field


class OpenES(GaussianStrategy):
    """OpenAI ES.

    Attributes:
        pop_size: number of individuals P.
        lr_schedule: step size of the optimizer, by generation.
        noise_std_schedule: standard deviation of the samples, by generation.
        mirror_sampling: individuals come in pairs with opposite noise.
        optimizer_name: ``adam``, ``radam``, ``rmsprop`` or ``sgd``.
        weight_decay: decoupled weight decay; ``None`` for none.
        fitness_shaping_fn: of the fitness ``[P]``, see ``evorl.ec.fitness_shaping``.
    """

    pop_size: int
    lr_schedule: ExponentialScheduleSpec = ExponentialScheduleSpec(init=0.01, final=0.001, decay=0.999)
    noise_std_schedule: ExponentialScheduleSpec = ExponentialScheduleSpec(init=0.05, final=0.01, decay=0.999)
    mirror_sampling: bool = True
    optimizer_name: str = "adam"
    weight_decay: float | None = None
    fitness_shaping_fn: Callable[[chex.Array], chex.Array] = pytree_field(static=True, default=compute_centered_ranks)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._optimizer(0.0)  # refuses an unknown name

    def scale(self, state: PyTreeDict) -> jax.Array:
        """The noise's standard deviation in this generation."""
        return self.noise_std_schedule.value_at(state.generation)

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The search starts at ``solution``."""
        state = super().init(solution, key)
        return state | {"opt_state": self._optimizer(0.0).init(state.mean)}

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """One step along ``1 / (P std) sum_i shaped_i noise_i`` (algorithm 1), which ascends the fitness."""
        shaped = self.fitness_shaping_fn(fitness)
        (descent,) = self.noise_sums(state, (jnp.negative(shaped) / (self.pop_size * self.scale(state)), 1))
        optimizer = self._optimizer(self.lr_schedule.value_at(state.generation))
        mean, opt_state = optimizer.apply(descent, state.opt_state, state.mean)
        return state.replace(mean=mean, opt_state=opt_state, generation=state.generation + 1)

    def _optimizer(self, learning_rate: jax.Array | float) -> Optimizer:
        # The rate may be traced, and the name be any string: Optimizer answers a wrong one in words.
        settings: dict[str, Any] = {"name": self.optimizer_name, "learning_rate": learning_rate}
        return Optimizer(weight_decay=self.weight_decay, **settings)

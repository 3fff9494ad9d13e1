"""OpenAI evolution strategies (Salimans et al. 2017, https://arxiv.org/abs/1703.03864).

The average of shaped fitness times noise estimates the gradient of the smoothed fitness, for a gradient optimizer.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Annotated, Any

import chex
import jax
import jax.numpy as jnp
import optax

from evorl.ec.fitness_shaping import FITNESS_SHAPING, compute_centered_ranks
from evorl.ec.low_rank import LowRankStrategy
from evorl.ec.safeguards import advance
from evorl.fields import Within
from evorl.ops.custom_name import CustomName
from evorl.ops.optimization import NOT_PROPORTIONAL, Optimizer, OptimizerName
from evorl.ops.schedules import ExponentialScheduleSpec, NonNegativeSchedule, PositiveSchedule
from evorl.types import Key, Params, PyTreeDict, pytree_field


class OpenES(LowRankStrategy):
    """OpenAI evolution strategy.

    Attributes:
        pop_size: number of individuals P.
        lr_schedule: learning rate, as a function of the generation.
        noise_std_schedule: standard deviation of the samples, as a function of the generation.
        mirror_sampling: sample pairs of individuals with opposite noise.
        rank: rank of the noise of weight matrices; ``None`` for independent entries.
        optimizer_name: name of an optax optimizer, such as adam or sgd, except fromage and rprop; or
            package.module:function for a user-defined one, whose first argument is the learning rate.
        weight_decay: decoupled weight decay; ``None`` for the optimizer's default, which is nonzero for adamw.
        fitness_shaping_fn: transform of the fitness: centered_ranks, standardized or raw; in Python, a function.
        optimizer: optimizer ``optimizer_name`` with learning rate 1. ``tell`` applies ``weight_decay``, if set, and
            multiplies updates by the learning rate of the generation.
    """

    pop_size: int
    lr_schedule: NonNegativeSchedule = ExponentialScheduleSpec(init=0.01, final=0.001, decay=0.999)
    noise_std_schedule: PositiveSchedule = ExponentialScheduleSpec(init=0.05, final=0.01, decay=0.999)
    mirror_sampling: bool = True
    optimizer_name: str | CustomName = "adam"
    weight_decay: Annotated[float | None, Within("[0, inf)")] = None
    fitness_shaping_fn: Callable[[chex.Array], chex.Array] = pytree_field(
        static=True, default=compute_centered_ranks, metadata={"names": FITNESS_SHAPING}
    )
    optimizer: optax.GradientTransformation = pytree_field(static=True, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [name for name in typing.get_args(OptimizerName) if name not in NOT_PROPORTIONAL]
        if not isinstance(self.optimizer_name, CustomName) and self.optimizer_name not in names:
            raise ValueError(
                f"optimizer_name must be one of {', '.join(names)}, with updates proportional to the learning rate, or "
                f"package.module:function; got {self.optimizer_name!r}."
            )
        object.__setattr__(self, "optimizer", _unit_steps(self.optimizer_name, self.weight_decay is not None))

    def scale(self, state: PyTreeDict) -> jax.Array:
        return self.noise_std_schedule.value_at(state.generation)

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        state = super().init(solution, key)
        return state | {"opt_state": self.optimizer.init(state.mean)}

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Take one step of gradient ascent along ``1 / (P std) sum_i shaped_fitness_i noise_i`` (algorithm 1)."""
        shaped = self.fitness_shaping_fn(fitness)
        (descent,) = self.noise_sums(state, (jnp.negative(shaped) / (self.pop_size * self.scale(state)), 1))
        updates, opt_state = self.optimizer.update(descent, state.opt_state, state.mean)
        if self.weight_decay is not None:
            updates = jax.tree.map(lambda update, x: update - self.weight_decay * x, updates, state.mean)
        step_size = self.lr_schedule.value_at(state.generation)
        mean = jax.tree.map(lambda x, update: x + step_size * update, state.mean, updates)
        return advance(state, state.replace(mean=mean, opt_state=opt_state, generation=state.generation + 1))


@functools.cache
def _unit_steps(name: Any, has_decay: bool) -> optax.GradientTransformation:
    """Return the named optax optimizer with learning rate 1; cached, because JAX compares optimizers by identity.

    If ``has_decay``, the optimizer has weight decay 0, because ``OpenES`` applies the decay itself.
    """
    return Optimizer(name=name, learning_rate=1.0, weight_decay=0.0 if has_decay else None).transformation(0.0)

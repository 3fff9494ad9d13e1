"""``python -m benchmarks.learning.evolution_budgets``: evaluations needed by evorl's optimizers and by evosax 0.3.

Both minimize functions of 20 variables, from the same starts with the same settings. The result is the median over
seeds of the evaluations until an individual is within 1e-6 of the optimum. The tests limit evorl's numbers to 1.2 times
evosax's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.markdown import table
from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import ARS, CMAES, OpenES, SepCEM, SepCMAES, VanillaES
from evorl.ops.schedules import ExponentialScheduleSpec
from evorl.types import Key

DIMENSIONS = 20
TARGET = 1e-6
POP_SIZE = 32
SCALES = 10.0 ** jnp.linspace(0.0, 6.0, DIMENSIONS)
ROTATION = jnp.asarray(np.linalg.qr(np.random.default_rng(5).normal(size=(DIMENSIONS, DIMENSIONS)))[0], jnp.float32)
LEARNING_RATE = ExponentialScheduleSpec(init=0.1, final=1e-4, decay=0.99)
NOISE_STD = ExponentialScheduleSpec(init=0.1, final=1e-5, decay=0.98)


def sphere(x: jax.Array) -> jax.Array:
    """Return sums of squares of ``x`` ``[..., n]``."""
    return jnp.sum(jnp.square(x), axis=-1)


def rosenbrock(x: jax.Array) -> jax.Array:
    """Return the cost of a bent valley with its optimum at 1."""
    return jnp.sum(100.0 * jnp.square(x[..., 1:] - jnp.square(x[..., :-1])) + jnp.square(1.0 - x[..., :-1]), axis=-1)


def ellipsoid(x: jax.Array) -> jax.Array:
    """Return the cost of an ellipsoid with condition number 1e6."""
    return jnp.sum(SCALES * jnp.square(x), axis=-1)


def rotated_ellipsoid(x: jax.Array) -> jax.Array:
    """Return the cost of an ellipsoid with rotated axes."""
    return ellipsoid(x @ ROTATION)


PROBLEMS: dict[str, tuple[Callable[[jax.Array], jax.Array], float]] = {  # with the initial value of each coordinate
    "sphere": (sphere, 3.0),
    "Rosenbrock": (rosenbrock, 0.0),
    "rotated ellipsoid": (rotated_ellipsoid, 3.0),
    "ellipsoid": (ellipsoid, 3.0),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One of evorl's optimizers, and the equivalent strategy of evosax.

    Attributes:
        optimizer: evorl's optimizer.
        generations: maximum number of generations.
        evosax: creates evosax's algorithm from ``population_size`` and ``solution``; ``None`` without an equivalent.
        std: its ``std_init``, if it has this parameter.
    """

    optimizer: EvoOptimizer
    generations: int
    evosax: Callable[..., Any] | None = None
    std: float = 1.0


def cases() -> dict[str, Case]:
    """Return the comparisons by the name of evorl's optimizer."""
    import evosax.algorithms as algorithms
    import optax

    def along_schedules(cls: Any) -> Callable[..., Any]:
        adam = optax.adam(lambda count: LEARNING_RATE.value_at(count))
        return functools.partial(cls, optimizer=adam, std_schedule=NOISE_STD.value_at)

    ars = functools.partial(
        algorithms.ARS, optimizer=optax.sgd(0.05), std_schedule=lambda _: jnp.asarray(1e-3, jnp.float32)
    )
    return {
        "CMAES": Case(CMAES(pop_size=POP_SIZE, initial_std=1.0), 900, algorithms.CMA_ES),
        "SepCMAES": Case(SepCMAES(pop_size=POP_SIZE, initial_std=1.0), 700, algorithms.Sep_CMA_ES),
        "OpenES": Case(
            OpenES(pop_size=POP_SIZE, lr_schedule=LEARNING_RATE, noise_std_schedule=NOISE_STD),
            720,
            along_schedules(algorithms.Open_ES),
        ),
        "VanillaES": Case(
            VanillaES(pop_size=POP_SIZE, noise_std_schedule=ExponentialScheduleSpec(init=1.0, final=1e-5, decay=0.97)),
            780,
            algorithms.SimpleES,
        ),
        "ARS": Case(ARS(pop_size=POP_SIZE, num_elites=8, learning_rate=0.05, noise_std=1e-3), 400, ars),
        "SepCEM": Case(
            SepCEM(
                pop_size=200,
                num_elites=50,
                initial_std=1.0,
                extra_variance=ExponentialScheduleSpec(init=1.0, final=1e-10, decay=0.9),
            ),
            200,
        ),
    }


@functools.partial(jax.jit, static_argnames=("problems", "generations"))
def best_so_far(optimizer: EvoOptimizer, problems: tuple[str, ...], keys: Key, generations: int) -> jax.Array:
    """Return the lowest cost of an individual up to each generation, ``[problems, seeds, generations]``."""

    def steps(state: Any, cost: Callable[[jax.Array], jax.Array]) -> tuple[Any, jax.Array]:
        costs = cost(optimizer.ask(state))
        return optimizer.tell(state, -costs), costs.min()

    return _minima(lambda start, key: optimizer.init(start, key), steps, problems, keys, generations)


def evosax_best_so_far(case: Case, problems: tuple[str, ...], keys: Key) -> jax.Array:
    """Return the lowest costs of evosax's algorithm."""
    assert case.evosax is not None, "evosax has this strategy"
    algorithm = case.evosax(population_size=case.optimizer.pop_size, solution=jnp.zeros(DIMENSIONS))
    params = algorithm.default_params
    if "std_init" in params.__dataclass_fields__:
        params = params.replace(std_init=case.std)

    def init(start: jax.Array, key: Key) -> Any:
        return algorithm.init(key, start, params), key

    def steps(state: Any, cost: Callable[[jax.Array], jax.Array]) -> tuple[Any, jax.Array]:
        inner, key = state
        key, ask_key, tell_key = jax.random.split(key, 3)
        population, inner = algorithm.ask(ask_key, inner, params)
        costs = cost(population)
        inner, _ = algorithm.tell(tell_key, population, costs, inner, params)
        return (inner, key), costs.min()

    run = jax.jit(lambda keys: _minima(init, steps, problems, keys, case.generations))
    return run(keys)


def _minima(
    init: Callable[..., Any], step: Callable[..., Any], problems: tuple[str, ...], keys: Key, generations: int
) -> jax.Array:
    """Compute the lowest costs with one program for all problems and seeds."""
    functions = [PROBLEMS[name][0] for name in problems]

    def run(number: jax.Array, start: jax.Array, key: Key) -> jax.Array:
        def cost(x: jax.Array) -> jax.Array:
            return jnp.stack([function(x) for function in functions])[number]

        state = init(jnp.full(DIMENSIONS, start), key)
        _, best = jax.lax.scan(lambda state, _: step(state, cost), state, None, generations)
        return jax.lax.cummin(best)

    starts = jnp.asarray([PROBLEMS[name][1] for name in problems])
    over_seeds = jax.vmap(run, (None, None, 0))
    return jax.vmap(over_seeds, (0, 0, None))(jnp.arange(len(problems)), starts, keys)


def evaluations_needed(best: jax.Array, pop_size: int) -> np.ndarray:
    """Convert ``[..., generations]`` to ``[...]``: evaluations until the target; infinity if it was not reached."""
    reached = np.asarray(best) <= TARGET
    return np.where(reached.any(axis=-1), (reached.argmax(axis=-1) + 1.0) * pop_size, np.inf)


def main() -> None:
    """Print the table."""
    problems = tuple(PROBLEMS)
    keys = jax.random.split(jax.random.key(0), 11)
    rows = []
    for name, case in cases().items():
        sides = {"evorl": best_so_far(case.optimizer, problems, keys, case.generations)}
        if case.evosax is not None:
            sides["evosax"] = evosax_best_so_far(case, problems, keys)
        for side, best in sides.items():
            needed = np.median(evaluations_needed(best, case.optimizer.pop_size), axis=1)
            left = np.median(np.asarray(best)[..., -1], axis=1)
            rows.append(
                (name, side, *(f"{n:,.0f}" if np.isfinite(n) else f"({cost:.2g})" for n, cost in zip(needed, left)))
            )
            print(rows[-1], flush=True)
    print(table(("optimizer", "of", *problems), rows))


if __name__ == "__main__":
    main()

"""``python -m benchmarks.learning.evosax_strategies [names...]``: run evosax on a sphere through evorl's adapter."""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ec.evosax import EvosaxStrategy, strategy_names
from evorl.types import Key, Params, State

START: Params = {"matrix": jnp.zeros((2, 2)), "vector": jnp.zeros(3)}
# Compiles quickly, since the program runs only for milliseconds.
FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def fitness(population: Params) -> jax.Array:
    """Return the negative cost ``[P]`` of a sphere with another center in each leaf."""
    cost = jnp.square(population["matrix"] - 1.0).sum(axis=(1, 2)) + jnp.square(population["vector"] + 0.5).sum(axis=1)
    return -cost


def fitness_of(solution: Params) -> float:
    """Return the fitness of one solution."""
    return float(fitness(jax.tree.map(lambda x: x[None], solution))[0])


def evolve(strategy: EvosaxStrategy, key: Key, num_generations: int) -> tuple[State, jax.Array]:
    """Return the last state, and the mean fitness of each generation."""

    def generation(state: State, _: None) -> tuple[State, jax.Array]:
        values = fitness(strategy.ask(state))
        return strategy.tell(state, values), values.mean()

    run = jax.jit(
        lambda key: jax.lax.scan(generation, strategy.init(START, key), None, num_generations),
        compiler_options=FAST_COMPILE,
    )
    return run(key)


def main(names: list[str]) -> int:
    """Print the result of each strategy; return the number of strategies that do not improve."""
    failed = 0
    for name in names or strategy_names():
        clock = time.process_time()
        strategy = EvosaxStrategy(pop_size=32, strategy=name, initial_std=0.3)
        state, means = evolve(strategy, jax.random.key(0), 30)
        end = fitness_of(strategy.solution(state))
        better = bool(np.isfinite(means).all()) and end > fitness_of(START)
        failed += not better
        seconds = time.process_time() - clock
        print(
            f"{name:22s} {fitness_of(START):.3f} -> {end:8.4f} {'' if better else 'NO BETTER'} {seconds:.1f} s",
            flush=True,
        )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Adapter for evosax strategies (Lange 2022, https://arxiv.org/abs/2212.04180).

evosax minimizes, and its state does not contain the population. The adapter negates the fitness and stores the
generation to evaluate next in the state.
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from evorl.config.names import no_such
from evorl.config.values import checked_value, positive
from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.fitness_shaping import failures_to_worst, is_flat
from evorl.ec.noise import noise_rows
from evorl.ec.safeguards import advance, finite_or
from evorl.fields import Within
from evorl.ops.trees import row_of, split_leading_axis
from evorl.types import Key, Params, PyTreeDict, pytree_field

# Cost of the first parents, which are not evaluated, and minimum cost of failures in strategies that keep parents.
WORST = 1e30
_TWO_SPREADS = "iAMaLGaM_Univariate"
_NEEDS_GROUPS = {"SV_CMA_ES": 1, "SV_Open_ES": 2}  # the size of each group must be a multiple of this number


class EvosaxStrategy(EvoOptimizer):
    """An evosax 0.3 strategy, selected by name.

    Attributes:
        pop_size: number of individuals P.
        strategy: name of the strategy in evosax, such as ``CMA_ES``.
        initial_std: standard deviation of the first samples, or of all samples if the strategy does not adapt it.
            ``iAMaLGaM_Full`` adds this value to a standard deviation that is initially 1.
        num_populations: number of subpopulations of ``SV_CMA_ES`` and ``SV_Open_ES``; other strategies ignore it.
        params: other numeric parameters of the strategy, by their names in evosax; evosax's defaults for the rest.

    Raises:
        ValueError: the strategy or one of its parameters is unknown (the message suggests valid names), a parameter
            is not a finite number, or the strategy does not support ``pop_size`` or ``num_populations``.
    """

    pop_size: int
    strategy: str = "CMA_ES"
    initial_std: Annotated[float, Within("(0, inf)")] = 0.1
    num_populations: int = 4
    params: PyTreeDict = pytree_field(default_factory=PyTreeDict)

    ranks_failures: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.strategy not in strategy_names():
            raise ValueError(no_such("evosax strategy", self.strategy, strategy_names()))
        divisor = _NEEDS_GROUPS.get(self.strategy)
        if divisor and self.pop_size % (divisor * positive(self.num_populations, "num_populations")):
            raise ValueError(
                f"pop_size={self.pop_size} cannot be divided into num_populations={self.num_populations} equal parts"
                f"{' of even size' * (divisor == 2)}: choose a multiple of {divisor * self.num_populations}."
            )
        if self.strategy == "LES" and self.pop_size < 2:
            raise ValueError(f"pop_size={self.pop_size} must be at least 2 for LES, which compares individuals.")
        try:
            defaults = vars(self._build({"x": jnp.zeros(2)})[1])
        except (AssertionError, ZeroDivisionError) as error:
            raise ValueError(f"evosax's {self.strategy} with pop_size={self.pop_size}: {error}") from error
        for name, value in self.params.items():
            if name not in defaults:
                raise ValueError(no_such(f"parameter of evosax's {self.strategy}", name, defaults))
            if not isinstance(value, jax.Array | np.ndarray):
                kind = bool if isinstance(defaults[name], bool) else float
                checked_value(value, kind, f"params.{name} of evosax's {self.strategy}")

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """Return the initial state; ``solution`` is the initial mean, or the center of the initial individuals."""
        key, init_key, start_key = jax.random.split(key, 3)
        # PyTreeDict converts nested dicts, so that the solution and the population in the state have one structure.
        solution = PyTreeDict(like=jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), solution)).like
        algorithm, params = self._algorithm(solution)
        if hasattr(algorithm, "get_mean"):
            means = solution
            if self.strategy in _NEEDS_GROUPS:  # one mean for each subpopulation
                means = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.num_populations, *x.shape)), solution)
            inner = algorithm.init(init_key, means, params)
            # Its best solution, NaN until fitness differs, is the solution of strategies without a single mean.
            inner = inner.replace(best_solution=jnp.copy(inner.mean))
        else:
            noise = noise_rows(start_key, solution, 0, self.pop_size)
            start = jax.tree.map(lambda x, rows: x + self.initial_std * rows, solution, noise)
            inner = algorithm.init(init_key, start, jnp.full(self.pop_size, WORST), params)
        if self.strategy == _TWO_SPREADS:
            inner = inner.replace(C=jnp.square(self.initial_std) * inner.C)
        state = PyTreeDict(key=key)
        if self.strategy == "RandomSearch":  # evosax's class has no initial solution
            state.start = solution
        return self._ask_next(state, inner, algorithm, params)

    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        if count is None:
            return state.population
        rows = jnp.minimum(first + jnp.arange(count), self.pop_size - 1)
        return jax.tree.map(lambda x: x[rows], state.population)

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Update the strategy with the fitness ``[P]``, and sample the next generation.

        The strategy's numbers are unchanged on flat fitness, or if the update would make any of them non-finite.
        """
        solution = row_of(state.population)
        algorithm, params = self._algorithm(solution)
        key, tell_key = jax.random.split(state.key)
        costs = -failures_to_worst(fitness)
        if not hasattr(algorithm, "get_mean"):
            costs = jnp.where(jnp.isfinite(fitness), costs, jnp.maximum(costs.max(), WORST))
        population = state.population
        if self.strategy in _NEEDS_GROUPS:
            population = split_leading_axis(population, self.num_populations, -1)
        inner, _ = algorithm.tell(tell_key, population, costs, state.inner, params)
        inner = advance(state.inner, inner, is_flat(fitness))
        new = self._ask_next(state.replace(key=key), inner, algorithm, params)
        return new.replace(population=finite_or(new.population, state.population))

    def solution(self, state: PyTreeDict) -> Params:
        """Return the mean of the strategy's distribution; without a single mean, the best individual so far."""
        solution, inner = row_of(state.population), state.inner
        algorithm, _ = self._algorithm(solution)
        if hasattr(algorithm, "get_mean") and inner.mean.ndim == 1:
            return algorithm.get_mean(inner)
        numbers, unravel = ravel_pytree(solution)
        best = jnp.argmin(jnp.ravel(inner.best_fitness))
        return unravel(inner.best_solution.reshape(-1, numbers.shape[0])[best])

    def _ask_next(self, state: PyTreeDict, inner: Any, algorithm: Any, params: Any) -> PyTreeDict:
        """Sample the next generation with evosax's state ``inner``, and return the state with both stored in it."""
        inner = self._set_std(inner, algorithm)
        key, ask_key = jax.random.split(state.key)
        population, inner = algorithm.ask(ask_key, inner, params)
        if "start" in state:
            population = jax.tree.map(lambda x, rows: x + self.initial_std * rows, state.start, population)
        return state | {"key": key, "inner": inner, "population": population}

    def _set_std(self, inner: Any, algorithm: Any) -> Any:
        """Return ``inner`` with the scheduled standard deviation, which evosax keeps at 1, set to ``initial_std``.

        Without a schedule, ``inner`` is unchanged. iAMaLGaM (Bosman et al. 2013) adds the value to the learned
        standard deviations in every generation. In ``iAMaLGaM_Univariate``, these would only grow, so the value is 0.
        """
        if not hasattr(algorithm, "std_schedule"):
            return inner
        std = 0.0 if self.strategy == _TWO_SPREADS else self.initial_std
        return inner.replace(std=jnp.full_like(inner.std, std))

    def _algorithm(self, solution: Params) -> tuple[Any, Any]:
        """Return evosax's algorithm for solutions of this structure, and its parameters."""
        algorithm, params = self._build(solution)
        if "std_init" in params.__dataclass_fields__:
            params = params.replace(std_init=self.initial_std)
        return algorithm, params.replace(**self.params)

    def _build(self, solution: Params) -> tuple[Any, Any]:
        leaves, treedef = jax.tree.flatten(solution)
        shapes = tuple(jnp.shape(leaf) for leaf in leaves)
        return _build(self.strategy, self.pop_size, self.num_populations, treedef, shapes)


def strategy_names() -> tuple[str, ...]:
    """Return the names of evosax's strategies."""
    return tuple(_evosax_algorithms().algorithms)


@functools.lru_cache(maxsize=64)
def _build(strategy: str, pop_size: int, num_populations: int, treedef: Any, shapes: tuple) -> tuple[Any, Any]:
    """Return an evosax algorithm for solutions with these leaf shapes, and its default parameters.

    JAX compares evosax's algorithms by identity. They are cached, so that equal settings share compiled programs.
    """
    with jax.ensure_compile_time_eval():
        solution = jax.tree.unflatten(treedef, [jnp.zeros(shape) for shape in shapes])
        num_numbers = sum(math.prod(shape) for shape in shapes)
        options: dict[str, Any] = {"population_size": pop_size, "solution": solution}
        if strategy in _NEEDS_GROUPS:
            options |= {"population_size": pop_size // num_populations, "num_populations": num_populations}
        if strategy == "RandomSearch":
            options["sampling_fn"] = lambda key: jax.random.normal(key, (num_numbers,))
        algorithm = _evosax_algorithms().algorithms[strategy](**options)
        params = algorithm.default_params
        if strategy == "LM_MA_ES":  # its learning rates exceed 1 if there are more individuals than parameters
            params = params.replace(c_c=jnp.minimum(params.c_c, 1.0))
        return algorithm, params


def _evosax_algorithms() -> Any:
    import evosax.algorithms

    return evosax.algorithms

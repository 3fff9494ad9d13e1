"""Base class of evolutionary optimizers, with an ask-and-tell interface."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import jax

from evorl.ec.fitness_shaping import failures_to_worst
from evorl.types import Key, Params, PyTreeDict, PyTreeNode


class EvoOptimizer(PyTreeNode):
    """Optimizer that maximizes fitness: ask for individuals, evaluate them, tell their fitness.

    A solution is a pytree of float arrays; a population has a leading axis P. The generation to evaluate next is a pure
    function of the state. ``ask`` returns any part, on any device, any number of times, so that a population does
    not have to fit into one device's memory.

    Attributes:
        pop_size: number of individuals per generation, P.

    Settings:
        name: name of the optimizer, see the page on evolution; or package.module:Class for a custom one.
    """

    pop_size: int

    # True if ``tell`` ranks non-finite fitness last; otherwise ``tellable`` replaces it.
    ranks_failures: ClassVar[bool] = False
    # True if external solutions can be injected, see ``inject``.
    takes_solutions: ClassVar[bool] = False

    @property
    def group_size(self) -> int:
        """Number of individuals to request together: 2 if they form pairs."""
        return 1

    @abstractmethod
    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """Return the initial state of a search around ``solution``."""

    @abstractmethod
    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        """Return the individuals ``first .. first + count - 1`` of this generation, ``[count, ...]``; by default all P.

        Results beyond the last individual are arbitrary and must be ignored. ``first`` and ``count`` must be multiples
        of ``group_size``, unless all individuals are requested.
        """

    def ask_factored(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        """Like ``ask``, but in the form that is fastest to evaluate for a population.

        Matrices may be ``ops.low_rank.PerturbedMatrix``; by default all are dense arrays.
        """
        return self.ask(state, first, count)

    @property
    def num_replaceable(self) -> int:
        """Maximum number of individuals that ``inject`` can replace, the last ones; all or none by default."""
        return self.pop_size if self.takes_solutions else 0

    def inject(self, state: PyTreeDict, solutions: Params, rows: jax.Array) -> PyTreeDict:
        """Replace some individuals of the next generation to evaluate by external solutions.

        ``ask`` returns these solutions and ``tell`` uses their fitness, so that they take part in selection and
        recombination.

        Args:
            state: state of the optimizer. Only the first call may change its structure.
            solutions: external solutions, ``[K, ...]``, with K at most ``num_replaceable``.
            rows: distinct indices of the individuals to replace, int32 ``[K]``; indices from P on are ignored.

        Raises:
            ValueError: this optimizer does not support injection.
        """
        raise ValueError(f"{type(self).__name__} does not support the injection of solutions.")

    @abstractmethod
    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Return the state of the next generation, given the fitness ``[P]`` of this one."""

    def tellable(self, fitness: jax.Array) -> jax.Array:
        """Replace non-finite fitness in ``[P]`` by the worst finite value for ``tell``, unless ``ranks_failures``."""
        return fitness if self.ranks_failures else failures_to_worst(fitness)

    @abstractmethod
    def solution(self, state: PyTreeDict) -> Params:
        """Return the current solution: the center of the search, or the best individual."""

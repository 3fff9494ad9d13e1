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
    function of the state: with ``ask``, every device can compute any part as often as necessary. A population therefore
    does not have to fit into the memory of one device.

    Attributes:
        pop_size: number of individuals per generation, P.

    Settings:
        name: name of the optimizer, such as openes or evosax/CMA_ES; or package.module:Class for a user-defined one.
    """

    pop_size: int

    # True if ``tell`` accepts non-finite fitness and treats it as the worst; otherwise ``tellable`` replaces it.
    ranks_failures: ClassVar[bool] = False
    # True if the optimizer supports ``inject``.
    takes_solutions: ClassVar[bool] = False

    @property
    def group_size(self) -> int:
        """Number of individuals that must be requested from ``ask`` together: 2 if they form pairs, else 1."""
        return 1

    @abstractmethod
    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """Return the initial state of a search around ``solution``."""

    @abstractmethod
    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        """Return the individuals ``first .. first + count - 1`` of this generation, ``[count, ...]``; by default all P.

        Rows beyond the last individual are arbitrary and must be ignored. ``first`` and ``count`` must be multiples of
        ``group_size``, unless all individuals are requested.
        """

    def ask_factored(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        """Return the individuals of ``ask`` in the form that is fastest to evaluate for a population.

        Matrices may be ``evorl.ops.low_rank.PerturbedMatrix`` instead of arrays. The default implementation is ``ask``.
        """
        return self.ask(state, first, count)

    @property
    def num_replaceable(self) -> int:
        """Number n of individuals that ``inject`` can replace: the last n. By default P, or 0 without injection."""
        return self.pop_size if self.takes_solutions else 0

    def inject(self, state: PyTreeDict, solutions: Params, rows: jax.Array) -> PyTreeDict:
        """Return the state in which external solutions replace individuals of the generation to evaluate next.

        ``ask`` returns these solutions and ``tell`` uses their fitness for selection and recombination.

        Args:
            state: state of the optimizer. The first call may add entries to it.
            solutions: external solutions, ``[K, ...]``, with K at most ``num_replaceable``.
            rows: distinct indices of the individuals to replace, int32 ``[K]``; indices of P and above are ignored.

        Raises:
            ValueError: this optimizer does not support injection.
        """
        raise ValueError(f"{type(self).__name__} does not support the injection of solutions: choose openes or ga.")

    @abstractmethod
    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Return the state of the next generation, given the fitness ``[P]`` of this one."""

    def tellable(self, fitness: jax.Array) -> jax.Array:
        """Return fitness for ``tell``: non-finite values become the worst finite one, unless ``ranks_failures``."""
        return fitness if self.ranks_failures else failures_to_worst(fitness)

    @abstractmethod
    def solution(self, state: PyTreeDict) -> Params:
        """Return the current solution: the center of the search distribution, or one individual, usually the best."""

"""The contract of evolutionary optimizers: which individuals to evaluate next, and what to make of their fitness."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from evorl.config.names import load
from evorl.ec.fitness_shaping import failures_to_worst
from evorl.types import Key, Params, PyTreeDict, PyTreeNode

REGISTRY = "evorl.ec.optimizers.registry"  # it knows them all


class EvoOptimizer(PyTreeNode):
    """Ask for individuals, evaluate them, tell their fitness, which is maximised.

    A solution is a pytree of float arrays; a population is one with a leading axis P. The generation that is to be
    evaluated next is a pure function of the state: any part of it can be asked for, anywhere and as often as wanted,
    so that a population need not be in memory at once, nor on one device.

    Attributes:
        pop_size: number of individuals P of a generation.

    Settings:
        name: which search it is, see the page on evolution; or package.module:Class for one of your own.
    """

    pop_size: int

    # ``True`` if ``tell`` ranks fitness that is not finite last; otherwise such fitness is replaced beforehand.
    ranks_failures: ClassVar[bool] = False

    @classmethod
    def variant(cls, config: Mapping[str, Any], where: str) -> tuple[type[EvoOptimizer], dict[str, Any]]:
        """The class that a config names as ``name``, and the settings of its fields.

        Raises:
            ValueError: it names none, or one that there is not; with the nearest name.
        """
        return load(f"{REGISTRY}:named_optimizer")(cls, config, where)

    @property
    def variant_name(self) -> str:
        """Return the name by which a config names the search."""
        return load(f"{REGISTRY}:optimizer_name")(self)

    @property
    def group_size(self) -> int:
        """Individuals that are best asked for together: 2 where they come in pairs."""
        return 1

    @abstractmethod
    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The first state: the search starts around ``solution``."""

    @abstractmethod
    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        """The individuals ``first .. first + count - 1`` of this generation, ``[count, ...]``; by default all P.

        Numbers past the last individual give further individuals, or repeat some; they are to be ignored. ``first``
        and ``count`` are multiples of ``group_size``, or all are asked for.
        """

    @property
    def num_replaceable(self) -> int:
        """How many individuals of a generation, its last ones, may be replaced from outside: see ``inject``."""
        return 0

    def inject(self, state: PyTreeDict, solutions: Params, rows: jax.Array) -> PyTreeDict:
        """The state in which solutions stand in for some individuals of the generation that is to be evaluated next.

        They are asked for and told of in place of these, so that they take part in selection and recombination.

        Args:
            state: of the optimizer. Its structure may change with the first call, and not after.
            solutions: ``[K, ...]``, with K at most ``num_replaceable``.
            rows: the numbers of the individuals, int32 ``[K]``, all different; one past the last replaces none.

        Raises:
            ValueError: no individual of this optimizer can be replaced.
        """
        kind = type(self).__name__
        raise ValueError(f"{kind} takes no solutions from outside: use ga, openes, vanilla_es or sepcem.")

    @abstractmethod
    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """The state of the next generation, given the fitness ``[P]`` of this one."""

    def tellable(self, fitness: jax.Array) -> jax.Array:
        """Return fitness ``[P]`` for ``tell``: failures get the worst finite fitness unless ``ranks_failures``."""
        return fitness if self.ranks_failures else failures_to_worst(fitness)

    @abstractmethod
    def solution(self, state: PyTreeDict) -> Params:
        """What to act with by now: the centre of the search, or the best individual."""

"""Emitters of CMA-ME (Fontaine et al. 2020, https://arxiv.org/abs/1912.02400) and CMA-MAE (Fontaine & Nikolaidis 2023,
https://arxiv.org/abs/2205.10752).

An emitter is a CMA-ES search whose individuals are candidates for an archive. By default, individuals are ranked
by how much they improve the archive, not by fitness. Several emitters search in parallel, each around its own mean.
"""

from __future__ import annotations

from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from evorl.config.values import require_positive
from evorl.ec.archives import Archive, ArchiveState
from evorl.ec.fitness_shaping import failures_to_minus_inf
from evorl.ec.optimizers import CMAES, SepCMAES
from evorl.ec.optimizers.covariance_adaptation import CovarianceAdaptation
from evorl.fields import Within
from evorl.ops.trees import flatten_leading_axes, split_leading_axis, tree_where
from evorl.types import Key, Params, PyTreeDict, PyTreeNode

# A search beyond one of these limits is restarted. pycma, which computes in float64, limits the condition to 1e14.
MAX_CONDITION = 1e9  # condition number of the covariance
MIN_EXTENT = 1e-11  # root mean square distance of the samples from their mean
MIN_RANGE = 1e-12  # difference between the ranking values of the best and the worst individual


class CovarianceEmitter(PyTreeNode):
    """Group of E emitters. Each samples an equal share of every generation. Leaves of the state have a leading axis E.

    Attributes:
        num_emitters: number of emitters E; must divide pop_size into shares of at least 4 individuals.
        optimizer: the emitters' optimizer: cmaes (full covariance) or sep_cmaes (variances only, for many parameters).
        initial_std: standard deviation of the samples at the start and after a restart.
        ranking: criterion that orders the individuals: imp, the improvement of the archive; obj, the fitness; rd, the
            position along a random direction in descriptor space. With the prefix 2, individuals that filled an empty
            cell come first, then individuals that improved a cell, then all others.
        selection: individuals to recombine: filter for all that the archive accepted, mu for the best half.
        restart: basic restarts an emitter from a random elite when its search has converged or its covariance is
            ill-conditioned; no_improvement also when the archive accepted none of the emitter's individuals.
        negative_weights: shrink the covariance along steps of the worse half; requires selection=mu and cmaes.
    """

    num_emitters: int = 15
    optimizer: Literal["cmaes", "sep_cmaes"] = "cmaes"
    initial_std: Annotated[float, Within("(0, inf)")] = 0.5
    ranking: Literal["imp", "2imp", "obj", "2obj", "rd", "2rd"] = "2imp"
    selection: Literal["filter", "mu"] = "filter"
    restart: Literal["no_improvement", "basic"] = "no_improvement"
    negative_weights: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "num_emitters")
        if self.negative_weights and (self.selection, self.optimizer) != ("mu", "cmaes"):
            raise ValueError(
                f"negative_weights=true requires selection=mu and optimizer=cmaes, got {self.selection} and "
                f"{self.optimizer}: change them, or set negative_weights=false."
            )

    def search(self, pop_size: int) -> CovarianceAdaptation:
        """Return the optimizer of each emitter for generations of ``pop_size`` individuals in total.

        Raises:
            ValueError: ``pop_size`` cannot be divided into ``num_emitters`` equal shares of at least 4 individuals.
        """
        if pop_size % self.num_emitters or pop_size < 4 * self.num_emitters:
            raise ValueError(
                f"pop_size={pop_size} must be a multiple of emitter.num_emitters={self.num_emitters}, with at least 4 "
                "individuals for each emitter."
            )
        kind = {"cmaes": CMAES, "sep_cmaes": SepCMAES}[self.optimizer]
        share = pop_size // self.num_emitters
        return kind(share, initial_std=self.initial_std, positive_weights=not self.negative_weights)

    def init(self, starts: Params, key: Key, pop_size: int, num_dimensions: int) -> PyTreeDict:
        """Return the initial state of emitters whose searches start at the solutions ``starts``, leaves ``[E, ...]``.

        Entries: ``searches`` (optimizer states), ``directions`` (random ``[E, num_dimensions]``), ``restarts`` (zeros).
        """
        search_key, direction_key = jax.random.split(key)
        keys = jax.random.split(search_key, self.num_emitters)
        return PyTreeDict(
            searches=jax.vmap(self.search(pop_size).init)(starts, keys),
            directions=jax.random.normal(direction_key, (self.num_emitters, num_dimensions)),
            restarts=jnp.zeros(self.num_emitters, jnp.int32),
        )

    def ask(self, state: PyTreeDict, pop_size: int) -> Params:
        """Return the next generation, leaves ``[P, ...]``: the individuals of the first emitter, of the second, etc."""
        return flatten_leading_axes(jax.vmap(self.search(pop_size).ask)(state.searches))

    def tell(
        self,
        state: PyTreeDict,
        key: Key,
        archive: Archive,
        before: ArchiveState,
        after: ArchiveState,
        *,
        fitness: jax.Array,
        descriptors: jax.Array,
    ) -> PyTreeDict:
        """Adapt or restart the search of each emitter; return the state of the next generation.

        Args:
            state: state of the emitters in this generation.
            key: random key for restarts.
            archive: archive with cells, to which the individuals of this generation were added.
            before: state of the archive before this generation; decides which individuals count as accepted.
            after: state of the archive after this generation; restarts begin at its elites.
            fitness: fitness of the individuals, ``[P]``.
            descriptors: descriptors of the individuals, ``[P, D]``.
        """
        verdicts = archive.judge(before, fitness, descriptors)
        extents = jnp.asarray(archive.high, jnp.float32) - jnp.asarray(archive.low, jnp.float32)
        rows = fitness, descriptors / extents, verdicts.status, verdicts.improvement
        rows = split_leading_axis(rows, self.num_emitters, fitness.shape[0] // self.num_emitters)
        search = self.search(fitness.shape[0])
        searches, restarts = jax.vmap(lambda *x: self._adapt(search, *x))(state.searches, state.directions, rows)
        elite_key, fresh_key = jax.random.split(key)
        starts = archive.sample(after, elite_key, self.num_emitters)
        fresh = self.init(starts, fresh_key, fitness.shape[0], descriptors.shape[1])
        new = tree_where(restarts, fresh, state.replace(searches=searches))
        return new.replace(restarts=state.restarts + restarts)

    def _adapt(
        self, search: CovarianceAdaptation, state: PyTreeDict, direction: jax.Array, rows: tuple[jax.Array, ...]
    ) -> tuple[PyTreeDict, jax.Array]:
        """Return the adapted optimizer state of one emitter, and a bool scalar, True if the emitter must restart."""
        fitness, descriptors, status, improvement = rows
        value = {"imp": improvement, "obj": fitness, "rd": descriptors @ direction}[self.ranking.removeprefix("2")]
        value = jnp.where(jnp.isfinite(improvement), failures_to_minus_inf(value), -jnp.inf)
        stage = status if self.ranking.startswith("2") else jnp.zeros_like(status)
        accepted = (status > 0).sum()
        # With selection=filter, accepted individuals outrank all others, because only accepted individuals recombine.
        entered = status > 0 if self.selection == "filter" else jnp.zeros(status.shape, bool)
        order = jnp.lexsort((value, stage, entered))  # worst first
        ranks = jnp.zeros(value.shape).at[order].set(jnp.arange(value.shape[0], dtype=jnp.float32))
        if self.selection == "filter":
            adapted = search.tell(state, ranks, accepted)
        else:
            adapted = search.tell(state, jnp.where(value > -jnp.inf, ranks, -jnp.inf))
        is_flat = (stage.max() == stage.min()) & ~(value.max() - value.min() >= MIN_RANGE)
        num_parameters = sum(x.size for x in jax.tree.leaves(state.mean))
        extent = adapted.sigma * search.spread(adapted) * jnp.sqrt(float(num_parameters))
        stops = is_flat | (extent < MIN_EXTENT) | (search.condition(adapted) > MAX_CONDITION)
        return adapted, stops | (accepted == 0) if self.restart == "no_improvement" else stops

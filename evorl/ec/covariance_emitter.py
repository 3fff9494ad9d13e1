"""Emitters of CMA-ME (Fontaine et al. 2020, https://arxiv.org/abs/1912.02400) and CMA-MAE (Fontaine & Nikolaidis 2023,
https://arxiv.org/abs/2205.10752).

An emitter is a covariance-adapting search whose individuals are ranked by their contribution to an archive, not by
fitness. Several emitters search in parallel, each around its own mean, and add to the same archive.
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

# A search has converged beyond these limits. pycma's limit of the condition number is 1e14, in float64.
MAX_CONDITION = 1e9
MIN_EXTENT = 1e-11  # standard deviation of the samples
MIN_RANGE = 1e-12  # difference between the best and the worst individual's ranking values


class CovarianceEmitter(PyTreeNode):
    """E emitters, which sample equal shares of a generation; their states are stacked, ``[E, ...]``.

    Attributes:
        num_emitters: number of emitters E, a divisor of pop_size.
        optimizer: search of each emitter: cmaes, or sep_cmaes for many parameters.
        initial_std: standard deviation of the samples at the start and after a restart.
        ranking: order of the individuals: imp by the improvement of their cells, obj by fitness, rd along a random
            direction in descriptor space; with the prefix 2, individuals that filled an empty cell come first, then
            individuals that improved a cell, then all others.
        selection: individuals to recombine: filter for the accepted ones, mu for the best half.
        restart: no_improvement restarts an emitter from a random elite if none of its individuals was accepted; basic
            only if its search has converged, which always restarts.
        negative_weights: also move the covariance away from the worse half; only for selection=mu.
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
        if self.negative_weights and self.selection == "filter":
            raise ValueError("negative_weights=true requires selection=mu: accepted individuals have positive weights.")

    def search(self, pop_size: int) -> CovarianceAdaptation:
        """Return the optimizer of each emitter for generations of ``pop_size`` individuals in total.

        Raises:
            ValueError: the emitters cannot have equal shares of at least 4 individuals.
        """
        if pop_size % self.num_emitters or pop_size < 4 * self.num_emitters:
            raise ValueError(
                f"pop_size={pop_size} must be a multiple of emitter.num_emitters={self.num_emitters}, with at least 4 "
                "individuals for each."
            )
        kind = {"cmaes": CMAES, "sep_cmaes": SepCMAES}[self.optimizer]
        share = pop_size // self.num_emitters
        return kind(share, initial_std=self.initial_std, positive_weights=not self.negative_weights)

    def init(self, starts: Params, key: Key, pop_size: int, num_dimensions: int) -> PyTreeDict:
        """Return the state of emitters starting at ``starts``, ``[E, ...]``, for ``num_dimensions`` descriptors.

        The state has the entries ``searches``, ``directions`` ``[E, D]`` and the number of ``restarts``, int32 ``[E]``.
        """
        search_key, direction_key = jax.random.split(key)
        keys = jax.random.split(search_key, self.num_emitters)
        return PyTreeDict(
            searches=jax.vmap(self.search(pop_size).init)(starts, keys),
            directions=jax.random.normal(direction_key, (self.num_emitters, num_dimensions)),
            restarts=jnp.zeros(self.num_emitters, jnp.int32),
        )

    def ask(self, state: PyTreeDict, pop_size: int) -> Params:
        """Return the next generation, ``[P, ...]``, grouped by emitter."""
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
            state: state of this generation.
            key: random key of restarts.
            archive: archive to which all individuals of the generation were added.
            before: state of the archive before they were added, against which they are judged.
            after: state of the archive after they were added; restarts begin at its elites.
            fitness: fitness ``[P]``.
            descriptors: descriptors ``[P, D]``.
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
        self,
        search: CovarianceAdaptation,
        state: PyTreeDict,
        direction: jax.Array,
        rows: tuple[jax.Array, ...],
    ) -> tuple[PyTreeDict, jax.Array]:
        """Return the adapted search of one emitter, and a bool scalar, True if the emitter must restart."""
        fitness, descriptors, status, improvement = rows
        value = {"imp": improvement, "obj": fitness, "rd": descriptors @ direction}[self.ranking.removeprefix("2")]
        value = jnp.where(jnp.isfinite(improvement), failures_to_minus_inf(value), -jnp.inf)
        stage = status if self.ranking.startswith("2") else jnp.zeros_like(status)
        accepted = (status > 0).sum()
        # Parents are first in the order: accepted individuals, even if others have larger values.
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

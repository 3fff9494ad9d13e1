"""Base class of quality-diversity workflows, which fill an archive with offspring of its elites."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState
from evorl.config.values import require_positive
from evorl.ec.archives import Archive, ArchiveState, GridArchive
from evorl.ec.operators.iso_line import IsoLineVariation
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.evaluators.population_evaluator import with_policy
from evorl.metrics import WideCounter
from evorl.ops.projection import projected
from evorl.runs.recorder import Chart, HeatMap, Panel, for_each_seed
from evorl.types import Entry, Key, Params, PyTreeDict
from evorl.workflows.generational import GenerationalState, GenerationalWorkflow, generation_metrics
from evorl.workflows.off_policy_state import LearnerState
from evorl.workflows.workflow import split_setup_keys

MAP_BINS = 32  # bins per descriptor in a heat map if the archive is not a grid
FINE_BINS = 128  # pixels per descriptor if the map draws the cells themselves


class QualityDiversityState(GenerationalState):
    """State of a quality-diversity workflow.

    Attributes:
        archive_state: elites of all cells, with their fitness and descriptors.
        population: policies of the current generation, ``[P, ...]``.
        learner: state of the learner that generates offspring by gradients; absent without a learner.
        emitter_state: state of the emitters that sample offspring from adapted distributions; absent without emitters.
    """

    archive_state: ArchiveState
    population: Params
    learner: Annotated[LearnerState, Entry(optional=True)]
    emitter_state: Annotated[PyTreeDict, Entry(optional=True)]


class QualityDiversityWorkflow(GenerationalWorkflow[QualityDiversityState]):
    """Evaluates one generation per iteration: random policies, then offspring. The agent acts with the best elite.

    Attributes:
        archive: archive of elites by their descriptors.
        descriptors: entries of ``info`` that form the descriptor, see ``evaluators.episodes.info_entries``: numbers or
            vectors, with as many components in total as the archive has dimensions.
        descriptor_statistic: ``mean`` of the entries over the episode, or their ``last`` value.
        pop_size: number of offspring P per generation; their fitness is the mean return of their episodes.
        variation: variation operator that generates offspring from two elites.
        fitness_offset: minimum possible fitness, which is subtracted from fitness in the QD score.
    """

    archive: Archive = GridArchive(low=(-1.0, -1.0), high=(1.0, 1.0))
    descriptors: tuple[str, ...] = ("next_obs.0", "next_obs.1")
    descriptor_statistic: Literal["mean", "last"] = "mean"
    pop_size: int = 128
    variation: IsoLineVariation = IsoLineVariation()
    fitness_offset: float = 0.0

    latest_metrics: ClassVar[tuple[str, ...]] = ("best_fitness", "qd_score", "coverage")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "pop_size")
        if not self.descriptors:
            raise ValueError("descriptors is empty: list entries of info that describe behavior, such as next_obs.0.")
        if getattr(self.agent, "normalize_obs", False):
            name = f"{'learner.' * hasattr(self, 'learner')}agent.normalize_obs"
            raise ValueError(
                f"{name}=true would change the behavior of elites after their evaluation: set it to false."
            )

    @classmethod
    def individuals(cls, fields: Mapping[str, Any]) -> int:
        return fields.get("pop_size", cls.pop_size)

    @property
    def num_rows(self) -> int:
        return self.pop_size * self.episodes_per_individual

    @abstractmethod
    def offspring(self, state: QualityDiversityState, key: Key) -> Params:
        """Return the next generation of policies, ``[P, ...]``."""

    def setup(self, key: Key) -> QualityDiversityState:
        """Return the initial state, with random policies and an empty archive."""
        first_key, population_key, state = split_setup_keys(key, QualityDiversityState)

        def fresh(key: Key) -> AgentState:
            return self.agent.init(self.env.obs_space, self.env.action_space, key)

        first = fresh(first_key)
        policy = first.params.policy
        state.agent_state = AgentState(params=PyTreeDict(policy=policy), extra_state=first.extra_state)
        state.archive_state = self.archive.init(policy)
        population = jax.vmap(lambda key: fresh(key).params.policy)(jax.random.split(population_key, self.pop_size))
        state.population = projected(population, self.variation.projection)
        state.timesteps = WideCounter.create()
        return state

    def collect(self, state: QualityDiversityState) -> tuple[EpisodeOutcomes, QualityDiversityState]:
        """Play E episodes with each of the P individuals; return the outcomes ``[P, E]`` and the new state."""
        key, episode_key = jax.random.split(state.key)

        def ask(first: jax.Array | int, count: int) -> Params:
            rows = jnp.minimum(first + jnp.arange(count), self.pop_size - 1)
            return jax.tree.map(lambda x: x[rows], state.population)

        evaluator = self.evaluator(env_fields=self.descriptors, record=self.recorded_entries)
        outcomes = evaluator.evaluate(self.agent, state.agent_state, ask, self.pop_size, episode_key)
        return outcomes, state.replace(key=key)

    @property
    def recorded_entries(self) -> tuple[str, ...] | None:
        """Entries of ``info`` to record with the transitions of all episodes; ``None`` records no transitions."""
        return None

    def update(self, state: QualityDiversityState, batch: EpisodeOutcomes) -> tuple[PyTreeDict, QualityDiversityState]:
        """Add the generation to the archive, which may reject individuals, and breed the next generation."""
        key, breeding_key = jax.random.split(state.key)
        fitness = batch.returns.mean(axis=1)
        # NaN returns reach the archive, which ignores these individuals; a substitute value might fill a cell.
        before, descriptors = state.archive_state, self.descriptor_values(batch)
        archive_state = self.archive.add(before, state.population, fitness, descriptors)
        best, best_fitness = self.archive.best(archive_state)
        metrics = generation_metrics(batch, fitness, best_fitness) | PyTreeDict(
            qd_score=self.archive.qd_score(archive_state, self.fitness_offset),
            coverage=self.archive.coverage(archive_state),
        )
        state = state.replace(
            key=key,
            archive_state=archive_state,
            agent_state=with_policy(state.agent_state, best),
            timesteps=state.timesteps.add(metrics.timesteps),
        )
        return metrics, self.breed(state, before, fitness, descriptors, breeding_key)

    def breed(
        self, state: QualityDiversityState, before: ArchiveState, fitness: jax.Array, descriptors: jax.Array, key: Key
    ) -> QualityDiversityState:
        """Return the state with the next generation, by default ``offspring(state, key)``.

        Args:
            state: state whose archive includes this generation.
            before: state of the archive before this generation was added.
            fitness: fitness of the generation, ``[P]``.
            descriptors: descriptors of the generation, ``[P, D]``.
            key: random key.
        """
        return state.replace(population=self.offspring(state, key))

    def descriptor_values(self, outcomes: EpisodeOutcomes) -> jax.Array:
        """Return the descriptors ``[P, D]`` of individuals, averaged over their episodes."""
        values = [outcomes.last[name] for name in self.descriptors]
        if self.descriptor_statistic == "mean":
            values = [
                jax.vmap(jax.vmap(jnp.divide))(outcomes.totals[name], outcomes.lengths) for name in self.descriptors
            ]
        columns = [x.mean(axis=1).reshape(self.pop_size, -1) for x in values]
        return jnp.concatenate(columns, axis=1)

    def vary(self, state: QualityDiversityState, key: Key, num: int) -> Params:
        """Return ``num`` children of pairs of random elites, generated by variation, ``[num, ...]``."""
        first_key, second_key, variation_key = jax.random.split(key, 3)
        first, second = (self.archive.sample(state.archive_state, k, num) for k in (first_key, second_key))
        return self.variation.children(variation_key, first, second)

    def charts(self, state: QualityDiversityState) -> Mapping[str, Chart]:
        """Return the chart ``archive`` of each seed: every elite's cell, fitness and descriptor."""
        archive_state = state.archive_state
        return for_each_seed(
            "archive", self.execution.num_seeds, lambda i: self._chart(jax.tree.map(lambda x: x[i], archive_state))
        )

    def _chart(self, archive_state: ArchiveState) -> Chart:
        """Build heat maps of fitness over pairs of consecutive descriptors, or a plot over a single descriptor."""
        fitness, descriptors = jax.device_get((archive_state.fitness, archive_state.descriptors))
        cells = np.flatnonzero(np.isfinite(fitness))
        names = self.descriptors
        if len(names) != descriptors.shape[1]:
            names = [f"descriptor_{i}" for i in range(descriptors.shape[1])]
        columns = {"cell": cells, "fitness": fitness[cells]}
        columns |= {name: descriptors[cells, i] for i, name in enumerate(names)}
        if len(names) == 1:
            return Chart(columns, (Panel(names[0], "fitness"),))
        maps = [fitness_map(self.archive, fitness, descriptors, pair) for pair in itertools.pairwise(range(len(names)))]
        pairs = itertools.pairwise(names)
        return Chart(columns, tuple(Panel(x, y, heat=heat) for (x, y), heat in zip(pairs, maps, strict=True)))


def fitness_map(archive: Archive, fitness: np.ndarray, descriptors: np.ndarray, pair: tuple[int, int]) -> HeatMap:
    """Return a heat map of fitness ``[C]`` (not finite: empty) over descriptors ``pair``, maximized over the others."""
    first, second = pair
    low, high = ((float(ends[first]), float(ends[second])) for ends in (archive.low, archive.high))
    bins = archive.shape if isinstance(archive, GridArchive) else (MAP_BINS,) * archive.num_dimensions
    shape = tuple(bins[i] for i in pair)
    filled = np.isfinite(fitness)
    if archive.num_dimensions == 2:
        if not isinstance(archive, GridArchive):
            shape = (FINE_BINS, FINE_BINS)
        axes = [a + (np.arange(n) + 0.5) / n * (b - a) for a, b, n in zip(low, high, shape, strict=True)]
        plane = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        of_cells = np.asarray(archive.cell_fitness(jnp.asarray(fitness), jnp.asarray(descriptors)))
        values = of_cells[np.asarray(archive.cells(jnp.asarray(plane, jnp.float32)))].reshape(shape)
        return HeatMap(np.where(np.isfinite(values), values, np.nan), low, high, "fitness")
    shares = (descriptors[filled][:, pair] - low) / (np.asarray(high) - low)
    cells = np.clip((shares * shape).astype(int), 0, np.asarray(shape) - 1)
    values = np.full(shape, -np.inf)
    np.maximum.at(values, tuple(cells.T), fitness[filled])
    label = f"maximum fitness over the other descriptors ({archive.num_dimensions - 2} of {archive.num_dimensions})"
    return HeatMap(np.where(np.isfinite(values), values, np.nan), low, high, label)

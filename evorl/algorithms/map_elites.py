"""MAP-Elites (Mouret & Clune 2015, https://arxiv.org/abs/1504.04909), CMA-ME and CMA-MAE.

An archive sorts policies into cells by their behavior descriptors; each cell stores the best policy found so far, its
elite. Random elites are mutated along the line to another elite (Vassiliades & Mouret 2018,
https://arxiv.org/abs/1804.03906), so that the archive fills with policies that are both diverse and good. With an
archive of centroids this is CVT-MAP-Elites (Vassiliades et al. 2018, https://arxiv.org/abs/1610.05729).

With emitters, adapted distributions generate the offspring instead: CMA-ME (Fontaine et al. 2020,
https://arxiv.org/abs/1912.02400), or, with acceptance thresholds in the archive, CMA-MAE (Fontaine & Nikolaidis 2023,
https://arxiv.org/abs/2205.10752). With an archive without cells this is Dominated Novelty Search (Bahlous-Boldi, Faldor
et al. 2025, https://arxiv.org/abs/2502.00593).
"""

from __future__ import annotations

import jax

from evorl.agents.policy import PolicyAgent
from evorl.ec.archives import ArchiveState, DominatedNoveltyArchive
from evorl.ec.covariance_emitter import CovarianceEmitter
from evorl.types import Key, Params
from evorl.workflows.quality_diversity import QualityDiversityState, QualityDiversityWorkflow


class MAPElitesWorkflow(QualityDiversityWorkflow):
    """MAP-Elites: generates all offspring by variation or by emitters.

    Attributes:
        emitter: emitters that generate all offspring by covariance matrix adaptation; ``None`` uses ``variation``.
    """

    agent: PolicyAgent
    emitter: CovarianceEmitter | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.emitter is None:
            return
        self.emitter.search(self.pop_size)
        if (projection := self.variation.projection) is not None:
            raise ValueError(
                f"variation.projection={projection} would only apply to the initial policies, because emitters replace "
                "variation: set it to null, or set emitter=null."
            )
        if isinstance(self.archive, DominatedNoveltyArchive):
            raise ValueError(
                "emitter requires an archive with cells, because it ranks policies by how much they improve a cell: "
                "choose archive.name=grid or centroid instead of dominated_novelty, or set emitter=null."
            )

    def setup(self, key: Key) -> QualityDiversityState:
        """Initialize the policies, an empty archive and, if configured, emitters that start at different policies."""
        emitter = self.emitter
        if emitter is None:
            return super().setup(key)
        key, emitter_key = jax.random.split(key)
        state = super().setup(key)
        starts = jax.tree.map(lambda x: x[: emitter.num_emitters], state.population)
        state.emitter_state = emitter.init(starts, emitter_key, self.pop_size, self.archive.num_dimensions)
        state.population = emitter.ask(state.emitter_state, self.pop_size)
        return state

    def breed(
        self, state: QualityDiversityState, before: ArchiveState, fitness: jax.Array, descriptors: jax.Array, key: Key
    ) -> QualityDiversityState:
        """Return the state with the next generation, from the emitters or, without emitters, from ``offspring``."""
        if self.emitter is None:
            return super().breed(state, before, fitness, descriptors, key)
        archives = self.archive, before, state.archive_state
        emitter_state = self.emitter.tell(state.emitter_state, key, *archives, fitness=fitness, descriptors=descriptors)
        population = self.emitter.ask(emitter_state, self.pop_size)
        return state.replace(emitter_state=emitter_state, population=population)

    def offspring(self, state: QualityDiversityState, key: Key) -> Params:
        return self.vary(state, key, self.pop_size)

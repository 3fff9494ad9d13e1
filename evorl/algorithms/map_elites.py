"""MAP-Elites (Mouret & Clune 2015, https://arxiv.org/abs/1504.04909).

Policies are sorted into cells by what they do, and each cell keeps the best one it has seen. Elites of cells drawn at
random are varied, along the line to another elite (Vassiliades & Mouret 2018, https://arxiv.org/abs/1804.03906), so
that the archive fills with policies that are good in many ways. With an archive of centroids it is CVT-MAP-Elites
(Vassiliades et al. 2018, https://arxiv.org/abs/1610.05729).
"""

from __future__ import annotations

from evorl.agents.policy import PolicyAgent
from evorl.types import Key, Params, State
from evorl.workflows.quality_diversity import QualityDiversityWorkflow


class MAPElitesWorkflow(QualityDiversityWorkflow):
    """All offspring by variation."""

    agent: PolicyAgent

    def offspring(self, state: State, key: Key) -> Params:
        """Children of random elites."""
        return self.vary(state, key, self.pop_size)

"""MAP-Elites (Mouret & Clune 2015, https://arxiv.org/abs/1504.04909).

An archive sorts policies into cells by their behavior descriptors; each cell stores the best policy found so far, its
elite. Random elites are mutated along the line to another elite (Vassiliades & Mouret 2018,
https://arxiv.org/abs/1804.03906), so that the archive fills with policies that are both diverse and good. With an
archive of centroids this is CVT-MAP-Elites (Vassiliades et al. 2018, https://arxiv.org/abs/1610.05729).
"""

from __future__ import annotations

from evorl.agents.policy import PolicyAgent
from evorl.types import Key, Params
from evorl.workflows.quality_diversity import QualityDiversityState, QualityDiversityWorkflow


class MAPElitesWorkflow(QualityDiversityWorkflow):
    """MAP-Elites: variation makes all offspring."""

    agent: PolicyAgent

    def offspring(self, state: QualityDiversityState, key: Key) -> Params:
        """Return children of random elites."""
        return self.vary(state, key, self.pop_size)

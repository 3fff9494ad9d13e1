"""Neuroevolution: the parameters of a policy are evolved by the return of whole episodes, without gradients.

The optimizer says which search it is: an evolution strategy such as OpenES (Salimans et al. 2017,
https://arxiv.org/abs/1703.03864), augmented random search, the cross-entropy method, CMA-ES, a genetic algorithm (Such
et al. 2017, https://arxiv.org/abs/1712.06567), or any strategy of evosax.
"""

from __future__ import annotations

from evorl.workflows.evolution import EvolutionWorkflow


class NeuroevolutionWorkflow(EvolutionWorkflow):
    """Generations of policies; each is one compiled step."""

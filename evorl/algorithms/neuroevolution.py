"""Neuroevolution: gradient-free search for policy parameters by episode returns.

The setting ``optimizer`` selects the method: an evolution strategy such as OpenES (Salimans et al. 2017,
https://arxiv.org/abs/1703.03864), augmented random search, the cross-entropy method, CMA-ES, a genetic algorithm (Such
et al. 2017, https://arxiv.org/abs/1712.06567), or any evosax strategy.
"""

from __future__ import annotations

from evorl.workflows.evolution import EvolutionWorkflow


class NeuroevolutionWorkflow(EvolutionWorkflow):
    """Evolves a population of policies: each iteration evaluates one generation and generates the next."""

"""Evolutionary optimizers, and their names in configs."""

from __future__ import annotations

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.optimizers.ars import ARS
from evorl.ec.optimizers.cma_es import CMAES
from evorl.ec.optimizers.genetic import GeneticAlgorithm
from evorl.ec.optimizers.multi_objective_optimizer import MultiObjectiveOptimizer
from evorl.ec.optimizers.nsga2 import NSGA2
from evorl.ec.optimizers.open_es import OpenES
from evorl.ec.optimizers.rvea import RVEA
from evorl.ec.optimizers.sep_cem import SepCEM
from evorl.ec.optimizers.sep_cma_es import SepCMAES
from evorl.ec.optimizers.vanilla_es import VanillaES

OPTIMIZERS: dict[str, type[EvoOptimizer]] = {
    "ars": ARS,
    "cmaes": CMAES,
    "ga": GeneticAlgorithm,
    "openes": OpenES,
    "sep_cmaes": SepCMAES,
    "sepcem": SepCEM,
    "vanilla_es": VanillaES,
}
MULTI_OBJECTIVE_OPTIMIZERS: dict[str, type[MultiObjectiveOptimizer]] = {"nsga2": NSGA2, "rvea": RVEA}


def with_injection() -> list[str]:
    """Return the names of the optimizers that support ``EvoOptimizer.inject``."""
    return [name for name, optimizer in OPTIMIZERS.items() if optimizer.takes_solutions]


__all__ = [
    "ARS",
    "CMAES",
    "MULTI_OBJECTIVE_OPTIMIZERS",
    "NSGA2",
    "OPTIMIZERS",
    "RVEA",
    "EvoOptimizer",
    "GeneticAlgorithm",
    "MultiObjectiveOptimizer",
    "OpenES",
    "SepCEM",
    "SepCMAES",
    "VanillaES",
    "with_injection",
]

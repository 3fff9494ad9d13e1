"""Evaluation of agents by complete episodes."""

from evorl.evaluators.evaluator import Evaluator
from evorl.evaluators.population import PopulationEvaluator

__all__ = ["Evaluator", "PopulationEvaluator"]

"""Evaluation of agents by complete episodes."""

from evorl.evaluators.evaluator import Evaluator

__all__ = ["Evaluator"]

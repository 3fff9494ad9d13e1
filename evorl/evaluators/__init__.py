"""Evaluators play complete episodes with an agent, or with every individual of a population."""

from evorl.evaluators.evaluator import Evaluator

__all__ = ["Evaluator"]

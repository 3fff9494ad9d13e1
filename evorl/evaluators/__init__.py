"""Evaluators: complete episodes of an agent, or of every individual of a population."""

from evorl.evaluators.evaluator import Evaluator

__all__ = ["Evaluator"]

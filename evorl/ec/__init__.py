"""Evolutionary computation: ask-and-tell optimizers, their operators, and archives."""

from evorl.ec import optimizers as optimizers  # registers their names
from evorl.ec.evo_optimizer import EvoOptimizer

__all__ = ["EvoOptimizer"]

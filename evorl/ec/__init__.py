"""Evolutionary computation: ask-and-tell optimizers, their operators, and archives."""

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.optimizers import registry as registry  # registers the names of optimizers in configs

__all__ = ["EvoOptimizer"]

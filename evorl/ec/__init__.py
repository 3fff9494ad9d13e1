"""Evolutionary computation: optimizers that ask for evaluations and are told their results."""

from evorl.ec.evo_optimizer import EvoOptimizer

__all__ = ["EvoOptimizer"]

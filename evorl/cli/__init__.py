"""The command line: ``evorl-train`` and ``evorl-evaluate``, or the scripts of the same names."""

from evorl.cli.main import evaluate, train

__all__ = ["evaluate", "train"]

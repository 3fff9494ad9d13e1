"""The command line: ``evorl-train``, ``evorl-evaluate`` and ``evorl-save-replay``, or the scripts of the same names."""

from evorl.cli.main import evaluate, train
from evorl.cli.saving import save_replay

__all__ = ["evaluate", "save_replay", "train"]

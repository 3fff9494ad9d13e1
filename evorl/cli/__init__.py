"""The command line: ``evorl-train``, ``evorl-evaluate`` and others, or the scripts of the same names."""

from evorl.cli.main import evaluate, replay, train
from evorl.cli.saving import save_replay

__all__ = ["evaluate", "replay", "save_replay", "train"]

"""The command line: ``evorl-train``, ``evorl-evaluate`` and others, or the scripts of the same names."""

from evorl.cli.main import evaluate, show_episode, train
from evorl.cli.saving import save_replay

__all__ = ["evaluate", "save_replay", "show_episode", "train"]

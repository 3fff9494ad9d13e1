"""The command line: ``evorl-train``, ``evorl-evaluate`` and others, or the scripts of the same names."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.cli.main import evaluate, show_episode, train
    from evorl.cli.saving import save_replay

__all__ = ["evaluate", "save_replay", "show_episode", "train"]


def __getattr__(name: str) -> Any:
    """What trains or evaluates imports JAX, which commands that list, watch or supervise do without."""
    if name in __all__:
        module = "saving" if name == "save_replay" else "main"
        return getattr(importlib.import_module(f"evorl.cli.{module}"), name)
    raise AttributeError(f"module 'evorl.cli' has no attribute {name!r}")

"""evorl: reinforcement learning and evolutionary computation as end-to-end compiled functions on JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from evorl.distribution import installed_version

if TYPE_CHECKING:
    from evorl.agent import Agent, AgentState
    from evorl.agents.random_actions import RandomAgent
    from evorl.sample_batch import SampleBatch
    from evorl.types import PyTreeData, PyTreeDict, PyTreeNode, State, pytree_field

    # Defined in the topmost layer (evorl.export.stored_policy, evorl.cli.python_api), which must not be imported here.
    export_policy: Any
    load_policy: Any
    pack: Any
    render: Any
    report: Any
    train: Any

__version__ = installed_version()

__all__ = [
    "Agent",
    "AgentState",
    "PyTreeData",
    "PyTreeDict",
    "PyTreeNode",
    "RandomAgent",
    "SampleBatch",
    "State",
    "__version__",
    "export_policy",
    "load_policy",
    "pack",
    "pytree_field",
    "render",
    "report",
    "train",
]

# Imported on first access: importing JAX takes seconds, and the command line must respond to Ctrl-C before that.
_MODULES = {
    "export.stored_policy": ("load_policy",),
    "cli.python_api": ("export_policy", "pack", "render", "report", "train"),
    "agent": ("Agent", "AgentState"),
    "agents.random_actions": ("RandomAgent",),
    "sample_batch": ("SampleBatch",),
    "types": ("PyTreeData", "PyTreeDict", "PyTreeNode", "State", "pytree_field"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"evorl.{module}"), name)
    raise AttributeError(f"module 'evorl' has no attribute {name!r}")

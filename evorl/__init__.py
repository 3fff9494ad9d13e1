"""evorl: reinforcement learning and evolutionary computation as end-to-end compiled functions on JAX."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.agent import Agent, AgentState, RandomAgent
    from evorl.sample_batch import SampleBatch
    from evorl.types import PyTreeData, PyTreeDict, PyTreeNode, State, pytree_field

    # Of the topmost layer (evorl.export.loading, evorl.cli.calling): what is imported here is read by all.
    export_policy: Any
    load_policy: Any
    render: Any
    report: Any
    train: Any

# The name that pip installs. On package indexes, evorl and evorl-jax are other projects, which import as evorl too.
DISTRIBUTION = "evorl-engine"
try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

__all__ = [
    "DISTRIBUTION",
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
    "pytree_field",
    "render",
    "report",
    "train",
]

# Imported when they are asked for: the command line answers Ctrl-C before JAX, which takes seconds, is imported.
_MODULES = {
    "cli.calling": ("export_policy", "render", "report", "train"),
    "export.loading": ("load_policy",),
    "agent": ("Agent", "AgentState", "RandomAgent"),
    "sample_batch": ("SampleBatch",),
    "types": ("PyTreeData", "PyTreeDict", "PyTreeNode", "State", "pytree_field"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"evorl.{module}"), name)
    raise AttributeError(f"module 'evorl' has no attribute {name!r}")

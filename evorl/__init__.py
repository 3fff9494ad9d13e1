"""evorl: reinforcement learning and evolutionary computation as end-to-end compiled functions on JAX."""

from importlib.metadata import PackageNotFoundError, version

from evorl.agent import Agent, AgentState, RandomAgent
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeData, PyTreeDict, PyTreeNode, State, pytree_field

try:
    __version__ = version("evorl")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

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
    "pytree_field",
]

"""evorl: reinforcement learning and evolutionary computation as end-to-end compiled functions on JAX."""

from typing import TYPE_CHECKING

from evorl.distribution import installed_version
from evorl.exports import lazy_exports
from evorl.xla_flags import CORRECT_RESULTS, add_xla_flags

__version__ = installed_version()
add_xla_flags(CORRECT_RESULTS)

# Imported on first access: importing JAX takes seconds, and the command line must respond to Ctrl-C before that.
if TYPE_CHECKING:
    from evorl import agents as agents
    from evorl import algorithms as algorithms
    from evorl import ec as ec
    from evorl import envs as envs
    from evorl import networks as networks
    from evorl import replay_buffers as replay_buffers
    from evorl import workflows as workflows
    from evorl.agent import Agent as Agent
    from evorl.agent import AgentState as AgentState
    from evorl.agents.random_actions import RandomAgent as RandomAgent
    from evorl.cli.catalogs import list_agents as list_agents
    from evorl.cli.catalogs import list_envs as list_envs
    from evorl.cli.python_api import check_env as check_env
    from evorl.cli.python_api import compare as compare
    from evorl.cli.python_api import evaluate as evaluate
    from evorl.cli.python_api import export_policy as export_policy
    from evorl.cli.python_api import make as make
    from evorl.cli.python_api import pack as pack
    from evorl.cli.python_api import play as play
    from evorl.cli.python_api import render as render
    from evorl.cli.python_api import report as report
    from evorl.cli.python_api import train as train
    from evorl.export.stored_policy import load_policy as load_policy
    from evorl.sample_batch import SampleBatch as SampleBatch
    from evorl.types import PyTreeData as PyTreeData
    from evorl.types import PyTreeDict as PyTreeDict
    from evorl.types import PyTreeNode as PyTreeNode
    from evorl.types import State as State
    from evorl.types import pytree_field as pytree_field
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        **{
            "agent": "Agent AgentState",
            "agents.random_actions": "RandomAgent",
            "cli.catalogs": "list_agents list_envs",
            "cli.python_api": "check_env compare evaluate export_policy make pack play render report train",
            "export.stored_policy": "load_policy",
            "sample_batch": "SampleBatch",
            "types": "PyTreeData PyTreeDict PyTreeNode State pytree_field",
        },
        packages="agents algorithms ec envs networks replay_buffers workflows",
        others="__version__",
    )

"""Contents of the config files."""

from __future__ import annotations

import copy
import functools
import typing
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evorl.agent import Agent
from evorl.assembly import complete_config, workflow_class
from evorl.cli.composition import compose_config
from evorl.cli.config_tree import AGENT_PARTS, config_folder
from evorl.envs.action_spaces import ActionSpaces
from evorl.runs.spec import RunSpec

CONFIGS = config_folder()


def spec_of(*overrides: str) -> RunSpec:
    """Return the settings of a run with these overrides."""
    return RunSpec.from_config(composed(*overrides))


def composed(*overrides: str) -> DictConfig:
    """Return a new copy of a composed config; Hydra composes equal overrides only once."""
    return copy.deepcopy(_composed(*overrides))


@functools.cache
def _composed(*overrides: str) -> DictConfig:
    return compose_config(["devices=1", *overrides])


def merged(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``config`` into ``defaults`` recursively; values that are not mappings replace the default."""
    result = dict(defaults)
    for name, value in config.items():
        default = result.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value = merged(default, value)
        result[name] = value
    return result


def said_by(file: str, part: str = "") -> dict[str, Any]:
    """Return the settings of a config file merged with its defaults list, without class defaults.

    The settings of a part, such as ``inner``, are below its key.
    """
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{file}.yaml"))
    file_config: dict[str, Any] = {}
    own = merged({}, {key: value for key, value in config.items() if key != "defaults"})
    for default in config.get("defaults", ["_self_"]):
        if default == "_self_":
            file_config = merged(file_config, own)
            continue
        if isinstance(default, str):
            file, _, package = default.removeprefix("/").partition("@")
            below = package.removeprefix("_global_").removeprefix("_here_").removeprefix(".")
            file_config = merged(file_config, {below: said_by(file)} if below else said_by(file))
            continue
        ((group, name),) = default.items()
        group = group.removeprefix("optional ").removeprefix("/")
        if group in AGENT_PARTS:
            file_config = merged(file_config, {group: said_by(f"agent/{name}")})
        elif not name.startswith("${inner}/"):  # an experiment of the inner agent
            file_config = merged(file_config, said_by(f"{group}/{name.replace('${inner}', 'ppo')}"))
    return file_config


def acts_in(agent: str) -> ActionSpaces:
    """Return the action spaces supported by the agent of a file, or of its learner; categorical values need boxes."""
    config = said_by(f"agent/{agent}")
    config = config.get("learner", config)
    spaces = typing.get_type_hints(workflow_class(config["workflow"])).get("agent", Agent).acts_in
    has_critics = config["workflow"].endswith(("SACWorkflow", "CrossQWorkflow"))
    is_categorical = has_critics and config.get("agent", {}).get("values") == "categorical"
    return spaces & ActionSpaces.BOXES if is_categorical else spaces


def online(agent: str) -> list[str]:
    """Return the override with which an offline agent learns from its environment."""
    usual = complete_config(workflow_class(said_by(f"agent/{agent}")["workflow"]), {})
    return ["offline=false"] if usual.get("offline") else []


def leaves_of(config: Any, prefix: str = "") -> list[tuple[str, Any]]:
    leaves = []
    for key, value in config.items():
        if isinstance(value, dict):
            leaves += leaves_of(value, f"{prefix}{key}.")
        else:
            leaves.append((prefix + key, value))
    return leaves

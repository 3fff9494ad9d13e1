"""From a config to the fields of a workflow: nested mappings become nodes, unknown names are refused."""

from __future__ import annotations

import dataclasses
import importlib
import math
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from evorl.agent import Agent
from evorl.envs import AutoresetMode, create_env
from evorl.envs.env import Env
from evorl.types import PyTreeNode
from evorl.workflows.execution_plan import plan_execution
from evorl.workflows.settings import check_names, checked_mapping, checked_value, declared_ranges, positive

if TYPE_CHECKING:
    from evorl.workflows.workflow import Workflow

Node = TypeVar("Node", bound=PyTreeNode)
AgentClass = TypeVar("AgentClass", bound=Agent)

# Keys of a run's config that concern the run, not the workflow.
RUN_KEYS = frozenset(
    {"workflow", "seed", "resume", "run", "runs_folder", "recorders", "checkpoints_kept", "compilation_cache"}
)
# Keys from which fields are made, rather than being fields.
BUILD_KEYS = frozenset({"env", "agent", "num_envs", "autoreset_mode", "devices", "num_seeds", "env_chunk"})
# Options of an environment that change what the agent is paid, not what is reported.
REWARD_OPTIONS = frozenset({"reward_scale", "sparse_reward_interval"})
_NO_TRAINING = {
    AutoresetMode.DISABLED: "an environment whose episode has ended stands still, and nothing would be learned from it",
    AutoresetMode.ENVPOOL: "the step after an episode only resets, and would be learned from as if it were a real one",
}


def read_workflow_config(cls: type[Workflow], config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``cls`` that a config describes. See ``Workflow.build_from_config``."""
    config = {key: value for key, value in plain(config).items() if key not in RUN_KEYS}
    field_names = {field.name for field in dataclasses.fields(cls)} - {"eval_env", "execution"}
    check_names(config, (field_names | BUILD_KEYS | RUN_KEYS) - set(cls.foreign_keys), "config key")
    if "env" not in config:
        raise ValueError("The config names no environment: give env, for example {'library': 'gymnax', 'name': ...}.")
    settings = {key: value for key, value in config.items() if key not in BUILD_KEYS}
    own = fields_from_config(cls, settings, "")
    env = make_env(config["env"], *cls.training_rows(config, own))
    eval_config = as_paid_by_the_environment(config["env"])
    eval_episodes = positive(config.get("eval_episodes", 20), "eval_episodes")
    eval_env = make_env(eval_config, eval_rows(eval_episodes), AutoresetMode.DISABLED)
    execution, env_chunk = plan_execution(
        env,
        devices=config.get("devices", 1),
        num_seeds=positive(config.get("num_seeds", 1), "num_seeds"),
        env_chunk=config.get("env_chunk", "auto"),
        min_bytes=cls.min_bytes_per_device,
        evenly=cls.needs_even_shares,
    )
    if execution.num_devices > 1 and eval_env.num_envs % execution.num_devices:
        eval_env = make_env(eval_config, eval_rows(eval_episodes, execution.num_devices), AutoresetMode.DISABLED)
    agent = cls.make_agent(checked_mapping(config.get("agent"), "agent"), env)
    return {**own, "env": env, "eval_env": eval_env, "agent": agent, "execution": execution, "env_chunk": env_chunk}


def workflow_from_config(config: Mapping[str, Any], name: str = "workflow") -> Workflow:
    """The workflow whose class a config names by its path, built from that config.

    Args:
        config: with ``workflow``, such as ``evorl.algorithms.ppo.PPOWorkflow``.
        name: of that setting, for messages.

    Raises:
        ValueError: there is no such class, or the config does not fit together, in words.
    """
    if "workflow" not in config:
        raise ValueError(f"{name} is missing: name the class, for example evorl.algorithms.ppo.PPOWorkflow.")
    module_name, _, class_name = str(config["workflow"]).rpartition(".")
    try:
        workflow_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name}={config['workflow']!r} names no class that can be imported: {error}.") from error
    return workflow_class.build_from_config(config)


def inner_workflow(
    config: Mapping[str, Any], name: str, shared: tuple[str, ...], not_its_own: tuple[str, ...]
) -> Workflow:
    """The workflow that a part of a config describes, of a workflow that holds others.

    Args:
        config: of the whole.
        name: of the part, a mapping with a ``workflow`` key.
        shared: settings of the whole that the part has too.
        not_its_own: further settings that only the whole has.

    Raises:
        ValueError: the part has such a setting, or does not fit together, in words.
    """
    part = checked_mapping(config.get(name), name)
    for setting in (*shared, *not_its_own):
        if setting in part:
            raise ValueError(f"{name}.{setting} is that of the whole run: give {setting} instead.")
    return workflow_from_config({**part, **{key: config[key] for key in shared if key in config}}, f"{name}.workflow")


def make_env(config: Mapping[str, Any] | str, num_envs: int, autoreset_mode: AutoresetMode) -> Any:
    """The vector environment of a config."""
    return create_env(config, parallel=num_envs, autoreset_mode=autoreset_mode)


def training_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """The autoreset mode of training environments.

    Raises:
        ValueError: there is no such mode, or it is one whose idle steps nothing would leave out of the training.
    """
    if not isinstance(mode, AutoresetMode):
        check_names([str(mode).upper()], AutoresetMode.__members__, "autoreset_mode")
        mode = AutoresetMode[str(mode).upper()]
    if mode in _NO_TRAINING:
        raise ValueError(f"autoreset_mode={mode.value} is not for training: {_NO_TRAINING[mode]}. Use normal or fast.")
    return mode


def as_paid_by_the_environment(config: Mapping[str, Any] | str) -> Mapping[str, Any] | str:
    """An environment's config without what changes its reward: evaluations report what the environment itself pays."""
    if not isinstance(config, Mapping):
        return config
    return {key: value for key, value in config.items() if key not in REWARD_OPTIONS}


def eval_rows(num_episodes: int, multiple_of: int = 1, at_most: int = 128) -> int:
    """How many environments an evaluation steps side by side: one for each episode, up to a limit."""
    rounds = math.ceil(num_episodes / at_most)
    return math.ceil(num_episodes / rounds / multiple_of) * multiple_of


def node_from_config(cls: type[Node], config: Mapping[str, Any] | None, where: str, **given: Any) -> Node:
    """A node whose fields are read from a mapping; ``given`` are fields that the mapping may not hold.

    Raises:
        ValueError: a key is no field of the node, with the nearest valid name; or a field that needs a value has none.
    """
    config = plain(checked_mapping(config, where))
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    check_names(config, {field.name for field in fields} - set(given), f"key of {where}")
    for field in fields:
        needed = field.init and field.default is field.default_factory is dataclasses.MISSING
        if needed and field.name not in {*config, *given}:
            raise ValueError(f"{where}.{field.name} is missing: give it a value.")
    return cls(**fields_from_config(cls, config, where), **given)


def agent_from_config(cls: type[AgentClass], config: Mapping[str, Any] | None, env: Env) -> AgentClass:
    """An agent from the ``agent`` part of a config, its networks built for the spaces of ``env``.

    Raises:
        ValueError: the algorithm cannot act in the action space, a key is unknown, or a value cannot work.
    """
    settings = plain(checked_mapping(config, "agent"))
    for name, annotation in cls.part_settings.items():
        if name in settings:
            settings[name] = checked_value(settings[name], annotation, f"agent.{name}")
    parts = cls.parts(settings, env)
    return node_from_config(cls, settings, "agent", **parts)


def fields_from_config(cls: type[PyTreeNode], config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values for the fields of ``cls``: nested mappings become the node their field is annotated with, or the variant
    of it that they name, where it has a method ``variant(config, where) -> (class, config)``. A name by itself is short
    for a mapping that holds nothing else.

    Raises:
        ValueError: a value is not of the type of its field, or out of the range that the class declares.
    """
    annotations = typing.get_type_hints(cls)
    ranges = declared_ranges(cls)
    values = {}
    for name, value in config.items():
        annotation = annotations[name]
        nested = _node_type(annotation)
        path = f"{where}.{name}" if where else name
        if nested is None or (value is None and type(None) in typing.get_args(annotation)):
            values[name] = checked_value(value, annotation, path, ranges.get(name))
        elif isinstance(value, nested):
            values[name] = value
        else:
            variant = getattr(nested, "variant", None)
            has_name = variant is not None or "name" in typing.get_type_hints(nested)
            nested_config = checked_mapping({"name": value} if has_name and isinstance(value, str) else value, path)
            if variant is not None:
                nested, nested_config = variant(nested_config, path)
            values[name] = node_from_config(nested, nested_config, path)
    return values


def plain(config: Any) -> dict[str, Any]:
    """A config as plain dicts, lists and scalars, interpolations resolved."""
    if type(config).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(config, resolve=True)  # pyright: ignore[reportReturnType]
    return {key: plain(value) if isinstance(value, Mapping) else value for key, value in config.items()}


def _node_type(annotation: Any) -> type[PyTreeNode] | None:
    candidates = (annotation, *typing.get_args(annotation))
    return next((a for a in candidates if isinstance(a, type) and issubclass(a, PyTreeNode)), None)

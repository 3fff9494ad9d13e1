"""From a config to the fields of a workflow: nested mappings become nodes, unknown names are refused."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from evorl.envs import AutoresetMode, create_env
from evorl.types import PyTreeNode
from evorl.workflows.execution import plan_execution

if TYPE_CHECKING:
    from evorl.workflows.workflow import Workflow

Node = TypeVar("Node", bound=PyTreeNode)

# Keys of a run's config that concern the run, not the workflow.
RUN_KEYS = frozenset(
    {"workflow", "seed", "resume", "run", "runs_folder", "recorders", "checkpoints_kept", "compilation_cache"}
)
# Keys from which fields are made, rather than being fields.
BUILD_KEYS = frozenset({"env", "agent", "num_envs", "autoreset_mode", "devices", "num_seeds", "env_chunk"})


def read_workflow_config(cls: type[Workflow], config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``cls`` that a config describes. See ``Workflow.build_from_config``."""
    config = {key: value for key, value in plain(config).items() if key not in RUN_KEYS}
    field_names = {field.name for field in dataclasses.fields(cls)} - {"eval_env", "execution"}
    check_names(config, field_names | BUILD_KEYS | RUN_KEYS, "config key")
    if "env" not in config:
        raise ValueError("The config names no environment: give env, for example {'library': 'gymnax', 'name': ...}.")
    num_envs = positive(config.get("num_envs", 1), "num_envs")
    env = make_env(config["env"], num_envs, config.get("autoreset_mode", "NORMAL"))
    eval_episodes = positive(config.get("eval_episodes", 20), "eval_episodes")
    eval_env = make_env(config["env"], eval_rows(eval_episodes), "DISABLED")
    execution, env_chunk = plan_execution(
        env,
        devices=config.get("devices", 1),
        num_seeds=positive(config.get("num_seeds", 1), "num_seeds"),
        env_chunk=config.get("env_chunk", "auto"),
    )
    if execution.num_devices > 1 and eval_env.num_envs % execution.num_devices:
        eval_env = make_env(config["env"], eval_rows(eval_episodes, execution.num_devices), "DISABLED")
    agent = cls.make_agent(config.get("agent") or {}, env)
    settings = {key: value for key, value in config.items() if key not in BUILD_KEYS}
    own = fields_from_config(cls, settings, "")
    return {**own, "env": env, "eval_env": eval_env, "agent": agent, "execution": execution, "env_chunk": env_chunk}


def make_env(config: Mapping[str, Any] | str, num_envs: int, autoreset_mode: str | AutoresetMode) -> Any:
    """The vector environment of a config."""
    if isinstance(autoreset_mode, str):
        check_names([autoreset_mode.upper()], AutoresetMode.__members__, "autoreset_mode")
        autoreset_mode = AutoresetMode[autoreset_mode.upper()]
    return create_env(config, parallel=num_envs, autoreset_mode=autoreset_mode)


def eval_rows(num_episodes: int, multiple_of: int = 1, at_most: int = 128) -> int:
    """How many environments an evaluation steps side by side: one for each episode, up to a limit."""
    rounds = math.ceil(num_episodes / at_most)
    return math.ceil(num_episodes / rounds / multiple_of) * multiple_of


def node_from_config(cls: type[Node], config: Mapping[str, Any] | None, where: str, **given: Any) -> Node:
    """A node whose fields are read from a mapping; ``given`` are fields that the mapping may not hold.

    Raises:
        ValueError: a key is no field of the node, with the nearest valid name.
    """
    config = plain(config or {})
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    check_names(config, {field.name for field in fields} - set(given), f"key of {where}")
    return cls(**fields_from_config(cls, config, where), **given)


def fields_from_config(cls: type[PyTreeNode], config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values for the fields of ``cls``: nested mappings become the node their field is annotated with."""
    annotations = typing.get_type_hints(cls)
    values = {}
    for name, value in config.items():
        annotation = annotations[name]
        nested = _node_type(annotation)
        path = f"{where}.{name}" if where else name
        if isinstance(value, Mapping) and nested is not None:
            value = node_from_config(nested, value, path)
        elif _expects_float(annotation):
            value = _as_float(value, path)
        values[name] = value
    return values


def plain(config: Any) -> dict[str, Any]:
    """A config as plain dicts, lists and scalars, interpolations resolved."""
    if type(config).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(config, resolve=True)  # pyright: ignore[reportReturnType]
    return {key: plain(value) if isinstance(value, Mapping) else value for key, value in config.items()}


def check_names(names: Iterable[str], valid: Iterable[str], what: str) -> None:
    """Refuse a name that is not valid, and say the nearest one that is."""
    valid = sorted(valid)
    for name in names:
        if name not in valid:
            near = difflib.get_close_matches(name, valid, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"valid are {', '.join(valid)}."
            raise ValueError(f"Unknown {what} {name!r}: {hint}")


def positive(value: Any, name: str) -> int:
    """``value`` as a positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, got {value!r}.")
    return int(value)


def _node_type(annotation: Any) -> type[PyTreeNode] | None:
    candidates = (annotation, *typing.get_args(annotation))
    return next((a for a in candidates if isinstance(a, type) and issubclass(a, PyTreeNode)), None)


def _expects_float(annotation: Any) -> bool:
    return annotation is float or float in typing.get_args(annotation)


def _as_float(value: Any, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path} must be a number, got {value!r}.")
    return float(value)

"""Translates an app's training settings into arguments of ``evorl serve``, and checks them by composing the config."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evorl.apps.app_config import APP_FILE, AppConfig
from evorl.cli.composition import compose_config, config_folder
from evorl.cli.errors import config_error_in_words, config_names, is_of_config
from evorl.cli.override_text import as_override
from evorl.config.command_lines import as_arguments
from evorl.config.names import no_such
from evorl.config.values import plain
from evorl.runs.trust import foreign_names, refuse_composed_code

# Settings that are config groups or short forms: an override of the whole setting would choose a file by name.
_CHOSEN = re.compile(r"agent|env|replay|evolution|inner|learner|(?:\w+\.)*(?:\w*optimizer|archive)")
# Settings of experiments that need consecutive steps of one environment.
_NOT_SERVED = ("n_step", "normalize_rewards", "replay.hindsight", "replay.overwrite")
# Mappings with unchecked keys: keyword arguments of a library.
_FREE = re.compile(r"(?:\w+\.)*\w*optimizer\.options")

_GIVE_WORDS = "Give it with the command, as in evorl run all key=value."


class AgentFacts(NamedTuple):
    """Properties of an algorithm that an app depends on.

    Attributes:
        file: settings file.
        source: source file of the workflow.
        in_boxes: True if the agent supports only Box actions.
        is_off_policy: True if the agent learns from a replay buffer.
    """

    file: Path
    source: Path
    in_boxes: bool
    is_off_policy: bool


def agent_facts(agent: str) -> AgentFacts:
    """Return the properties of an agent of the package.

    Raises:
        ValueError: no agent has this name, or remote simulators cannot train it.
    """
    import inspect

    from omegaconf import OmegaConf

    from evorl.assembly import workflow_class
    from evorl.workflows.off_policy import OffPolicyWorkflow

    folder = config_folder() / "agent"
    if agent not in config_names(folder):
        raise ValueError(no_such("algorithm", agent, served_agents()))
    if reason := _reason_not_served(agent):
        raise ValueError(f"{agent} cannot be served: {reason} These can: {', '.join(served_agents())}.")
    file = folder / f"{agent}.yaml"
    settings: Any = OmegaConf.load(file)
    workflow: Any = workflow_class(settings["workflow"])
    return AgentFacts(
        file=file,
        source=Path(inspect.getfile(workflow)),
        in_boxes=_acts_in_boxes(workflow),
        is_off_policy=issubclass(workflow, OffPolicyWorkflow),
    )


def served_agents() -> list[str]:
    """Return the names of the agents that remote simulators can train."""
    return [name for name in config_names(config_folder() / "agent") if _reason_not_served(name) is None]


@functools.cache
def _reason_not_served(agent: str) -> str | None:
    """Return why the training server rejects an agent with the settings of its file; ``None`` if it accepts it."""
    from omegaconf import OmegaConf

    from evorl.assembly import complete_config, workflow_class, workflow_from_config
    from evorl.serving.training_server import reason_not_served
    from evorl.workflows.off_policy import OffPolicyWorkflow
    from evorl.workflows.on_policy import OnPolicyWorkflow

    file = plain(OmegaConf.load(config_folder() / "agent" / f"{agent}.yaml"), resolve=False)
    workflow = workflow_class(file["workflow"])
    if not issubclass(workflow, OnPolicyWorkflow | OffPolicyWorkflow) or "defaults" in file:
        return "it learns from a population."
    if complete_config(workflow, file).get("offline"):
        return "it learns from recorded steps."
    action_space = {"shape": [1], "low": -1.0, "high": 1.0} if _acts_in_boxes(workflow) else {"n": 2}
    env = {"library": "remote", "name": "simulator", "obs_space": {"shape": [1]}, "action_space": action_space}
    return reason_not_served(workflow_from_config({**file, "env": env}))


def _acts_in_boxes(workflow: Any) -> bool:
    from evorl.config.values import field_types
    from evorl.envs.action_spaces import ActionSpaces

    return ActionSpaces.DISCRETE not in field_types(workflow)["agent"].acts_in


def training_words(app: AppConfig) -> list[str]:
    """Return the arguments of ``evorl serve`` for the training of an app, without addresses.

    Raises:
        RunFolderError: a setting is more than ``key=value``, see ``refuse_composed_code``.
    """
    spaces = [
        f"env.{name}={as_override(app.environment.get(name))}"
        for name in ("obs_space", "action_space")
        if app.environment.get(name) is not None
    ]
    overrides = [f"agent={app.agent}", "env=remote", *spaces, *as_overrides(app.training)]
    refuse_composed_code(map(_without_sign, overrides), APP_FILE, _GIVE_WORDS)
    return overrides


def refuse_named_code(app: AppConfig, extra: Collection[str]) -> None:
    """Reject training settings that name code, unless the app has an ``algorithm`` folder.

    Args:
        app: the app, possibly from an untrusted source.
        extra: arguments of the user; settings repeated there are accepted.

    Raises:
        ValueError: a setting names code from outside evorl.
    """
    names = foreign_names(app.training) if app.algorithm is None else {}
    if names := {path: name for path, name in names.items() if f"{path}={name}" not in extra}:
        raise ValueError(
            f"training in {APP_FILE} would have code executed that is not of evorl: {as_arguments(names)}. If you "
            f"trust it, {_GIVE_WORDS[0].lower()}{_GIVE_WORDS[1:]}"
        )


def _without_sign(word: str) -> str:
    """Return an override without the ``++`` that ``as_overrides`` puts before keyword arguments of a library."""
    plain = word.removeprefix("++")
    return plain if _FREE.match(plain) else word


def own_configs(app: AppConfig) -> list[str]:
    """Return the flag that adds the app's own algorithms; an empty list without any."""
    return [] if app.algorithm is None else ["--config-dir", str((app.folder / app.algorithm).resolve())]


def as_overrides(settings: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield settings as overrides.

    A mapping becomes a single override, which changes only the entries that it names. Config groups and short forms
    are the exception: each of their settings becomes a separate override.
    """
    for name, value in settings.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping) and _CHOSEN.fullmatch(path):
            yield from as_overrides(value, f"{path}.")
        elif isinstance(value, Mapping) and _FREE.fullmatch(path):
            yield from (f"++{path}.{key}={as_override(each)}" for key, each in value.items())
        else:
            yield f"{path}={as_override(value)}"


def check_training(app: AppConfig) -> Any:
    """Compose and check the config of an app's training.

    Returns:
        The config; ``None`` for an app with its own algorithms, which only its server imports.

    Raises:
        ValueError: a setting or a name is unknown, or the training server would reject the training.
    """
    if app.algorithm is not None:
        return None
    from evorl.assembly import workflow_from_config
    from evorl.serving.training_server import reason_not_served

    try:
        config = compose_config(training_words(app))
        reason = reason_not_served(workflow_from_config(config))
    except Exception as error:
        if is_of_config(error):
            raise ValueError(config_error_in_words(error, config_folder())) from error
        raise
    if reason:
        raise ValueError(f"{app.agent} cannot be served with these settings: {reason}")
    return config


def settings_of_experiment(experiment: str) -> tuple[str, dict[str, Any]]:
    """Return the agent of an experiment, a file of ``configs/experiment``, and its tuned settings.

    Environment settings, and settings that remote simulators do not support, are omitted.

    Raises:
        ValueError: the experiment does not exist.
    """
    agents = [agent for agent in config_names(config_folder() / "agent") if experiment.startswith(f"{agent}/")]
    if experiment not in config_names(config_folder() / "experiment") or not agents:
        known = [*served_agents(), *experiments()]
        raise ValueError(no_such("algorithm or experiment", experiment, known))
    agent = max(agents, key=len)
    choice = [f"agent={agent}", f"env={experiment.removeprefix(f'{agent}/')}"]
    usual, tuned = (plain(compose_config(words), resolve=False) for words in ([*choice, "~experiment"], choice))
    different = _differences(usual, tuned)
    different.pop("env", None)
    for path in _NOT_SERVED:
        *above, name = path.split(".")
        functools.reduce(lambda part, key: part.get(key) or {}, above, different).pop(name, None)
    return agent, {name: value for name, value in different.items() if value != {}}


def experiments() -> list[str]:
    """Return the experiments of agents that remote simulators can train."""
    served = served_agents()
    names = config_names(config_folder() / "experiment")
    return [name for name in names if any(name.startswith(f"{agent}/") for agent in served)]


def _differences(usual: Any, tuned: Any) -> dict[str, Any]:
    found = {}
    for name, value in tuned.items():
        if isinstance(value, dict) and isinstance(usual.get(name), dict):
            below = _differences(usual[name], value)
            found |= {name: below} if below else {}
        elif name not in usual or usual[name] != value:
            found[name] = value
    return found

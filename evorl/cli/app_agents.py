"""Agents that a training server for simulators supports, their tuned settings, and checks of an app's training."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from evorl.apps.app_config import AppConfig
from evorl.apps.kinds import default_training
from evorl.apps.training import training_words
from evorl.assembly import complete_config, workflow_class, workflow_from_config
from evorl.cli.catalogs import acts_in_boxes
from evorl.cli.composition import compose_config
from evorl.cli.config_tree import config_folder, config_names
from evorl.cli.errors import config_errors
from evorl.config.names import no_such
from evorl.config.values import plain
from evorl.serving.training_server import reason_not_served
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.on_policy import OnPolicyWorkflow

# Settings of experiments that a training server rejects, because they need consecutive steps of one environment.
_NOT_SERVED = ("n_step", "normalize_rewards", "replay.hindsight", "replay.overwrite")


class AgentFacts(NamedTuple):
    """Properties of an agent that matter for an app.

    Attributes:
        file: settings file of the agent, in ``configs/agent``.
        source: source file of the workflow class.
        in_boxes: True if the agent supports only Box actions.
        is_off_policy: True if the agent learns from a replay buffer.
        own_critic_layers: True if the critics have other hidden layers than the policy.
    """

    file: Path
    source: Path
    in_boxes: bool
    is_off_policy: bool
    own_critic_layers: bool

    def default_training(self, kind: str | None) -> dict[str, Any]:
        """Return the section ``training`` of a new app with this agent; ``kind`` is one of ``KINDS`` or ``None``."""
        return default_training(self.file.stem, kind, self.is_off_policy, self.own_critic_layers)


def agent_facts(agent: str) -> AgentFacts:
    """Return the properties of an agent; raise ``ValueError`` if it is unknown or cannot be served."""
    folder = config_folder() / "agent"
    if agent not in config_names(folder):
        raise ValueError(no_such("algorithm", agent, served_agents()))
    if reason := _reason_not_served(agent):
        raise ValueError(f"{agent} cannot be served: {reason} Supported: {', '.join(served_agents())}.")
    file = folder / f"{agent}.yaml"
    settings: Any = plain(OmegaConf.load(file), resolve=False)
    workflow: Any = workflow_class(settings["workflow"])
    critic = complete_config(workflow, settings)["agent"].get("critic_network", {})
    return AgentFacts(
        file=file,
        source=Path(inspect.getfile(workflow)),
        in_boxes=acts_in_boxes(workflow, settings),
        is_off_policy=issubclass(workflow, OffPolicyWorkflow),
        own_critic_layers=critic.get("torso") is not None,
    )


def served_agents() -> list[str]:
    """Return the names of the agents that can learn from remote simulators."""
    return [name for name in config_names(config_folder() / "agent") if _reason_not_served(name) is None]


@functools.cache
def _reason_not_served(agent: str) -> str | None:
    """Return why the training server rejects an agent with the settings of its file; ``None`` for a supported agent."""
    file = plain(OmegaConf.load(config_folder() / "agent" / f"{agent}.yaml"), resolve=False)
    workflow = workflow_class(file["workflow"])
    if not issubclass(workflow, OnPolicyWorkflow | OffPolicyWorkflow) or "defaults" in file:
        return "it learns from a population."
    if complete_config(workflow, file).get("offline"):
        return "it learns from recorded steps."
    action_space = {"shape": [1], "low": -1.0, "high": 1.0} if acts_in_boxes(workflow, file) else {"n": 2}
    env = {"library": "remote", "name": "simulator", "obs_space": {"shape": [1]}, "action_space": action_space}
    return reason_not_served(workflow_from_config({**file, "env": env}))


def check_training(app: AppConfig) -> Any:
    """Compose and check the config of an app's training; return ``None`` for an app with its own algorithms.

    Raises:
        ValueError: a setting or a name is unknown, or the training server would reject the training.
    """
    if app.algorithm is not None:
        return None
    with config_errors():
        config = compose_config(training_words(app))
        reason = reason_not_served(workflow_from_config(config))
    if reason:
        raise ValueError(f"{app.agent} cannot be served with these settings: {reason}")
    return config


def settings_of_experiment(experiment: str) -> tuple[str, dict[str, Any]]:
    """Return the agent of an experiment, such as ``ppo/cartpole``, and the settings that it changes, as nested dicts.

    Settings of the environment, and settings that remote simulators do not support, are omitted.

    Raises:
        ValueError: the experiment does not exist.
    """
    agents = [agent for agent in config_names(config_folder() / "agent") if experiment.startswith(f"{agent}/")]
    if experiment not in config_names(config_folder() / "experiment") or not agents:
        known = [*served_agents(), *experiments()]
        raise ValueError(no_such("algorithm or experiment", experiment, known))
    agent = max(agents, key=len)
    choice = [f"agent={agent}", f"env={experiment.removeprefix(f'{agent}/')}"]
    defaults, tuned = (plain(compose_config(each), resolve=False) for each in ([*choice, "~experiment"], choice))
    different = _differences(defaults, tuned)
    different.pop("env", None)
    for path in _NOT_SERVED:
        *above, name = path.split(".")
        functools.reduce(lambda part, key: part.get(key) or {}, above, different).pop(name, None)
    return agent, {name: value for name, value in different.items() if value != {}}


def experiments() -> list[str]:
    """Return the names of the experiments of agents that can learn from remote simulators, such as ``ppo/cartpole``."""
    served = served_agents()
    names = config_names(config_folder() / "experiment")
    return [name for name in names if any(name.startswith(f"{agent}/") for agent in served)]


def _differences(defaults: Any, tuned: Any) -> dict[str, Any]:
    changed = {}
    for name, value in tuned.items():
        if isinstance(value, dict) and isinstance(defaults.get(name), dict):
            below = _differences(defaults[name], value)
            changed |= {name: below} if below else {}
        elif name not in defaults or defaults[name] != value:
            changed[name] = value
    return changed

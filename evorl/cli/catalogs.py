"""Lists of the agents and environments of evorl: action kinds, spaces, tuned settings and requirements."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from evorl.algorithms.pbt import PBTWorkflow
from evorl.assembly import complete_config, workflow_class
from evorl.cli.config_tree import AGENT_PARTS, config_folder, config_names, family_files, long_names, settings_file
from evorl.cli.options import ACTIONS, FAMILIES
from evorl.config.names import no_such
from evorl.config.values import dotted_keys, field_types
from evorl.config.yaml_text import read_text_file, read_yaml
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.catalog import known_envs
from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.on_policy import OnPolicyWorkflow
from evorl.workflows.quality_diversity import QualityDiversityWorkflow

Family = Literal[
    "on-policy", "off-policy", "evolution", "evolution-guided", "quality-diversity", "population", "baseline"
]
Actions = Literal["discrete", "continuous"]
# The first of these classes from which a workflow inherits determines its family; without one, it is "evolution".
_FAMILIES: dict[type, Family] = {
    OnPolicyWorkflow: "on-policy",
    OffPolicyWorkflow: "off-policy",
    EvolutionGuidedWorkflow: "evolution-guided",
    QualityDiversityWorkflow: "quality-diversity",
    PBTWorkflow: "population",
}
# Modules whose documentation pages are named after agents; pages of other modules are named after the module.
_OWN_PAGES = ("multi_objective", "random_agent")


@dataclasses.dataclass(frozen=True)
class EnvInfo:
    """An environment that ``env=`` and ``evorl.make`` accept.

    Attributes:
        name: name of its config, short if possible (``cartpole``), or library and name, ``gymnasium/Pendulum-v1``.
        path: library and name, such as ``gymnax/CartPole-v1``.
        obs_space: observation space, such as ``Box(4)``; empty if it is known only after creation.
        action_space: action space, such as ``Discrete(2)``; empty if it is known only after creation.
        tuned: agents with tuned settings for the environment or its family.
        needs: requirement to install, such as ``extra atari``; empty if evorl's own dependencies suffice.
        is_config: true if a config file describes it, false if only its library does.
    """

    name: str
    path: str
    obs_space: str
    action_space: str
    tuned: tuple[str, ...]
    needs: str
    is_config: bool

    @property
    def library(self) -> str:
        """Library of the environment, such as ``gymnax``."""
        return self.path.partition("/")[0]


@dataclasses.dataclass(frozen=True)
class AgentInfo:
    """An agent that ``agent=`` accepts.

    Attributes:
        name: name of its config, such as ``ppo`` or ``ec/cmaes``.
        description: description, with its source, such as a paper.
        family: family of its training method, such as ``on-policy``.
        discrete: true if the agent supports discrete action spaces.
        continuous: true if the agent supports flat Box action spaces; some agents need finite bounds.
        memory: true if the agent's network can have a recurrent cell.
        offline: true if the agent learns from recorded transitions alone.
        goals: true if the agent supports hindsight experience replay (``replay=hindsight``).
        tuned: environments with tuned settings; patterns such as ``brax/*`` for families of environments.
        page: page of the documentation, such as ``algorithms/ppo``.
        workflow: dotted path of the workflow class.
    """

    name: str
    description: str
    family: Family
    discrete: bool
    continuous: bool
    memory: bool
    offline: bool
    goals: bool
    tuned: tuple[str, ...]
    page: str
    workflow: str


def list_envs(
    text: str = "", *, library: str | None = None, agent: str | None = None, actions: Actions | None = None
) -> list[EnvInfo]:
    """Return the environments that evorl knows: first environments with a config, then environments of libraries.

    Libraries such as Gymnasium accept other names as well, which their users register.

    Args:
        text: part of the name or path, case-insensitive.
        library: only environments of this library.
        agent: only environments with tuned settings for this agent.
        actions: only environments with a known ``action_space`` of this kind; others are known only after creation.

    Raises:
        ValueError: the library, the agent or the kind of actions does not exist.
    """
    folder, envs = config_folder(), _all_envs()
    if library is not None and library not in (libraries := sorted({env.library for env in envs})):
        raise ValueError(no_such("environment library", library, libraries))
    if agent is not None and agent not in (agents := config_names(folder / "agent")):
        raise ValueError(no_such("agent", agent, agents))
    spaces = {None: "", "discrete": "Discrete", "continuous": "Box"}  # beginnings of the selected action spaces
    if actions not in spaces:
        raise ValueError(no_such("kind of actions", actions, ACTIONS))
    envs = [env for env in envs if text.lower() in f"{env.name} {env.path}".lower() and library in (None, env.library)]
    envs = [env for env in envs if env.action_space.startswith(spaces[actions])]
    envs = [dataclasses.replace(env, tuned=_tuned_agents(env.name, folder)) for env in envs]
    return [env for env in envs if agent is None or agent in env.tuned]


def list_agents(
    text: str = "",
    *,
    family: Family | None = None,
    discrete: bool = False,
    continuous: bool = False,
    memory: bool = False,
    offline: bool = False,
    goals: bool = False,
) -> list[AgentInfo]:
    """Return the agents of evorl that have all requested properties; False and ``None`` do not filter.

    Args:
        text: part of the name or the description, case-insensitive.
        family: only agents of this family.
        discrete: only agents for discrete actions.
        continuous: only agents for continuous actions.
        memory: only agents whose network can have a recurrent cell.
        offline: only agents that learn from recorded transitions alone.
        goals: only agents that support hindsight experience replay.

    Raises:
        ValueError: the family does not exist.
    """
    if family is not None and family not in FAMILIES:
        raise ValueError(no_such("agent family", family, FAMILIES))
    asked = {"discrete": discrete, "continuous": continuous, "memory": memory, "offline": offline, "goals": goals}
    agents = [_agent(name, config_folder()) for name in config_names(config_folder() / "agent")]
    return [
        agent
        for agent in agents
        if text.lower() in f"{agent.name} {agent.description}".lower()
        and family in (None, agent.family)
        and all(getattr(agent, name) for name, is_asked in asked.items() if is_asked)
    ]


def acts_in_boxes(workflow: Any, settings: Mapping[str, Any]) -> bool:
    """Return True if the agent of a workflow class, with the settings of an agent's file, acts only in Box spaces."""
    spaces = field_types(workflow)["agent"].acts_in
    # Critics of state-action pairs support categorical values only for continuous actions.
    is_categorical = settings.get("agent", {}).get("values") == "categorical"
    return ActionSpaces.DISCRETE not in spaces or (ActionSpaces.BOXES in spaces and is_categorical)


def _all_envs() -> list[EnvInfo]:
    folder, known = config_folder(), known_envs()
    spaces = _read(folder / "env" / "_spaces.yaml")
    known_as = long_names(folder)  # an environment with a short name is listed once, with the config of its long name
    short = {path: name for name, path in known_as.items()}
    envs = []
    for config in [name for name in config_names(folder / "env") if name not in known_as]:
        settings = _env_settings(config, folder)
        path = f"{settings.get('library') or config}/{settings.get('name') or ''}".rstrip("/")
        obs_space, _, action_space = spaces.get(config, "").partition(" -> ")
        envs.append(EnvInfo(short.get(config, config), path, obs_space, action_space, (), known.get(path, ""), True))
    described = {env.path for env in envs}
    others = [EnvInfo(path, path, "", "", (), needs, False) for path, needs in known.items() if path not in described]
    return sorted(envs, key=lambda env: env.name) + others


def _env_settings(name: str, folder: Path) -> dict[str, Any]:
    """Return the section ``env`` of an environment's file, merged over the sections of the files in its defaults."""
    file = _read(folder / "env" / f"{name}.yaml")
    below = [entry.removeprefix("/env/") for entry in file.get("defaults", ()) if entry != "_self_"]
    settings = [_env_settings(entry, folder) for entry in below] + [file.get("env", {})]
    return {key: value for each in settings for key, value in each.items()}


def _tuned_agents(env: str, folder: Path) -> tuple[str, ...]:
    names = {agent: settings_file(f"{agent}/{env}", folder) for agent in _tuned_by_agent(folder)}
    return tuple(agent for agent, name in names.items() if (folder / "experiment" / f"{name}.yaml").is_file())


@functools.cache
def _tuned_by_agent(folder: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the environments with tuned settings, and the patterns of their families, by agent."""
    files = config_names(folder / "experiment")
    patterns = [pattern for _, pattern in family_files(folder)]
    tuned = {
        agent: tuple(name.removeprefix(f"{agent}/") for name in (*files, *patterns) if name.startswith(f"{agent}/"))
        for agent in config_names(folder / "agent")
    }
    return {agent: envs for agent, envs in tuned.items() if envs}


def _agent(name: str, folder: Path) -> AgentInfo:
    """Return the entry of an agent; an inner agent or learner, if any, determines its actions and abilities."""
    file = folder / "agent" / f"{name}.yaml"
    settings = _read(file)
    workflow = workflow_class(settings["workflow"])
    defaults = [entry for entry in settings.get("defaults", ()) if isinstance(entry, Mapping)]
    parts = [inner for entry in defaults for part in AGENT_PARTS if (inner := entry.get(f"/{part}"))]
    acting = _read(folder / "agent" / f"{parts[0]}.yaml") if parts else settings
    acting_class = workflow_class(acting["workflow"])
    complete = complete_config(acting_class, {key: value for key, value in acting.items() if key != "defaults"})
    is_off_policy = issubclass(acting_class, OffPolicyWorkflow)
    agent_class = field_types(acting_class)["agent"]
    module = workflow.__module__.rpartition(".")[2]
    families: list[Family] = [family for base, family in _FAMILIES.items() if issubclass(workflow, base)]
    family: Family = "evolution" if not families else families[0]
    return AgentInfo(
        name=name,
        description=read_text_file(file).splitlines()[1].removeprefix("# "),
        family=family if agent_class.learns else "baseline",
        discrete=not acts_in_boxes(acting_class, acting),
        continuous=bool(agent_class.acts_in & ActionSpaces.BOXES),
        memory="agent.network.recurrent" in dotted_keys(complete),
        offline=bool(complete.get("offline")),
        goals=is_off_policy and not acting_class.stores_recurrent_state and not complete["prioritized"],
        tuned=_tuned_by_agent(folder).get(name, ()),
        page=f"algorithms/{name.rpartition('/')[2] if module in _OWN_PAGES else module}",
        workflow=settings["workflow"],
    )


def _read(file: Path) -> dict[str, Any]:
    """Return the settings of a file of the config tree."""
    return read_yaml(read_text_file(file), str(file)) or {}

"""``evorl envs`` and ``evorl agents``: tables of the records of ``evorl.cli.catalogs``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from evorl.cli.catalogs import AgentInfo, EnvInfo, list_agents, list_envs
from evorl.cli.command_options import read_options
from evorl.cli.options import AGENTS, ENVS
from evorl.ops.terminal_text import aligned, counted
from evorl.recorders.screen import print_line

_ABILITIES = ("memory", "offline", "goals")
MAX_DETAILS = 3  # maximum number of results that are described in full
_ENV_HEADING = ("env", "observations", "actions", "tuned settings", "needs")
_AGENT_HEADING = ("agent", "family", "actions", "abilities", "documentation")


def list_envs_from_arguments(arguments: Sequence[str]) -> list[EnvInfo]:
    """Print the environments that match; without a filter those with a config, and the libraries with further ones.

    Args:
        arguments: part of a name, and options of ``ENVS``.

    Returns:
        The environments that match.

    Raises:
        ValueError: an option is unknown or invalid, or nothing matches.
    """
    settings, texts = read_options(_without_flag(arguments), ENVS, "evorl envs", unnamed="part of a name")
    as_json = settings.pop("json")
    envs = list_envs(_one_text(texts), **settings)
    if not envs:
        raise ValueError(
            f"no environment matches {' '.join(arguments)}: evorl envs lists all, evorl envs --help filters."
        )
    if as_json:
        _print_json(envs)
        return envs
    shown = envs if arguments else [env for env in envs if env.is_config]
    _print_table(_ENV_HEADING, [_env_cells(env) for env in shown])
    if len(shown) <= MAX_DETAILS:
        for env in shown:
            spaces = f"{env.obs_space} -> {env.action_space}" if env.obs_space else "spaces known after creation"
            agent = next(iter(env.tuned), "...") if "ppo" not in env.tuned else "ppo"
            print_line(f"\n{env.name} ({env.path}): {spaces}\nevorl train agent={agent} env={env.name}")
    if not arguments:
        _print_libraries(envs)
    return envs


def list_agents_from_arguments(arguments: Sequence[str]) -> list[AgentInfo]:
    """Print the agents that match.

    Args:
        arguments: part of a name or a description, and options of ``AGENTS``.

    Returns:
        The agents that match.

    Raises:
        ValueError: an option is unknown or invalid, or nothing matches.
    """
    settings, texts = read_options(_without_flag(arguments), AGENTS, "evorl agents", unnamed="part of a name")
    as_json = settings.pop("json")
    agents = list_agents(_one_text(texts), **settings)
    if not agents:
        raise ValueError(
            f"no agent matches {' '.join(arguments)}: evorl agents lists all, evorl agents --help filters."
        )
    if as_json:
        _print_json(agents)
        return agents
    _print_table(_AGENT_HEADING, [_agent_cells(agent) for agent in agents])
    if len(agents) <= MAX_DETAILS:
        for agent in agents:
            print_line(f"\n{agent.name}: {agent.description}")
            if agent.tuned:
                print_line(f"Tuned settings for {', '.join(agent.tuned)}.")
            print_line(f"evorl train agent={agent.name} --cfg job lists its settings.")
    return agents


def _without_flag(arguments: Sequence[str]) -> list[str]:
    return ["json=true" if argument == "--json" else argument for argument in arguments]


def _print_json(records: Sequence[EnvInfo | AgentInfo]) -> None:
    print_line(json.dumps([dataclasses.asdict(record) for record in records], indent=1))


def _one_text(texts: Sequence[str]) -> str:
    if len(texts) > 1:
        raise ValueError(f"expected one part of a name, got {', '.join(texts)}: remove the others.")
    return texts[0] if texts else ""


def _print_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in aligned([heading, *rows]):
        print_line(line)


def _env_cells(env: EnvInfo) -> tuple[str, ...]:
    observations = "Dict(...)" if env.obs_space.startswith("Dict") else env.obs_space
    return env.name, observations or "-", env.action_space or "-", ", ".join(env.tuned) or "-", env.needs or "-"


def _agent_cells(agent: AgentInfo) -> tuple[str, ...]:
    actions = [kind for kind in ("discrete", "continuous") if getattr(agent, kind)]
    abilities = [name for name in _ABILITIES if getattr(agent, name)]
    return agent.name, agent.family, ", ".join(actions), ", ".join(abilities) or "-", f"docs/{agent.page}.md"


def _print_libraries(envs: Sequence[EnvInfo]) -> None:
    """Print each library with the number of its environments without a config, an example and the extras."""
    by_library: dict[str, list[EnvInfo]] = {}
    for env in envs:
        if not env.is_config:
            by_library.setdefault(env.library, []).append(env)
    rows = []
    for library, members in by_library.items():
        needs = sorted({env.needs for env in members if env.needs})
        rows.append((library, counted(len(members), "environment"), f"env={members[0].name}", ", ".join(needs) or "-"))
    print_line("\nEnvironments of libraries, by library and name; evorl envs library=gymnasium lists those of one:")
    _print_table(("library", "further", "example", "needs"), rows)
    print_line("Gymnasium and EnvPool accept every registered id. env=user env.factory=module:function is your own.")

"""``evorl envs`` and ``evorl agents``: tables of the environments and agents that ``evorl.cli.catalogs`` lists."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from evorl.cli.catalogs import AgentInfo, EnvInfo, list_agents, list_envs
from evorl.cli.command_options import Option, read_options
from evorl.cli.options import AGENTS, ENVS
from evorl.ops.terminal_text import aligned, counted
from evorl.recorders.screen import print_line

Listed = TypeVar("Listed", EnvInfo, AgentInfo)
_ABILITIES = ("memory", "offline", "goals")
MAX_DETAILS = 3  # maximum number of results that are described in full
_ENV_HEADING = ("env", "observations", "actions", "tuned settings", "needs")
_AGENT_HEADING = ("agent", "family", "actions", "abilities", "documentation")


def list_envs_from_arguments(arguments: Sequence[str]) -> list[EnvInfo]:
    """Print the environments that match; without arguments, those with a config, and the number of others by library.

    All environments that match are returned, even if the output only counts them.
    """
    envs, as_json = _matching(arguments, list_envs, ENVS, "evorl envs", "environment")
    if as_json:
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
    """Print a table of the agents that match, with details of up to ``MAX_DETAILS`` agents, and return these agents."""
    agents, as_json = _matching(arguments, list_agents, AGENTS, "evorl agents", "agent")
    if as_json:
        return agents
    _print_table(_AGENT_HEADING, [_agent_cells(agent) for agent in agents])
    if len(agents) <= MAX_DETAILS:
        for agent in agents:
            print_line(f"\n{agent.name}: {agent.description}")
            if agent.tuned:
                print_line(f"Tuned settings for {', '.join(agent.tuned)}.")
            print_line(f"evorl train agent={agent.name} --cfg job lists its settings.")
    return agents


def _matching(
    arguments: Sequence[str], find: Callable[..., list[Listed]], options: Mapping[str, Option], command: str, kind: str
) -> tuple[list[Listed], bool]:
    """Return all matches, and True if they were printed as JSON; raise ``ValueError`` without matches."""
    named = ("json=true" if argument == "--json" else argument for argument in arguments)
    settings, texts = read_options(list(named), options, command, unnamed="part of a name")
    if len(texts) > 1:
        raise ValueError(f"expected one part of a name, got {', '.join(texts)}: remove the others.")
    as_json = settings.pop("json")
    records = find("".join(texts), **settings)
    if not records:
        raise ValueError(f"no {kind} matches {' '.join(arguments)}: {command} lists all, --help describes the filters.")
    if as_json:
        print_line(json.dumps([dataclasses.asdict(record) for record in records], indent=1))
    return records, as_json


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
    print_line("\nEnvironments of libraries, by library and name; evorl envs library=gymnasium lists one library:")
    _print_table(("library", "number", "example", "needs"), rows)
    print_line("Gymnasium and EnvPool accept every registered id. env=user env.factory=module:function uses your own.")

"""Writes the folder of an app, or a single part of the folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evorl.apps.app_config import APP_FILE
from evorl.apps.app_text import as_entry, with_values
from evorl.apps.kinds import IMAGE_KINDS, KINDS, Kind
from evorl.apps.wheel import write_wheel
from evorl.distribution import installed_version
from evorl.serving.client_copy import client_text

_FILES = Path(__file__).resolve().parent / "files"
# Copied files do not depend on evorl: its modules are imported from copies in the same folder.
_IMPORTS = {
    re.compile(r"^(\s*)from evorl\.apps\.files\.(\w+) import", re.MULTILINE): r"\1from \2 import",
    re.compile(r"^(\s*)from evorl\.serving\.client import", re.MULTILINE): r"\1from evorl_client import",
}
APP_ALGORITHMS = "algorithm"
AGENT_GROUP = "own"

_HEAD = """\
# An app of evorl: a simulator that requests actions from a training server. Commands in this folder:
#   evorl run all              train; evorl run all -n 4 trains with four simulators
#   evorl config               list algorithms; evorl config -a sac chooses another one
#   evorl generate -a {agent}  copy an algorithm to this folder, to modify it
version: {version} # version of evorl that this app requires
"""
_ADDRESSES = """\
server: # the training server
  bind: 127.0.0.1:7001 # an address outside this machine requires a token
  bind_by_env_var: EVORL_SERVER_BIND # environment variable that overrides bind
  token: null # secret that simulators must send
  token_by_env_var: EVORL_SERVER_TOKEN

metrics: # the live metrics page, opened in a browser
  bind: 127.0.0.1:7002
  bind_by_env_var: EVORL_METRICS_BIND
  token_by_env_var: EVORL_METRICS_TOKEN

parameters: null # {servers: 2, mode: averaging, num_gradients: 2} starts two training servers and a parameter server

"""
_RUN = """\
run:
  max_episodes: {max_episodes} # episodes per simulator; afterwards the servers end too
  infinite_run: false # ignore max_episodes
  start_seconds: 300 # timeout for a server to start
  stop_seconds: 30 # grace period for a process to end; afterwards it is killed
"""


def make_app(folder: Path, kind_name: str, agent: str, training: Mapping[str, Any], in_boxes: bool) -> list[Path]:
    """Create the folder of an app, and return the files that were written.

    Args:
        folder: path of the new folder.
        kind_name: one of ``KINDS``.
        agent: name of the agent, as in ``evorl train agent=``.
        training: settings that override the agent's defaults.
        in_boxes: True if the agent supports only Box actions.

    Raises:
        ValueError: ``folder`` exists, or the agent does not support the simulator's images; nothing is written.
    """
    if folder.exists():
        raise ValueError(f"{folder} already exists: choose another name, or change the app in it with evorl generate.")
    kind = KINDS[kind_name]
    sections = [
        _HEAD.format(version=installed_version(), agent=agent),
        f"agent: {agent} # the algorithm; evorl config lists all algorithms\n",
        training_entry(training),
        f"{environment_entry(kind, in_boxes)}",
        _ADDRESSES + _RUN.format(max_episodes=kind.max_episodes),
    ]
    folder.mkdir(parents=True)
    file = folder / APP_FILE
    file.write_text("\n".join(sections), encoding="utf-8")
    ignored = folder / ".gitignore"
    ignored.write_text("runs/\n*.~*~\n__pycache__/\n", encoding="utf-8")
    return [file, ignored, *write_environment(folder, kind)]


def training_entry(training: Mapping[str, Any]) -> str:
    """Return the text of the section ``training`` of ``app.yaml``."""
    if not training:
        return "training: {} # overrides of the agent's settings; list all with evorl train agent=... --cfg job\n"
    head, _, rest = as_entry("training", dict(training)).partition("\n")
    return f"{head} # overrides of the agent's settings; list all with evorl train agent=... --cfg job\n{rest}"


def environment_entry(kind: Kind, in_boxes: bool, values: Mapping[str, str] | None = None) -> str:
    """Return the text of the section ``environment`` for a kind of simulator.

    Args:
        kind: kind of simulator.
        in_boxes: True if the agent supports only Box actions.
        values: YAML values of entries to replace or add, by key.

    Raises:
        ValueError: the simulator sends images, and the agent supports only Box actions.
    """
    text = (_FILES / f"{kind.script}.yaml").read_text(encoding="utf-8")
    if in_boxes and any(kind is KINDS[name] for name in IMAGE_KINDS):
        raise ValueError(
            f"agents that support only Box actions need flat observations, but {kind.description} sends images: choose "
            f"another agent, such as {kind.agent} or sac."
        )
    return with_values(text, {**(kind.continuous if in_boxes else {}), **(values or {})})


def write_environment(folder: Path, kind: Kind) -> list[Path]:
    """Write an app's folder ``environment``: the script, its modules and the client. Return the files."""
    environment = folder / "environment"
    environment.mkdir()
    written = []
    for name in (kind.script, "app_options", *kind.further_files):
        written.append(_copy(_FILES / f"{name}.py", environment / f"{name}.py"))
    client = environment / "evorl_client.py"
    client.write_text(client_text(), encoding="utf-8")
    return [*written, client]


def write_algorithm(folder: Path, source: Path, agent_file: Path) -> str:
    """Copy an algorithm into an app's folder ``algorithm``, to be modified; return its agent name, such as ``own/ppo``.

    Args:
        folder: app folder.
        source: source file of the algorithm, a module of ``evorl.algorithms``.
        agent_file: settings file of the agent in ``configs/agent``.

    Raises:
        ValueError: the settings in ``agent_file`` name no workflow of ``source``.
    """
    package = folder / APP_ALGORITHMS
    agents = package / "agent" / AGENT_GROUP
    agents.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Algorithms of this app."""\n', encoding="utf-8")
    _copy(source, package / source.name)
    text = agent_file.read_text(encoding="utf-8")
    workflow = rf"^workflow: *evorl\.algorithms\.{re.escape(source.stem)}\."
    text, replaced = re.subn(workflow, f"workflow: {APP_ALGORITHMS}.{source.stem}.", text, flags=re.MULTILINE)
    if not replaced:
        raise ValueError(f"{agent_file.name} has no workflow of evorl.algorithms.{source.stem}.")
    (agents / agent_file.name).write_text(text, encoding="utf-8")
    return f"{AGENT_GROUP}/{agent_file.stem}"


def write_containers(
    folder: Path, configs: Path, with_parameter_server: bool = False, packages: Sequence[str] = ()
) -> list[Path]:
    """Write the wheel of evorl and the files that build and start an app in containers, and return these files.

    Args:
        folder: app folder.
        configs: config tree of evorl, packed into its wheel.
        with_parameter_server: True to start a parameter server and two training servers.
        packages: names of packages that the simulator requires and evorl does not.

    Raises:
        ValueError: evorl is not installed, see ``write_wheel``.
    """
    wheel = write_wheel(folder / "wheels", configs)
    compose = "compose_parameters.yaml" if with_parameter_server else "compose.yaml"
    more = "".join(f" {package}" for package in packages)
    written = [wheel]
    for name, source in {"Dockerfile": "Dockerfile", "compose.yaml": compose}.items():
        text = (_FILES / "docker" / source).read_text(encoding="utf-8")
        path = folder / name
        path.write_text(text.replace("{wheel}", wheel.name).replace("{packages}", more), encoding="utf-8")
        written.append(path)
    ignored = folder / ".dockerignore"
    ignored.write_text("runs/\n*.~*~\n**/__pycache__/\n", encoding="utf-8")
    return [*written, ignored]


def _copy(source: Path, target: Path) -> Path:
    text = source.read_text(encoding="utf-8")
    for pattern, plain in _IMPORTS.items():
        text = pattern.sub(plain, text)
    target.write_text(text, encoding="utf-8")
    return target

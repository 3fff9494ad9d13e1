"""Settings of an app, read from ``app.yaml``.

Entries: ``version``, the required version of evorl; ``agent``, ``algorithm`` and ``training``, passed to the training
server; ``environment``, the command that starts the simulator and the simulator's own settings; ``server`` and
``metrics``, addresses; ``parameters``, an optional parameter server shared by several training servers; ``run``,
episode counts and timeouts.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from evorl.apps.app_text import read_mapping
from evorl.config.values import check_names, checked_mapping, checked_value, positive, short_repr
from evorl.config.yaml_text import read_text_file
from evorl.distribution import installed_version

APP_FILE = "app.yaml"
_ENTRIES = ("version", "agent", "algorithm", "training", "environment", "server", "metrics", "parameters", "run")
_PORTS = {"parameters": 7000, "server": 7001, "metrics": 7002}
_OF_ADDRESSES = ("bind", "bind_by_env_var", "token", "token_by_env_var")


@dataclasses.dataclass(frozen=True)
class Address:
    """Address at which a server listens.

    Attributes:
        host: host name or IP address.
        port: TCP port.
        token: secret that clients must send; ``None`` disables authentication.
    """

    host: str
    port: int
    token: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Length and timeouts of an app's run.

    Attributes:
        max_episodes: number of episodes that each environment plays.
        infinite_run: true to ignore ``max_episodes`` and play without end.
        start_seconds: timeout in seconds for a server to start listening.
        stop_seconds: grace period in seconds for a process to exit on request; afterwards it is killed.
    """

    max_episodes: int = 1
    infinite_run: bool = False
    start_seconds: float = 300.0
    stop_seconds: float = 30.0


@dataclasses.dataclass(frozen=True)
class SharedParameters:
    """Settings of a parameter server and of the training servers that use it.

    Attributes:
        address: address of the parameter server.
        servers: number of training servers per machine.
        settings: other entries of the section ``parameters``, settings of ``evorl serve-parameters`` such as ``mode``.
    """

    address: Address
    servers: int
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class AppConfig:
    """Checked contents of ``app.yaml``.

    Attributes:
        folder: app folder.
        agent: name of the algorithm, as in ``evorl train agent=``.
        algorithm: folder of the app's own algorithms, relative to ``folder``; ``None`` if it has no such folder.
        training: overrides of the agent's settings, as in ``evorl train``.
        environment: all settings of the section ``environment``, which the simulator reads as well.
        server: address of the training server.
        metrics: address of the live metrics page; ``None`` disables it.
        parameters: shared parameter server; ``None`` if the training server keeps its own parameters.
        run: length and timeouts of a run.
    """

    folder: Path
    agent: str
    algorithm: str | None
    training: Mapping[str, Any]
    environment: Mapping[str, Any]
    server: Address
    metrics: Address | None
    parameters: SharedParameters | None
    run: RunSettings

    def environment_command(self, python: str) -> list[str]:
        """Return the command that starts a simulator; the argument ``python`` replaces a leading python or python3."""
        command = _argument_list(self.environment.get("run"))
        return [python, *command[1:]] if command[0] in ("python", "python3") else command


def read_app(file: str | Path = APP_FILE, variables: Mapping[str, str] = os.environ) -> AppConfig:
    """Read the settings of an app.

    Args:
        file: path of ``app.yaml``; its parent is the app folder.
        variables: environment variables, looked up by the names in ``bind_by_env_var`` and ``token_by_env_var``.

    Raises:
        ValueError: the file does not exist, is not a YAML mapping, is for another version of evorl, or has an unknown
            entry or an invalid value.
    """
    path = Path(file)
    if not path.exists():
        raise ValueError(f"there is no {path}: change to an app folder, or create an app with evorl new my-app.")
    config = read_mapping(read_text_file(path, "the settings of an app"), path.name)
    check_version(str(config["version"]) if "version" in config else None, path.name)
    check_names(config, _ENTRIES, f"entry of {path.name}")
    environment = checked_mapping(config.get("environment"), "environment")
    _argument_list(environment.get("run"))
    algorithm = checked_mapping(config.get("algorithm"), "algorithm")
    check_names(algorithm, ["path"], "entry of algorithm")
    run = checked_mapping(config.get("run"), "run")
    kinds = get_type_hints(RunSettings)
    check_names(run, kinds, "entry of run")
    checked = {name: checked_value(value, kinds[name], f"run.{name}") for name, value in run.items()}
    if wrong := [name for name, value in checked.items() if value < 0]:
        raise ValueError(f"run.{wrong[0]} must not be negative, got {checked[wrong[0]]}.")
    return AppConfig(
        folder=path.resolve().parent,
        agent=checked_value(config.get("agent"), str, "agent"),
        algorithm=checked_value(algorithm.get("path"), str | None, "algorithm.path"),
        training=checked_mapping(config.get("training"), "training"),
        environment=environment,
        server=_address(config.get("server"), "server", variables),
        metrics=None if config.get("metrics") is None else _address(config["metrics"], "metrics", variables),
        parameters=_shared_parameters(config.get("parameters"), variables),
        run=RunSettings(**checked),
    )


def check_version(version: str | None, name: str) -> None:
    """Raise ``ValueError``, naming both versions, unless ``version``, stated in the file ``name``, is installed."""
    installed = installed_version()
    if version is None:
        raise ValueError(
            f"{name} does not state the version of evorl that it was made for: add the line version: {installed}"
        )
    if version != installed:
        raise ValueError(
            f"{name} requires evorl {version}, but evorl {installed} is installed: install that version, or "
            f"read CHANGELOG.md, adapt the app and set version: {installed}"
        )


def _argument_list(command: Any) -> list[str]:
    """Return a command as an argument list; a string is split as a shell would, but never passed to a shell."""
    example = "as in run: [python, environment/bandit_app.py]"
    if isinstance(command, str):
        try:
            command = shlex.split(command, posix=os.name != "nt")
        except ValueError as error:
            reason = f"{error} in {command!r}: write a list, {example}"
            raise ValueError(f"environment.run in {APP_FILE} is not a command: {reason}.") from error
    if not isinstance(command, list) or not command:
        raise ValueError(f"environment.run must be the command that starts the simulator, {example}; got {command!r}.")
    return [str(argument) for argument in command]


def _shared_parameters(section: Any, variables: Mapping[str, str]) -> SharedParameters | None:
    if section is None:
        return None
    defaults = {"bind_by_env_var": "EVORL_PARAMETERS_BIND", "token_by_env_var": "EVORL_PARAMETERS_TOKEN"}
    settings = {**defaults, **checked_mapping(section, "parameters")}
    address = {name: settings.pop(name) for name in _OF_ADDRESSES if name in settings}
    servers = positive(settings.pop("servers", 1), "parameters.servers")
    return SharedParameters(_address(address, "parameters", variables), servers, settings)


def _address(section: Any, name: str, variables: Mapping[str, str]) -> Address:
    section = checked_mapping(section, name)
    check_names(section, _OF_ADDRESSES, f"entry of {name}")
    bind = variables.get(str(section.get("bind_by_env_var")), section.get("bind", f"127.0.0.1:{_PORTS[name]}"))
    token = variables.get(str(section.get("token_by_env_var")), section.get("token"))
    host, colon, port = str(bind).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise ValueError(f"{name}.bind must be host:port, such as 127.0.0.1:{_PORTS[name]}, got {short_repr(bind)}.")
    return Address(host, int(port), None if token is None else str(token))

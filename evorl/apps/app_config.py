"""What an app's one file of settings, ``app.yaml``, says.

Its entries: ``version`` of the package it is for; ``agent`` and ``training``, of which the training server is told;
``environment``, how the simulator is started and whatever it reads itself; addresses of ``server`` and ``metrics``;
``parameters``, of a parameter server that several servers learn for; and ``run``, how long.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evorl.apps.app_text import read_mapping
from evorl.config.values import check_names, checked_mapping, checked_value, positive
from evorl.config.yaml_text import read_text_file
from evorl.distribution import installed_version

APP_FILE = "app.yaml"
_ENTRIES = ("version", "agent", "algorithm", "training", "environment", "server", "metrics", "parameters", "run")
_PORTS = {"parameters": 7000, "server": 7001, "metrics": 7002}
_OF_ADDRESSES = ("bind", "bind_by_env_var", "token", "token_by_env_var")


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a server listens.

    Attributes:
        host: name or number.
        port: to which it is bound.
        token: what clients say; ``None`` where none is asked for.
    """

    host: str
    port: int
    token: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """How an app runs.

    Attributes:
        max_episodes: that each environment plays.
        infinite_run: go on without end instead.
        start_seconds: that a server may take until it listens.
        stop_seconds: that a process may take to end when it is asked to; then it is ended.
    """

    max_episodes: int = 1
    infinite_run: bool = False
    start_seconds: float = 300.0
    stop_seconds: float = 30.0


@dataclasses.dataclass(frozen=True)
class SharedParameters:
    """A parameter server, and the servers that learn for it.

    Attributes:
        address: of the parameter server.
        servers: how many learn for it on a machine.
        settings: what else stands there, as in ``evorl serve-parameters parameters.mode=averaging``.
    """

    address: Address
    servers: int
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class AppConfig:
    """An app.

    Attributes:
        folder: of the app.
        agent: name of the algorithm, as in ``evorl train agent=``.
        algorithm: folder of algorithms of its own, from ``folder``; ``None`` for those of the package alone.
        training: settings that differ, as in ``evorl train``.
        environment: all of the section, for the simulator to read.
        server: where the training server listens.
        metrics: where the live page is; ``None`` for none.
        parameters: of a parameter server; ``None`` where the training server keeps its own.
        run: how long, how patiently.
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
        """The words by which a simulator is started; ``python`` in front is that of this package."""
        words = _words(self.environment.get("run"))
        return [python, *words[1:]] if words[0] in ("python", "python3") else words


def package_version() -> str:
    """Return the version of this package."""
    return installed_version()


def read_app(file: str | Path = APP_FILE, variables: Mapping[str, str] = os.environ) -> AppConfig:
    """Read the settings of an app.

    Args:
        file: ``app.yaml``; its folder is that of the app.
        variables: of the environment, which ``bind_by_env_var`` and ``token_by_env_var`` name.

    Raises:
        ValueError: there is no such file, it is of another version, or an entry is unknown or cannot be.
    """
    path = Path(file)
    if not path.exists():
        raise ValueError(f"there is no {path}: go into the folder of an app, or make one by evorl new my-app.")
    config = read_mapping(read_text_file(path, "the settings of an app"), path.name)
    check_version(config, path.name)
    check_names(config, _ENTRIES, f"entry of {path.name}")
    environment = checked_mapping(config.get("environment"), "environment")
    _words(environment.get("run"))
    algorithm = checked_mapping(config.get("algorithm"), "algorithm")
    check_names(algorithm, ["path"], "entry of algorithm")
    run = checked_mapping(config.get("run"), "run")
    fields = {field.name: field.type for field in dataclasses.fields(RunSettings)}
    check_names(run, fields, "entry of run")
    kinds = {"int": int, "bool": bool, "float": float}
    checked = {name: checked_value(value, kinds[str(fields[name])], f"run.{name}") for name, value in run.items()}
    return AppConfig(
        folder=path.resolve().parent,
        agent=checked_value(config.get("agent"), str, "agent"),
        algorithm=checked_value(algorithm.get("path"), str | None, "algorithm.path"),
        training=checked_mapping(config.get("training"), "training"),
        environment=environment,
        server=_address(config.get("server"), "server", variables),
        metrics=None if "metrics" not in config else _address(config["metrics"], "metrics", variables),
        parameters=_shared_parameters(config.get("parameters"), variables),
        run=RunSettings(**checked),
    )


def check_version(config: Mapping[str, Any], name: str) -> None:
    """Raises ``ValueError`` unless ``version`` is that of the package; it names both."""
    here = package_version()
    if "version" not in config:
        raise ValueError(f"{name} does not say which version of evorl it is for: add the line version: {here}")
    if str(config["version"]) != here:
        raise ValueError(
            f"{name} is for evorl {config['version']}, and this is evorl {here}: install that version, or look at what "
            f"has changed (CHANGELOG.md) and write version: {here}"
        )


def _words(command: Any) -> list[str]:
    """A command as words: as they are, or a text cut as a shell would, though none ever sees it."""
    example = "as in run: [python, environment/bandit_app.py]"
    if isinstance(command, str):
        command = shlex.split(command, posix=os.name != "nt")
    if not isinstance(command, list) or not command:
        raise ValueError(f"environment.run must say how the simulator is started, {example}; got {command!r}.")
    return [str(word) for word in command]


def _shared_parameters(section: Any, variables: Mapping[str, str]) -> SharedParameters | None:
    if section is None:
        return None
    usual = {"bind_by_env_var": "EVORL_PARAMETERS_BIND", "token_by_env_var": "EVORL_PARAMETERS_TOKEN"}
    settings = {**usual, **checked_mapping(section, "parameters")}
    address = {name: settings.pop(name) for name in _OF_ADDRESSES if name in settings}
    servers = positive(settings.pop("servers", 1), "parameters.servers")
    return SharedParameters(_address(address, "parameters", variables), servers, settings)


def _address(section: Any, name: str, variables: Mapping[str, str]) -> Address:
    section = checked_mapping(section, name)
    check_names(section, _OF_ADDRESSES, f"entry of {name}")
    bind, token = section.get("bind", f"127.0.0.1:{_PORTS[name]}"), section.get("token")
    bind = variables.get(str(section.get("bind_by_env_var")), bind)
    token = variables.get(str(section.get("token_by_env_var")), token)
    host, colon, port = str(bind).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{name}.bind must be like 127.0.0.1:{_PORTS[name]}, got {bind!r}.")
    return Address(host, int(port), None if token is None else str(token))

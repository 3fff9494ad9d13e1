"""Programs of an app with their command lines: parameter server, training servers, live metrics page, simulators."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from evorl.apps.app_config import APP_FILE, Address, AppConfig
from evorl.apps.supervision import Program
from evorl.apps.training import own_configs, refuse_named_code, training_words
from evorl.config.command_lines import as_arguments, as_override
from evorl.runs.trust import refuse_composed_code

PORTS_APART = 10  # port spacing of training servers: the live metrics page uses the port after the first server's
_NO_PARAMETERS = "this app has no parameter server: add parameters: {servers: 2} to app.yaml."
_TOKEN = "EVORL_SERVER_TOKEN"
_PARAMETERS_TOKEN = "EVORL_PARAMETERS_TOKEN"
_EVORL = (sys.executable, "-c", "from evorl.cli.commands import main; main()")


def server_program(app: AppConfig, extra: Sequence[str] = ()) -> Program:
    """Return an app's training server; with ``resume=`` in ``extra``, settings of the stored run replace the app's."""
    arguments, variables = _bound("serve", app.server, _TOKEN)
    command = [*_EVORL, "serve", *_training(app, extra), *arguments, *extra, *own_configs(app)]
    return Program("server", command, variables | _own_modules(app), app.server)


def parameter_programs(
    app: AppConfig, chosen: Collection[str], settings: Mapping[str, Any], extra: Sequence[str] = ()
) -> list[Program]:
    """Return the parameter server and training servers; servers that run elsewhere have an empty command.

    Args:
        app: app that the servers belong to.
        chosen: components of ``evorl run`` to run here; the others are started elsewhere.
        settings: options ``servers``, the number of training servers here, and ``worker``, the index of the first one.
        extra: additional arguments for training, used by the parameter server.

    Raises:
        ValueError: the app has no parameter server, or ``extra`` is passed but ``chosen`` lacks ``parameters``.
    """
    shared = app.parameters
    if shared is None:
        raise ValueError(_NO_PARAMETERS)
    if extra and "parameters" not in chosen:
        raise ValueError(
            f"training settings belong to the parameter server: use evorl run parameters {' '.join(extra)}"
        )
    arguments, variables = _bound("parameters", shared.address, _PARAMETERS_TOKEN)
    if "parameters" in chosen:
        combining = [f"parameters.{name}={as_override(value)}" for name, value in shared.settings.items()]
        refuse_composed_code(combining, APP_FILE, "Leave it out.")
        arguments = [*_training(app, extra), *combining, *arguments, *extra, *own_configs(app)]
        command = [*_EVORL, "serve-parameters", *arguments]
        programs = [Program("parameters", command, variables | _own_modules(app), shared.address)]
    else:
        programs = [Program("parameters", (), {}, shared.address)] if "server" in chosen else []
    addresses = server_addresses(app, settings)
    if "server" not in chosen:
        return programs + [Program(f"server at {each}", (), {}, each) for each in addresses if "environment" in chosen]
    first = settings["worker"]
    for number, address in enumerate(addresses, first):
        arguments, access = _bound("serve", address, _TOKEN)
        arguments += [f"token=env:{_PARAMETERS_TOKEN}"] if _PARAMETERS_TOKEN in variables else []
        arguments += ["trust=true"] if app.algorithm is not None else []  # the code belongs to the app
        command = [*_EVORL, "work", str(shared.address), f"worker={number}", *arguments]
        programs.append(Program(f"server-{number}", command, variables | access | _own_modules(app), address))
    return programs


def server_addresses(app: AppConfig, settings: Mapping[str, Any]) -> list[Address]:
    """Return the training servers' addresses; without a parameter server, reject ``servers`` and ``worker``."""
    if app.parameters is None:
        if unused := {name: settings[name] for name in ("servers", "worker") if settings[name]}:
            raise ValueError(f"{as_arguments(unused)}, but {_NO_PARAMETERS}")
        return [app.server]
    count = settings["servers"] or app.parameters.servers
    return [dataclasses.replace(app.server, port=app.server.port + PORTS_APART * i) for i in range(count)]


def _training(app: AppConfig, extra: Sequence[str]) -> list[str]:
    """Return the settings of the training run as arguments; an empty list when a run is resumed.

    Raises:
        ValueError: a setting names code from outside evorl, and the app has no ``algorithm`` folder.
        RunFolderError: a setting is not a plain ``key=value``, see ``refuse_composed_code``.
    """
    if any(word.startswith("resume=") for word in extra):
        return []
    arguments = training_words(app)
    refuse_named_code(app, extra)
    return arguments


def _bound(section: str, address: Address, variable: str) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and environment variables that set a server's address and token.

    The token is passed in a variable, because command-line arguments are visible to all users of the machine.
    """
    arguments, variables = [f"{section}.bind={address}"], {}
    if address.token is not None:
        arguments.append(f"{section}.token=env:{variable}")
        variables[variable] = address.token
    return arguments, variables


def _own_modules(app: AppConfig) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(app.folder), os.environ.get("PYTHONPATH")]))}


def metrics_programs(app: AppConfig, needed: bool, extra: Sequence[str] = ()) -> list[Program]:
    """Return a list with one program, the live metrics page of the app's runs; for ``needed``, see ``Program``.

    The page shows the runs in ``runs_folder`` of ``extra``, arguments for training, or else of the app.

    Raises:
        ValueError: ``app.yaml`` has no section ``metrics``.
    """
    address = app.metrics
    if address is None:
        raise ValueError("metrics has no address: add metrics: {bind: 127.0.0.1:7002} to app.yaml.")
    command = [*_EVORL, "watch", f"bind={address.host}", f"port={address.port}"]
    training = {**app.training, **dict(word.split("=", 1) for word in extra)}
    command += [f"runs_folder={training['runs_folder']}"] if "runs_folder" in training else []
    variables = {} if address.token is None else {"EVORL_TOKEN": address.token}
    return [Program("metrics", command, variables, address, needed)]


def environment_programs(app: AppConfig, settings: dict[str, Any]) -> list[Program]:
    """Return the ``settings["n"]`` simulators of an app, distributed evenly over its servers.

    Each simulator receives its part of ``app.yaml`` as JSON in ``EVORL_APP``, and the address of its server in
    ``EVORL_SERVER``. The options ``exploit`` and ``show_ui`` apply only to the first simulator.
    """
    command = app.environment_command(sys.executable)
    common = {
        "environment": app.environment,
        "run": {"max_episodes": app.run.max_episodes, "infinite_run": app.run.infinite_run},
    }
    addresses = server_addresses(app, settings)
    flags = {name: settings[name] for name in ("exploit", "show_ui")}
    programs = []
    for number in range(settings["n"]):
        switches = {name: value and number == 0 for name, value in flags.items()}
        address = str(addresses[number % len(addresses)])
        sent = {**common, "server": {"bind": address, "token": app.server.token}, "number": number, **switches}
        variables = {"EVORL_APP": json.dumps(sent), "EVORL_SERVER": address}
        programs.append(Program(f"environment-{number}", command, variables))
    return programs

"""``evorl run``: start the processes of an app, show what they say, and leave none behind."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from evorl.apps.app_config import APP_FILE, AppConfig, read_app
from evorl.apps.prefixed_log import PrefixedLog
from evorl.apps.supervision import Program, supervise
from evorl.cli.app_training import own_configs, training_words
from evorl.cli.app_words import without_flags
from evorl.cli.command_options import Option, read_options
from evorl.config.names import no_such
from evorl.config.values import checked_value, positive

COMPONENTS = ("all", "server", "environment", "metrics")
OPTIONS = {
    "n": Option(1, "environments at a time (or -n 4)"),
    "exploit": Option(False, "the first environment plays by the policy as it is, and is not learned from (--exploit)"),
    "show_ui": Option(False, "the first environment shows itself, if it can (--show-ui)"),
    "file": Option(APP_FILE, "the app's settings (or -c)"),
}
_FLAGS = {
    "-n": "n",
    "--n-environments": "n",
    "-c": "file",
    "--config": "file",
    "--exploit": "exploit=true",
    "--show-ui": "show_ui=true",
}
_TOKEN = "EVORL_SERVER_TOKEN"
_EVORL = (sys.executable, "-c", "from evorl.cli.commands import main; main()")


def run_from_arguments(arguments: Sequence[str]) -> int:
    """Run an app until its environments have ended.

    Args:
        arguments: what is run, one or several of ``COMPONENTS``, ``all`` by default; and options. Whatever else is like
            ``name=value`` is a setting of the training.

    Returns:
        0. Otherwise the process ends with the status: 1 where one failed, 130 after Ctrl-C.

    Raises:
        ValueError: this is no folder of an app, or an option cannot be.
    """
    words = without_flags(arguments, _FLAGS)
    own = [word for word in words if "=" not in word or word.partition("=")[0] in OPTIONS]
    settings, components = read_options(own, OPTIONS, "evorl run", unnamed="what is run")
    for component in components:
        if component not in COMPONENTS:
            raise ValueError(no_such("part of an app", component, COMPONENTS))
    app = read_app(settings["file"])
    chosen = set(components or ["all"])
    chosen |= {"server", "environment", "metrics"} if "all" in chosen else set()
    extra = [word for word in words if word not in own]
    servers = []
    if "metrics" in chosen and (app.metrics is not None or "metrics" in components):
        servers += metrics_programs(app, needed=chosen == {"metrics"})
    if "server" in chosen:
        servers.append(server_program(app, extra))
    elif "environment" in chosen:
        servers.append(Program("server", (), {}, app.server))  # somebody else starts it
    players = environment_programs(app, settings) if "environment" in chosen else []
    status = supervise(servers, players, app.folder, app.run, PrefixedLog(sys.stdout))
    if status:
        raise SystemExit(status)
    return status


def server_program(app: AppConfig, extra: Sequence[str] = ()) -> Program:
    """The training server of an app, started by the words of ``evorl serve``.

    Args:
        app: whose.
        extra: further words; with ``resume=latest``, or a run, the run's settings are taken instead of the app's.
    """
    words = [] if any(word.startswith("resume=") for word in extra) else training_words(app)
    words.append(f"serve.bind={app.server}")
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, [str(app.folder), os.environ.get("PYTHONPATH")]))}
    if app.server.token is not None:  # not among the words: these are seen by everybody on the machine
        words.append(f"serve.token=env:{_TOKEN}")
        variables[_TOKEN] = app.server.token
    command = [*_EVORL, "serve", *words, *extra, *own_configs(app)]
    return Program("server", command, variables, app.server)


def metrics_programs(app: AppConfig, needed: bool) -> list[Program]:
    """The live page of the app's runs."""
    address = app.metrics
    if address is None:
        raise ValueError("metrics has no address: write metrics: {bind: 127.0.0.1:7002} into app.yaml.")
    command = [*_EVORL, "watch", f"bind={address.host}", f"port={address.port}"]
    variables = {} if address.token is None else {"EVORL_TOKEN": address.token}
    return [Program("metrics", command, variables, address, needed)]


def environment_programs(app: AppConfig, settings: dict[str, Any]) -> list[Program]:
    """The simulators of an app. What ``app.yaml`` says reaches them in ``EVORL_APP``, as JSON, and the address in
    ``EVORL_SERVER``; only the first is to exploit, or to show itself.
    """
    command = app.environment_command(sys.executable)
    handed = {
        "environment": app.environment,
        "run": {"max_episodes": app.run.max_episodes, "infinite_run": app.run.infinite_run},
        "server": {"bind": str(app.server), "token": app.server.token},
    }
    flags = {name: checked_value(settings[name], bool, name) for name in ("exploit", "show_ui")}
    programs = []
    for number in range(positive(settings["n"], "n")):
        said = {name: value and number == 0 for name, value in flags.items()}
        variables = {"EVORL_APP": json.dumps({**handed, "number": number, **said}), "EVORL_SERVER": str(app.server)}
        programs.append(Program(f"environment-{number}", command, variables))
    return programs

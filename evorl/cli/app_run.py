"""``evorl run``: starts the processes of an app, shows their output, and stops all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from evorl.apps.app_config import read_app
from evorl.apps.prefixed_log import PrefixedLog
from evorl.apps.programs import (
    environment_programs,
    metrics_programs,
    parameter_programs,
    server_addresses,
    server_program,
)
from evorl.apps.supervision import Program, supervise
from evorl.cli.app_words import without_flags
from evorl.cli.command_options import read_options
from evorl.cli.options import APP_COMPONENTS, RUN
from evorl.config.names import no_such

_FLAGS = {
    "-n": "n",
    "--n-environments": "n",
    "-c": "file",
    "--config": "file",
    "--exploit": "exploit=true",
    "--show-ui": "show_ui=true",
}


def run_from_arguments(arguments: Sequence[str]) -> int:
    """Run components of an app until all its environments, or one of its required servers, have ended; return 0.

    Any ``name=value`` that is not an option of ``RUN`` is a setting of the training run.

    Raises:
        SystemExit: a required process failed (status 1), or a signal ended the run (128 plus its number).
    """
    rest = without_flags(arguments, _FLAGS)
    options = [word for word in rest if "=" not in word or word.partition("=")[0] in RUN]
    settings, components = read_options(options, RUN, "evorl run", unnamed="component")
    for component in components:
        if component not in APP_COMPONENTS:
            raise ValueError(no_such("app component", component, APP_COMPONENTS))
    app = read_app(settings["file"])
    chosen = set(components or ["all"])
    chosen |= {"server", "environment", "metrics"} if "all" in chosen else set()
    if "all" in chosen and app.parameters is not None:
        chosen.add("parameters")
    extra = [word for word in rest if word not in options]
    servers = []
    if "metrics" in chosen and (app.metrics is not None or "metrics" in components):
        servers += metrics_programs(app, needed=chosen == {"metrics"}, extra=extra)
        if not chosen & {"server", "parameters"}:  # then only the live page reads runs_folder
            extra = [word for word in extra if not word.startswith("runs_folder=")]
    server_addresses(app, settings)  # also without simulators: rejects servers= without a parameter server
    if app.parameters is not None or "parameters" in chosen:
        servers += parameter_programs(app, chosen, settings, extra)
    elif "server" in chosen:
        servers.append(server_program(app, extra))
    elif extra:
        words = " ".join(extra)
        raise ValueError(
            f"{words}: not an option of evorl run, and training settings belong to the server, which does not start "
            f"here: correct the name, or use evorl run server {words}."
        )
    elif "environment" in chosen:
        servers.append(Program("server", (), {}, app.server))  # started elsewhere
    players = environment_programs(app, settings) if "environment" in chosen else []
    status = supervise(servers, players, app.folder, app.run, PrefixedLog(sys.stdout))
    if status:
        raise SystemExit(status)
    return status

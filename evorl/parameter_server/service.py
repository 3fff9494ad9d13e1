"""Parameter server of a run: checks its settings and builds the config of the workers.

Workers do not compose a config: the server sends them its config as JSON.
"""

from __future__ import annotations

import dataclasses
import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evorl.config.command_lines import as_arguments
from evorl.config.values import check_names, checked_mapping
from evorl.ops.processes import is_multiprocess
from evorl.parameter_server.training import serve_parameters
from evorl.parameter_server.update_rules import ParameterServerSettings
from evorl.parameter_server.worker import check_supported, settings_for
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import WITH_PARTS, RunFolder
from evorl.runs.recorder import Recorder
from evorl.runs.spec import RunSpec
from evorl.sockets.access import host_and_port, require_token_beyond_this_machine, tls_context
from evorl.workflows.workflow import Workflow

PORT = 7000
_OF_THE_WIRE = ("bind", "token", "cert", "key", "profile_dir")
_OF_A_WORKER = ("bind", "web", "token", "cert", "key", "profile_dir")  # entries of ``serve`` that each worker sets


class ParameterService(NamedTuple):
    """A checked training run with a parameter server; not started yet.

    Attributes:
        workflow: workflow that the workers train.
        spec: settings of the run.
        combining: values for ``ParameterServerSettings``, by name.
        bind: address to listen on, ``host:port``.
        token: access token that workers must send; ``None`` disables authentication.
        tls: TLS context; ``None`` for unencrypted connections.
    """

    workflow: Workflow
    spec: RunSpec
    combining: Mapping[str, Any]
    bind: str
    token: str | None
    tls: ssl.SSLContext | None

    def serve(self, recorder: Recorder, checkpointer: RunCheckpointer, should_stop: Callable[[], bool]) -> None:
        """Serve until training ends or ``should_stop()`` returns True; see ``serve_parameters`` for the errors."""

        def announce(address: str) -> None:
            command = f"evorl work {address} worker=0"
            command += " token=..." if self.token else ""
            command += f" {as_arguments({'cert': self.spec.parameters['cert']})}" if self.tls else ""
            message = f"Parameter server at {address}. Start each worker with its own number: {command}"
            recorder.message(message)
            if not self.spec.recorders.progress:
                print(message, flush=True)

        serve_parameters(
            self.workflow,
            self.bind,
            settings=self.combining,
            seed=self.spec.seed,
            token=self.token,
            tls=self.tls,
            recorder=recorder,
            checkpointer=checkpointer,
            on_ready=announce,
            should_stop=should_stop,
            worker_config=worker_config(self.spec),
            profile_dir=self.spec.parameters.get("profile_dir"),
        )


def settle_parameters(spec: RunSpec, in_sweep: bool) -> RunSpec:
    """Return the settings of a run with a parameter server, restricted to one device.

    Raises:
        ValueError: a setting is incompatible with a parameter server, or ``in_sweep`` is true.
    """
    wrong = {
        "a sweep or search": in_sweep or spec.sweep is not None or spec.search is not None,
        "init_from": spec.init_from.run is not None,
        "several JAX processes": is_multiprocess(),
        f"devices={spec.devices}": spec.devices not in ("auto", 1),
    }
    if names := [name for name, is_given in wrong.items() if is_given]:
        raise ValueError(
            f"a parameter server does not support {' and '.join(names)}: it trains newly initialized parameters in "
            "one process on one device. Remove the setting, and start more workers for more speed."
        )
    return dataclasses.replace(spec, devices=1)


def refuse_ordinary_run(which: str, runs_folder: str) -> None:
    """Raise ``ValueError`` if the run to resume, ``which`` in ``runs_folder``, has no parameter server."""
    folder = RunFolder.find(which, runs_folder, WITH_PARTS)
    if folder.load_config(trust=True).get("parameters") is None:
        raise ValueError(
            f"{folder.path} is a run without a parameter server: resume it with evorl train "
            f"{as_arguments({'resume': folder.path})}, or remove resume= to start a new run with a parameter server."
        )


def parameter_service(workflow: Workflow, spec: RunSpec) -> ParameterService:
    """Return the parameter server that the section ``parameters`` of a run describes; it is not started.

    Raises:
        ValueError: the algorithm does not support a parameter server, or a setting is invalid.
    """
    settings = checked_mapping(spec.parameters, "parameters")
    names = [field.name for field in dataclasses.fields(ParameterServerSettings) if field.metadata.get("setting", True)]
    check_names(settings, (*names, *_OF_THE_WIRE), "key of parameters")
    combining = {name: value for name, value in settings.items() if name in names}
    check_supported(workflow)
    settings_for(workflow, combining)
    bind, token = str(settings.get("bind", f"127.0.0.1:{PORT}")), token_of(settings.get("token"), "parameters.token")
    host, _ = host_and_port(bind, "parameters.bind")
    require_token_beyond_this_machine(
        host, token, f"parameters.bind={bind}", "set parameters.token=... here and token=... for all workers"
    )
    tls = tls_context(settings.get("cert"), settings.get("key"), "parameters.cert, parameters.key")
    return ParameterService(workflow, spec, combining, bind, token, tls)


def worker_config(spec: RunSpec) -> dict[str, Any]:
    """Return the config that workers receive, as plain data: the workflow's config and runtime settings."""
    config = {**spec.workflow_config(), "deterministic": spec.deterministic, "precision": spec.precision}
    serve = shared_limits(spec.serve)
    return config | ({"serve": serve} if serve else {})


def shared_limits(serve: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entries of ``serve`` that a server and its workers share."""
    return {name: value for name, value in (serve or {}).items() if name not in _OF_A_WORKER}


def token_of(text: Any, name: str) -> str | None:
    """Return the token (``env:NAME`` reads a variable) or ``None``; raise ``ValueError`` if unset or too short."""
    if text is None:
        return None
    token = str(text)
    if token.startswith("env:"):
        variable = token.removeprefix("env:")
        if variable not in os.environ:
            raise ValueError(f"{name}={token} reads a variable that is not set: export {variable}=...")
        token = os.environ[variable]
    if len(token) < 8:
        raise ValueError(f"{name} must have at least 8 characters, got {len(token)}: shorter ones can be guessed.")
    return token

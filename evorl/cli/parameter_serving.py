"""``evorl serve-parameters`` and ``evorl work``: a parameter server in a run folder, and its workers.

A worker composes no config: the server sends its own as JSON. The worker reads it as data, and rejects names of code
outside this package unless the user trusts the server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from evorl.cli.command_options import Option, read_options, whole
from evorl.cli.signals import stop_on_signals
from evorl.config.command_lines import as_arguments
from evorl.config.gate import distrust, scope
from evorl.config.values import LONGEST_AXIS
from evorl.execution.runtime import prepare_for
from evorl.runs.spec import RunSpec

if TYPE_CHECKING:
    import ssl

    from evorl.parameter_server.parameter_training import Worked
    from evorl.runs.checkpointer import RunCheckpointer
    from evorl.runs.recorder import Recorder
    from evorl.workflows.workflow import Workflow

PORT = 7000
OPTIONS = {
    "worker": Option(0, "which one this is, from 0: each has random draws of its own", whole(0, LONGEST_AXIS)),
    "token": Option(None, "that the server wants; env:NAME reads a variable", text=True),
    "cert": Option(None, "file of the server's TLS certificate; null for no TLS", text=True),
    "profile_dir": Option(None, "folder for where the time goes, as trace.json", text=True),
    "serve": Option({}, "of env=remote where simulators come to, as serve.bind=127.0.0.1:7001, as for evorl serve"),
    "trust": Option(False, "whether the server may name code outside evorl: true only for servers of your own"),
}
_OF_THE_WIRE = ("bind", "token", "cert", "key", "profile_dir")
_OF_A_WORKER = ("bind", "web", "token", "cert", "key", "profile_dir")  # entries of ``serve`` that workers do not share


class ParameterService(NamedTuple):
    """A checked training with a parameter server that has not started.

    Attributes:
        workflow: workflow that the workers train.
        spec: settings of the run.
        combining: settings of ``ParameterServerSettings``.
        bind: ``host:port``.
        token: secret that workers must send; ``None`` disables authentication.
        tls: TLS context; ``None`` for unencrypted connections.
    """

    workflow: Workflow
    spec: RunSpec
    combining: Mapping[str, Any]
    bind: str
    token: str | None
    tls: ssl.SSLContext | None

    def serve(self, recorder: Recorder, checkpointer: RunCheckpointer, should_stop: Callable[[], bool]) -> None:
        """Serve the parameters until the training ends or should stop; see ``serve_parameters`` for errors."""
        from evorl.parameter_server.parameter_training import serve_parameters

        def tell(address: str) -> None:
            words = f"evorl work {address} worker=0"
            words += " token=..." if self.token else ""
            words += f" {as_arguments({'cert': self.spec.parameters['cert']})}" if self.tls else ""
            told = f"Parameters are at {address}. Workers, each with a number of its own: {words}"
            recorder.message(told)
            if not self.spec.recorders.progress:
                print(told, flush=True)

        serve_parameters(
            self.workflow,
            self.bind,
            settings=self.combining,
            seed=self.spec.seed,
            token=self.token,
            tls=self.tls,
            recorder=recorder,
            checkpointer=checkpointer,
            on_ready=tell,
            should_stop=should_stop,
            handed_out=handed_out(self.spec),
            profile_dir=self.spec.parameters.get("profile_dir"),
        )


def settle_parameters(spec: RunSpec, in_sweep: bool) -> RunSpec:
    """Restrict a run with a parameter server to one device; return the settings of other runs unchanged.

    Raises:
        ValueError: a setting is incompatible with a parameter server.
    """
    from evorl.ops.processes import are_several

    if spec.parameters is None:
        return spec
    wrong = {
        "a sweep or search": in_sweep or spec.sweep is not None or spec.search is not None,
        "init_from": spec.init_from.run is not None,
        "several processes of one program": are_several(),
        f"devices={spec.devices}": spec.devices not in ("auto", 1),
    }
    if found := [name for name, is_given in wrong.items() if is_given]:
        raise ValueError(
            f"A parameter server goes with no {' and no '.join(found)}: it is one training on one device, which more "
            "workers make faster. Leave it out."
        )
    return dataclasses.replace(spec, devices=1)


def refuse_ordinary_run(which: str, runs_folder: str) -> None:
    """Raise ``ValueError`` if the run to resume has no parameter server."""
    from evorl.runs.folder import RunFolder

    folder = RunFolder.find(which, runs_folder)
    if folder.load_config(trust=True).get("parameters") is None:
        raise ValueError(
            f"{folder.path} is a training without a parameter server, which goes on by evorl train "
            f"{as_arguments({'resume': folder.path})}. Leave out resume= to begin one with a parameter server."
        )


def parameter_service(workflow: Workflow, spec: RunSpec) -> ParameterService | None:
    """Return the parameter server of a run with ``parameters``; ``None`` for other runs.

    Raises:
        ValueError: the algorithm does not support a parameter server, or a setting is invalid.
    """
    if spec.parameters is None:
        return None
    from evorl.config.values import check_names, checked_mapping
    from evorl.sockets.access import host_and_port, require_token_beyond_this_machine, tls_context
    from evorl.workflows.parameter_server import ParameterServerSettings
    from evorl.workflows.parameter_worker import settings_for, workflow_of

    given = checked_mapping(spec.parameters, "parameters")
    own = [field.name for field in dataclasses.fields(ParameterServerSettings) if field.metadata.get("setting", True)]
    check_names(given, (*own, *_OF_THE_WIRE), "key of parameters")
    combining = {name: value for name, value in given.items() if name in own}
    settings_for(workflow_of(workflow), combining)
    bind, token = str(given.get("bind", f"127.0.0.1:{PORT}")), token_of(given.get("token"), "parameters.token")
    host, _ = host_and_port(bind, "parameters.bind")
    require_token_beyond_this_machine(
        host, token, f"parameters.bind={bind}", "give parameters.token=... to all workers"
    )
    tls = tls_context(given.get("cert"), given.get("key"), "parameters.cert, parameters.key")
    return ParameterService(workflow, spec, combining, bind, token, tls)


def handed_out(spec: RunSpec) -> dict[str, Any]:
    """Return the config that workers receive: the workflow's, as plain data, and their runtime settings."""
    config = {**spec.workflow_config(), "deterministic": spec.deterministic}
    serve = _limits(spec.serve)
    return config | ({"serve": serve} if serve else {})


def _limits(serve: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entries of ``serve`` that a server and its workers share."""
    return {name: value for name, value in (serve or {}).items() if name not in _OF_A_WORKER}


def token_of(given: Any, name: str) -> str | None:
    """Return the token; for ``env:NAME``, the value of that environment variable.

    Raises:
        ValueError: the variable is not set, or the token is too short.
    """
    if given is None:
        return None
    token = str(given)
    if token.startswith("env:"):
        variable = token.removeprefix("env:")
        if variable not in os.environ:
            raise ValueError(f"{name}={token} reads a variable that is not set: export {variable}=...")
        token = os.environ[variable]
    if len(token) < 8:
        raise ValueError(f"{name} must have 8 characters at least: others would guess it.")
    return token


@scope()
def work_from_arguments(arguments: Sequence[str]) -> Worked:
    """Run a worker until the server's training is over.

    Args:
        arguments: address of the server, with default port 7000, and options.

    Raises:
        ValueError: the address is missing, an option is invalid, or the server's config names code outside evorl.
        CommandRefused: the server refused a command; the message has its reason.
        ServerLost: the server cannot be reached.
    """
    given, addresses = read_options(arguments, OPTIONS, "evorl work", unnamed="address")
    if len(addresses) != 1:
        raise ValueError(f"name one server, got {len(addresses)}: evorl work 127.0.0.1:{PORT}")
    worker = given["worker"]
    address = addresses[0] if ":" in addresses[0] else f"{addresses[0]}:{PORT}"
    tls = None
    if given["cert"] is not None:
        import ssl

        tls = ssl.create_default_context(cafile=given["cert"])
    from evorl.parameter_server.parameter_client import ParameterClient

    token = token_of(given["token"], "token")
    with stop_on_signals() as should_stop:
        with ParameterClient(address, f"worker{worker}", token, tls=tls) as client:
            config = client.config()
        if given["trust"] is not True:
            distrust(f"the server at {address}")
        check_handed_out(config, address, given["trust"])
        prepare_for(RunSpec.from_config(config))
        settings = {"worker": worker, "token": token, "tls": tls, "profile_dir": given["profile_dir"]}
        worked = _work(config, address, given["serve"], should_stop=should_stop, **settings)
    print(
        f"Worker {worker}: {worked.accepted:,} of {worked.pushes:,} pushes counted; the server is at "
        f"{worked.step:,} steps.",
        flush=True,
    )
    return worked


def _work(config: Mapping[str, Any], address: str, serve: Any, **settings: Any) -> Worked:
    """Train in local environments, or with remote simulators that connect to a server of this worker."""
    from evorl.config.values import seed_number
    from evorl.envs.remote import is_remote
    from evorl.parameter_server.parameter_training import work
    from evorl.workflows.parameter_worker import workflow_of

    settings["seed"] = seed_number(config.get("seed", 0))
    workflow = workflow_of(config)
    if not is_remote(workflow.env):
        if serve:
            raise ValueError(
                f"serve is for simulators that connect over the network, and the training at {address} is of "
                f"{config['env']}: leave it out, or begin that training with env=remote."
            )
        return work(workflow, address, **settings)
    from evorl.config.values import checked_mapping
    from evorl.serving.serve_settings import serve_settings
    from evorl.serving.training_server import TrainingServer

    # The address comes from the worker's options, never from the server's config.
    own = serve_settings(_limits(checked_mapping(config.get("serve"), "serve")) | dict(checked_mapping(serve, "serve")))
    with contextlib.closing(TrainingServer(workflow, own)) as collector:
        return work(workflow, address, collector=collector, message=functools.partial(print, flush=True), **settings)


def check_handed_out(config: Mapping[str, Any], address: str, trust: Any) -> None:
    """Check the config received from a server.

    Raises:
        ValueError: it is not a config, contains interpolations, or names code outside this package without ``trust``.
    """
    from evorl.config.values import checked_value
    from evorl.runs.trust import foreign_names

    checked_value(trust, bool, "trust")
    if missing := [name for name in ("workflow", "env") if name not in config]:
        raise ValueError(f"What the server at {address} hands out is no config: it has no {', '.join(missing)}.")
    if "${" in repr(config):
        raise ValueError(f"The config of the server at {address} has ${{...}} in it: nothing is looked up for it.")
    if not trust and (names := foreign_names(config)):
        raise ValueError(
            f"The server at {address} would have code executed here that is not of evorl: {as_arguments(names)}. "
            "If you trust its operator, give trust=true."
        )

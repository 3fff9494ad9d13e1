"""``evorl work``: runs a worker of a parameter server."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from evorl.cli.command_options import read_options
from evorl.cli.options import WORK
from evorl.config.gate import distrust, scope
from evorl.execution.runtime import prepare_for
from evorl.execution.signals import stop_on_signals
from evorl.parameter_server.client import ParameterClient
from evorl.parameter_server.service import PORT, token_of
from evorl.parameter_server.training import WorkerResult
from evorl.parameter_server.worker_process import check_worker_config, work_for
from evorl.runs.spec import RunSpec


@scope()
def work_from_arguments(arguments: Sequence[str]) -> WorkerResult:
    """Run a worker until the server's training ends or a signal arrives; return the results of the worker."""
    options, addresses = read_options(arguments, WORK, "evorl work", unnamed="address")
    if len(addresses) != 1:
        raise ValueError(f"expected one address, got {' '.join(addresses) or 'none'}: use evorl work 127.0.0.1:{PORT}")
    worker = options["worker"]
    address = addresses[0] if ":" in addresses[0] else f"{addresses[0]}:{PORT}"
    try:
        tls = None if options["cert"] is None else ssl.create_default_context(cafile=options["cert"])
    except OSError as error:
        raise ValueError(f"cert={options['cert']} is not a readable PEM file of CA certificates: {error}.") from error
    token = token_of(options["token"], "token")
    with stop_on_signals() as should_stop:
        with ParameterClient(address, f"worker{worker}", token, tls=tls) as client:
            config = client.config()
        if options["trust"] is not True:
            distrust(f"the server at {address}")
        check_worker_config(config, address, options["trust"])
        spec = RunSpec.from_config(config)
        prepare_for(spec)
        settings = {"worker": worker, "token": token, "tls": tls, "profile_dir": options["profile_dir"]}
        worked = work_for(spec, address, options["serve"], should_stop=should_stop, **settings)
    print(
        f"Worker {worker}: {worked.accepted:,} of {worked.pushes:,} pushes accepted; the server is at "
        f"{worked.step:,} steps.",
        flush=True,
    )
    return worked

"""``evorl act``: serves a trained policy to simulators, games and robots over the network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from evorl.cli.command_options import read_options
from evorl.cli.options import ACT
from evorl.config.nodes import node_from_config
from evorl.execution.signals import stop_on_signals
from evorl.export.policy_server import PolicyServer
from evorl.serving.serve_settings import ServeSettings
from evorl.sockets.access import tls_context

_SERVER_OPTIONS = ("bind", "web", "token", "cert", "key", "max_clients", "max_frame", "idle_seconds")


def act_from_arguments(arguments: Sequence[str]) -> None:
    """Serve the policy of a run or exported file until Ctrl-C; raise ``RuntimeError`` if clients get no answer."""
    options, _ = read_options(arguments, ACT, "evorl act")
    _check_source(options)
    tls_context(options["cert"], options["key"])  # otherwise an error would name settings of ``serve``
    follow = options["follow"]
    try:
        settings = node_from_config(ServeSettings, {name: options[name] for name in _SERVER_OPTIONS}, "serve")
    except ValueError as error:  # in the config of a run, these settings are in ``serve``
        raise ValueError(str(error).replace("serve.", "")) from error
    make = PolicyServer.of_file if options["policy"] else PolicyServer.of_run
    with make(options, settings) as server, stop_on_signals() as should_stop:
        print(*server.stored.notices, server.stored.describe(), sep="\n")
        print(f"Waiting for clients at {', '.join(server.addresses)}.", flush=True)
        checked_at, news = time.monotonic(), list[str]()
        while not should_stop():
            time.sleep(0.1)
            server.refuse_failure()
            if follow and time.monotonic() - checked_at >= follow:
                last_news = news
                try:
                    is_newer = server.look_for_newer()
                    news = [*server.stored.notices, f"Now serving: {server.stored.describe()}"] if is_newer else []
                except Exception as error:  # from any run, environment or disk; the served policy is intact
                    news = [f"Still serving the same policy: {' '.join(str(error).split()) or type(error).__name__}"]
                if news not in ([], last_news):
                    print(*news, sep="\n", flush=True)
                checked_at = time.monotonic()
        print(f"{server.switchboard.num_answers:,} actions were sent.")


def _check_source(options: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless exactly one of run and policy is given, or if an option does not apply to a file."""
    if not options["run"] and not options["policy"]:
        raise ValueError("no policy was given: set run=<folder>, run=latest, or policy=<file of evorl export>.")
    if not options["policy"]:
        return
    fixed = [
        name for name in ("run", "checkpoint", "sample", "seed_number", "follow") if options[name] != ACT[name].default
    ]
    if fixed:
        raise ValueError(f"policy={options['policy']} is a single exported policy: remove {', '.join(fixed)}.")

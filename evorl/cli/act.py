"""``evorl act``: serves a trained policy to simulators, games and robots over the network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from evorl.cli.command_options import read_options
from evorl.cli.options import ACT
from evorl.execution.signals import stop_on_signals
from evorl.export.policy_server import PolicyServer
from evorl.serving.serve_settings import serve_settings

_OF_THE_SERVER = ("bind", "web", "token", "cert", "key", "max_clients", "max_frame", "idle_seconds")


def act_from_arguments(arguments: Sequence[str]) -> None:
    """Serve the policy of a stored run, or of an exported file, until Ctrl-C.

    Args:
        arguments: ``name=value``, see ``ACT``.

    Raises:
        ValueError: an option is unknown or invalid.
        RunFolderError: the run does not exist, or is not trusted.
        OSError: the address is in use.
        ImportError: ``web`` is given, and the extra serve is not installed.
    """
    given, _ = read_options(arguments, ACT, "evorl act")
    _check_which(given)
    follow = given["follow"]
    try:
        settings = serve_settings({name: given[name] for name in _OF_THE_SERVER})
    except ValueError as error:  # in a training's config these settings are below ``serve``
        raise ValueError(str(error).replace("serve.", "")) from error
    make = PolicyServer.of_file if given["policy"] else PolicyServer.of_run
    with make(given, settings) as server, stop_on_signals() as should_stop:
        print(f"{server.stored.in_words()}\nClients are waited for at {', '.join(server.addresses)}.", flush=True)
        looked = time.monotonic()
        while not should_stop():
            time.sleep(0.1)
            server.refuse_failure()
            if follow and time.monotonic() - looked >= follow:
                if server.look_for_newer():
                    print(f"From now on: {server.stored.in_words()}", flush=True)
                looked = time.monotonic()
        print(f"{server.switchboard.num_answers:,} actions were given.")


def _check_which(given: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless exactly one of run and policy is given, or if an option does not apply to a file."""
    if not given["run"] and not given["policy"]:
        raise ValueError("Which policy? Give run=<folder>, run=latest, or policy=<file of evorl export>.")
    if not given["policy"]:
        return
    fixed = [
        name for name in ("run", "checkpoint", "sample", "seed_number", "follow") if given[name] != ACT[name].default
    ]
    if fixed:
        raise ValueError(f"policy={given['policy']} is one policy for good: leave out {', '.join(fixed)}.")

"""``evorl check-client``: checks a client of the RLX protocol, and prints the protocol's test vectors."""

from __future__ import annotations

import contextlib
import fnmatch
import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from evorl.apps.child import Child
from evorl.apps.prefixed_log import PrefixedLog
from evorl.cli.command_options import read_options
from evorl.cli.options import CHECK_CLIENT
from evorl.config.names import no_such
from evorl.serving.conformance import Check, NoConnectionError, run_checks
from evorl.serving.conformance_checks import all_checks
from evorl.serving.protocol_vectors import vectors_text
from evorl.sockets.access import host_and_port, is_this_machine

_VECTORS = "vectors"


def check_client_from_arguments(arguments: Sequence[str]) -> None:
    """Run the checks of a client and print each result, or print the test vectors; raise ``ValueError`` on failure."""
    settings, unnamed = read_options(arguments, CHECK_CLIENT, "evorl check-client", unnamed=_VECTORS)
    if unnamed not in ([], [_VECTORS]):
        raise ValueError(f"{' '.join(unnamed)!r} is not an argument of evorl check-client: use {_VECTORS}, or options.")
    if unnamed:
        _write_vectors(settings["to"])
        return
    if settings["to"]:
        raise ValueError(f"to={settings['to']} applies only to test vectors: evorl check-client {_VECTORS} to=<file>.")
    _check(settings)


def _write_vectors(file: str) -> None:
    if not file:
        print(vectors_text(), end="")
        return
    Path(file).write_text(vectors_text(), encoding="utf-8")
    print(f"wrote {file}")


def _check(settings: dict[str, Any]) -> None:
    checks, seconds = _chosen_checks(settings["only"], settings["skip"]), settings["seconds"]
    host, port = host_and_port(settings["bind"], "bind")
    if not is_this_machine(host):
        raise ValueError(f"bind={settings['bind']} can be reached from other machines: use bind=127.0.0.1:{port}.")
    failed = []
    with _listening(settings["bind"], host, port) as listener, contextlib.ExitStack() as stack:
        address = f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        start = None
        if settings["command"]:
            program = _ClientProgram(settings["command"], address)
            stack.callback(program.end)
            start = program.start
        else:
            print(f"Waiting for the client at {address}", flush=True)
        width = max(len(check.name) for check in checks)
        num_played = 0
        try:
            for result in run_checks(checks, listener, seconds, start):
                num_played += 1
                verdict = "passed" if result.failure is None else f"FAILED: {result.failure}"
                print(f"{result.name:{width}s}  {verdict}", flush=True)
                failed += [result.name] if result.failure else []
        except NoConnectionError as error:
            advice = "" if start else " Without command=..., the client must reconnect by itself for each check."
            raise ValueError(f"{error} {num_played} of {len(checks)} checks were run.{advice}") from None
    if failed:
        raise ValueError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}.")
    print(f"All {len(checks)} checks passed.")


def _chosen_checks(only: str, skip: str) -> list[Check]:
    """Return the selected checks; raise ``ValueError`` if a pattern matches no check, or if all checks are skipped."""
    checks = all_checks()
    names = [check.name for check in checks]
    chosen = {}
    for option, text in (("only", only), ("skip", skip)):
        patterns = [pattern.strip() for pattern in text.split(",") if pattern.strip()]
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise ValueError(f"{option}={text}: {no_such('check', pattern, names)}")
        chosen[option] = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
    remaining = (chosen["only"] or set(names)) - chosen["skip"]
    if not remaining:
        raise ValueError(f"only={only} and skip={skip} leave no check: select more in only=, or fewer in skip=.")
    return [check for check in checks if check.name in remaining]


@contextlib.contextmanager
def _listening(bind: str, host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"bind={bind} cannot be used: {error.strerror or error}.") from error
    with listener:
        yield listener


class _ClientProgram:
    """Client program, in which ``{address}`` is replaced by ``address``; it is restarted for each check.

    Raises:
        ValueError: the command is empty or cannot be parsed.
    """

    def __init__(self, command: str, address: str) -> None:
        try:
            self._words = [word.replace("{address}", address) for word in shlex.split(command)]
        except ValueError as error:
            raise ValueError(f"command={command} cannot be read: {error}.") from None
        if not self._words:
            raise ValueError("command is empty: set it to a program, as in command='node client.js {address}'.")
        self._log = PrefixedLog(sys.stderr)
        self._child: Child | None = None

    def start(self) -> Callable[[], bool]:
        """End the running program, if any, and start it again; return a function that returns True while it runs."""
        self.end()
        self._child = child = Child("client", self._words, Path.cwd(), {}, self._log)
        return lambda: child.status is None

    def end(self) -> None:
        """End the program, if it is running."""
        if self._child is not None:
            self._child.end()
            self._child = None

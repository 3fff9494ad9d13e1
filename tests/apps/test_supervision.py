"""Supervision starts servers first, then environments, and leaves no process running."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evorl.apps.app_config import Address, RunSettings
from evorl.apps.prefixed_log import PrefixedLog
from evorl.apps.supervision import Program, supervise
from tests.support.apps import ROOT, free_port, still_alive
from tests.support.errors import assert_names

SETTINGS = RunSettings(start_seconds=20.0, stop_seconds=5.0)
PID = "import os; print('pid', os.getpid(), flush=True)\n"
SERVER = """
import socket, signal, sys, time
def end(number, frame):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
listening = socket.create_server(("127.0.0.1", PORT))
while True:
    connection, _ = listening.accept()
    connection.close()
"""


def program(name: str, code: str, address: Address | None = None, needed: bool = True) -> Program:
    return Program(name, [sys.executable, "-c", PID + code], {}, address, needed)


def a_server(name: str = "server") -> Program:
    port = free_port()
    return program(name, SERVER.replace("PORT", str(port)), Address("127.0.0.1", port))


def run(servers: list[Program], environments: list[Program], tmp_path: Path) -> tuple[int, str]:
    stream = io.StringIO()
    status = supervise(servers, environments, tmp_path, SETTINGS, PrefixedLog(stream))
    text = stream.getvalue()
    pids = [int(pid) for pid in re.findall(r"\| pid (\d+)", text)]
    assert still_alive(pids) == []
    return status, text


def test_environments_wait_for_the_server_which_ends_after_them(tmp_path: Path) -> None:
    players = [program(f"environment-{n}", f"print('plays {n}')") for n in range(3)]
    status, text = run([a_server()], players, tmp_path)
    assert status == 0
    assert all(f"plays {n}" in text for n in range(3))
    assert text.index("server is ready at 127.0.0.1:") < text.index("plays 0")
    assert text.index("3 environments have ended") < text.index("saved")


def test_an_environment_that_fails_lets_the_others_play_and_is_told(tmp_path: Path) -> None:
    players = [program("environment-0", "raise SystemExit(7)"), program("environment-1", "print('played')")]
    status, text = run([a_server()], players, tmp_path)
    assert status == 1
    assert "played" in text
    assert_names(text, "environment-0", "status 7")


def test_a_server_that_is_never_there_is_told_and_nobody_plays(tmp_path: Path) -> None:
    broken = program("server", "print('no such setting'); raise SystemExit(1)", Address("127.0.0.1", free_port()))
    status, text = run([broken], [program("environment-0", "print('plays')")], tmp_path)
    assert status == 1
    assert_names(text, "server ended before")
    assert "plays" not in text


def test_a_server_that_ends_takes_the_environments_with_it(tmp_path: Path) -> None:
    port = free_port()
    code = SERVER.replace("PORT", str(port)).replace("while True", "for _ in range(1)")  # the readiness check ran once
    status, text = run(
        [program("server", code, Address("127.0.0.1", port))],
        [program("environment-0", "import time; time.sleep(600)")],
        tmp_path,
    )
    assert status == 0
    assert_names(text, "server has ended")


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        status, text = run([program("server", "", address)], [], tmp_path)
        assert status == 1
        assert "the address is in use" in text
        page = program("metrics", "", address, needed=False)
        status, text = run([page, a_server()], [program("environment-0", "print('plays')")], tmp_path)
    assert status == 0
    assert "plays" in text


def test_a_server_that_somebody_else_starts_is_waited_for(tmp_path: Path) -> None:
    address = Address("127.0.0.1", free_port())
    late = threading.Timer(0.5, lambda: listening.append(socket.create_server((address.host, address.port))))
    listening: list[socket.socket] = []
    late.start()
    player = program("environment-0", f"import socket; socket.create_connection(('127.0.0.1', {address.port})).close()")
    status, text = run([Program("server", (), {}, address)], [player], tmp_path)
    late.join()
    listening[0].close()
    assert status == 0, text


def test_a_server_that_nobody_starts_is_told(tmp_path: Path) -> None:
    address = Address("127.0.0.1", free_port())
    stream = io.StringIO()
    settings = RunSettings(start_seconds=0.2)
    status = supervise([Program("server", (), {}, address)], [], tmp_path, settings, PrefixedLog(stream))
    assert status == 1
    assert_names(stream.getvalue(), "not ready", address, "0.2 s", "run.start_seconds")


def test_a_page_that_cannot_be_shown_ends_nothing(tmp_path: Path) -> None:
    page = program("metrics", "raise SystemExit(1)", Address("127.0.0.1", free_port()), needed=False)
    assert run([a_server(), page], [program("environment-0", "")], tmp_path)[0] == 0


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)
MAIN = """
import sys
from pathlib import Path
from evorl.apps.app_config import RunSettings
from evorl.apps.prefixed_log import PrefixedLog
from evorl.apps.supervision import Program, supervise
from tests.apps.test_supervision import PID, a_server, program
from evorl.execution.signals import handled_signals
with handled_signals():
    players = [program(f"environment-{n}", sys.argv[1]) for n in range(2)]
    settings = RunSettings(1, False, 20.0, 60.0)
    raise SystemExit(supervise([a_server()], players, Path("."), settings, PrefixedLog(sys.stdout)))
"""


@contextlib.contextmanager
def started(code: str, word: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a supervisor process and wait until two environments print; return it and the ids of its processes."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    text, pids = "", []
    try:
        while text.count(word) < 2:
            line = process.stdout.readline()
            assert line, text
            text += line
        pids = [int(pid) for pid in re.findall(r"\| pid (\d+)", text)]
        yield process, pids
    finally:
        for pid in [process.pid, *pids] if process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    code = "print('plays', flush=True); import time; time.sleep(600)"
    with started(code, "plays", tmp_path) as (process, pids):
        assert len(pids) == 3
        assert still_alive(pids, 0.0) == pids
        process.send_signal(number)
        message, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert "saved" in message
    assert still_alive(pids) == []


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with started(STUBBORN, "deaf", tmp_path) as (process, pids):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert still_alive(pids) == []

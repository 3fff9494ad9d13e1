"""Apps for tests: options as ``evorl run`` passes them, free ports, processes that must end."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from evorl.apps.app_config import AppConfig, read_app
from evorl.apps.files.app_options import Options
from evorl.apps.programs import PORTS_APART
from evorl.cli.app_commands import new_from_arguments

ROOT = Path(__file__).resolve().parents[2]


def options_for(port: int, episodes: int = 1, **environment: Any) -> Options:
    """Return options of a simulator that connects to this port."""
    return Options(
        {
            "environment": {"seed": 0, **environment},
            "server": {"bind": f"127.0.0.1:{port}"},
            "run": {"max_episodes": episodes},
        }
    )


def free_port() -> int:
    """Return an unused port."""
    return free_ports(1, 0)


def free_ports(count: int, apart: int) -> int:
    """Return the first of ``count`` unused ports at intervals of ``apart``."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for i in range(1, count):
                stack.enter_context(socket.create_server(("127.0.0.1", first + apart * i)))
            return first


def still_alive(pids: list[int], seconds: float = 5.0) -> list[int]:
    """Return the processes that are alive after at most ``seconds``; zombies count as ended."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if _is_alive(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    if Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def bandit_app(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """Create a bandit app with free ports and three episodes, and change to its folder."""
    monkeypatch.chdir(folder)
    new_from_arguments(["bandit-test", "env=bandit"])
    monkeypatch.chdir("bandit-test")
    file = Path("app.yaml")
    text = file.read_text().replace("127.0.0.1:7001", f"127.0.0.1:{free_port()}")
    text = text.replace("127.0.0.1:7002", f"127.0.0.1:{free_port()}").replace("max_episodes: 100", "max_episodes: 3")
    file.write_text(text)
    return read_app(file)


def with_parameter_server(app: AppConfig) -> AppConfig:
    """Return the app of the current folder with a parameter server and two servers that use it."""
    file = Path("app.yaml")
    text = file.read_text().replace(f"127.0.0.1:{app.server.port}", f"127.0.0.1:{free_ports(2, PORTS_APART)}")
    parameters = f"parameters: {{servers: 2, mode: averaging, num_gradients: 2, bind: '127.0.0.1:{free_port()}'}}"
    file.write_text(re.sub(r"^parameters: .*$", parameters, text, flags=re.MULTILINE))
    return read_app(file)

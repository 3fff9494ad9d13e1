"""One command with all others below it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import evorl
from evorl.cli import commands, main, saving
from evorl.config.names import load
from tests.support.apps import ROOT
from tests.support.run_folders import make_run


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"]])
def test_without_a_command_all_are_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    commands.run(arguments)
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in commands.COMMANDS)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    commands.run(["--version"])
    assert capsys.readouterr().out == f"evorl {evorl.__version__}\n"


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_is_there_and_says_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = commands.COMMANDS[name]
    assert callable(load(command.runs))
    commands.run([name, "--help"])
    told = capsys.readouterr().out
    assert told.startswith(f"Usage: evorl {name} ")
    assert command.does in told
    assert all(f"  {option}=" in told for option in commands.options_of(command))


def test_what_lists_or_supervises_does_not_wait_for_jax(tmp_path: Path) -> None:
    """``evorl run`` starts what trains in other processes."""
    make_run(tmp_path, "runs/a", [[1.0]])
    code = (
        "import sys; from evorl.cli import commands, app_running; commands.run(['runs']); print('jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    *listed, imported = done.stdout.splitlines()
    assert any(line.startswith("a ") for line in listed), listed
    assert imported == "False"


def test_no_such_command_is_told_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evorl", "trian"])
    with pytest.raises(SystemExit):
        commands.main()
    assert capsys.readouterr().err.startswith("Error: there is no command 'trian'. Did you mean 'train'?")


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [("train", main, "train"), ("evaluate", main, "evaluate"), ("save-replay", saving, "save_replay")],
)
def test_those_of_a_config_see_their_own_arguments(
    name: str, module: object, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(module, function, lambda: seen.append(sys.argv))
    monkeypatch.setattr(sys, "argv", ["evorl", name, "run=latest"])
    commands.main()
    assert seen == [["evorl", "run=latest"]]

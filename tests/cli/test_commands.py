"""One command with subcommands."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import evorl
from evorl.cli import commands, evaluation, save_replay, train
from evorl.cli.command_options import read_options
from evorl.cli.command_table import COMMANDS
from evorl.config.names import load
from evorl.recorders import screen
from tests.support.apps import ROOT
from tests.support.errors import assert_names, raises_naming
from tests.support.run_folders import make_run


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"]])
def test_without_a_command_all_are_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    commands.run(arguments)
    output = capsys.readouterr().out
    assert all(f"  {name} " in output for name in COMMANDS)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    commands.run(["--version"])
    assert capsys.readouterr().out == f"evorl {evorl.__version__}\n"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_the_package_is_the_command(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "evorl", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(("evorl ", "Usage: evorl <command>"))


@pytest.mark.parametrize("name", ["evaluate", "render", "export", "pack", "play", "save-replay", "act"])
def test_a_run_without_a_name_is_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[list[str]] = []
    monkeypatch.setattr(commands, "load", lambda _: received.append)
    for arguments in (["latest"], ["seed=3", "latest"], ["run=a", "latest"], ["a", "b"], ["policy=a.onnx", "b"]):
        commands.run([name, *arguments])
    assert received == [
        ["run=latest"],
        ["seed=3", "run=latest"],
        ["run=a", "latest"],
        ["a", "b"],
        ["policy=a.onnx", "b"],
    ]


def test_runs_of_a_report_may_have_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[list[str]] = []
    monkeypatch.setattr(commands, "load", lambda _: received.append)
    for name in ("report", "watch"):
        commands.run([name, "run=latest", "runs/a"])
    assert received == [["latest", "runs/a"]] * 2


@pytest.mark.parametrize(("name", "instead"), [("enjoy", "evorl render"), ("version", "evorl --version")])
def test_commands_of_other_tools_are_answered_with_ours(name: str, instead: str) -> None:
    with raises_naming(ValueError, f"unknown command '{name}'", instead):
        commands.run([name, "run=latest"])
    assert not commands._INSTEAD.keys() & COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_says_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[name]
    assert callable(load(command.runs))
    commands.run([name, "--help"])
    output = capsys.readouterr().out
    assert output.startswith(f"Usage: evorl {name} ")
    assert command.description in output
    assert all(f"  {option}=" in output for option in command.options)


def test_what_lists_supervises_or_explains_does_not_wait_for_jax(tmp_path: Path) -> None:
    """Commands that list, supervise or explain do not import JAX; ``evorl run`` trains in other processes.

    The completion of ``evorl compare`` composes the settings of its trainings, which imports JAX.
    """
    make_run(tmp_path, "runs/a", [[1.0]])
    code = (
        "import sys; from evorl.cli import app_run, commands, completion, main, report, watch; commands.run(['runs']); "
        "[commands.help_of(name) for name in commands.COMMANDS]; "
        "own = [name for name, each in commands.COMMANDS.items() if each.options and name != 'compare']; "
        "[completion.candidates(f'evorl {name} ') for name in own]; "
        "print('jax' in sys.modules)"
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
    printed = capsys.readouterr().err
    assert printed.startswith("Error: ")
    assert_names(printed, "command 'trian'", "'train'")


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.working])
def test_a_command_that_takes_long_tells_what_it_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, is_shown = [], threading.Event()
    monkeypatch.setattr(screen, "print_line", lambda text, _: (shown.append(text), is_shown.set()))
    monkeypatch.setattr(inspect.unwrap(screen.announced), "__defaults__", (0.0,))
    monkeypatch.setattr(commands, "load", lambda _: lambda _: is_shown.wait(60.0))
    assert commands.run([name])
    assert shown == [COMMANDS[name].working]


@pytest.mark.parametrize(("name", "module"), [("train", train), ("evaluate", evaluation), ("save-replay", save_replay)])
def test_those_of_a_config_see_their_own_arguments(name: str, module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(module, "run_command", lambda task, arguments, *_: seen.append(arguments))
    monkeypatch.setattr(sys, "argv", ["evorl", name, "run=latest"])
    commands.main()
    assert seen == [["run=latest"]]


OWN_OPTIONS = [(name, option) for name, command in COMMANDS.items() for option in command.options]
WRONG = ["abc", "", "-1", "0.5", "1e400", "nan", "inf", "9" * 400, "null", "true", "[]", "[1]", "{}", "{a: 1}", "{a"]


def read(name: str, option: str, text: str) -> object:
    """Return the value of one option of a command, or its error."""
    options = COMMANDS[name].options
    try:
        return read_options([f"{option}={text}"], options, f"evorl {name}", unnamed="argument")[0][option]
    except ValueError as error:
        return error


@pytest.mark.parametrize(("name", "option"), OWN_OPTIONS)
def test_every_option_takes_values_of_its_type_and_refuses_others_by_name(name: str, option: str) -> None:
    declared = COMMANDS[name].options[option]
    for text in WRONG:
        value = read(name, option, text)
        if isinstance(value, ValueError):
            assert option in str(value)
            assert "\n" not in str(value)
            assert len(str(value)) < 500
        elif value is None:
            assert text == "null"
            assert declared.default is None or declared.null
        elif isinstance(declared.default, bool):
            assert text == "true"
        elif isinstance(declared.default, dict):
            assert isinstance(value, dict)
        elif not declared.is_text:
            assert not isinstance(value, bool | str)
            assert value == value
        else:
            assert value or declared.empty


@pytest.mark.parametrize(("name", "option"), OWN_OPTIONS)
def test_every_number_declares_its_interval(name: str, option: str) -> None:
    declared = COMMANDS[name].options[option]
    is_number = isinstance(declared.default, int | float) and not isinstance(declared.default, bool)
    if is_number or (declared.default is None and not declared.is_text):
        assert declared.check is not None
    if is_number:
        assert isinstance(read(name, option, "-1"), ValueError)
        assert isinstance(read(name, option, "9" * 400), ValueError)
        assert read(name, option, f"{declared.default:.12e}") == declared.default


def test_what_serves_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["evorl"])
    with pytest.raises(SystemExit):
        commands.run(["serve", "env=cartpole", "agent=ppo"])
    assert not list(tmp_path.iterdir())
    run = make_run(tmp_path / "runs", "a", [[1.0]])
    with raises_naming(ValueError, "evorl train resume="):
        commands.run(["serve", f"resume={run.path}"])

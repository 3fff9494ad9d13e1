"""The command ``evorl`` with its subcommands."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from evorl.cli.command_options import describe_options
from evorl.cli.command_table import COMMANDS, Command
from evorl.cli.completion import FLAGS, complete_from_arguments
from evorl.cli.config_tree import config_folder, config_names
from evorl.cli.errors import explained_errors, print_any_character
from evorl.cli.overrides import changeable_settings
from evorl.config.gate import scope
from evorl.config.names import load, no_such
from evorl.distribution import installed_version
from evorl.execution.signals import handled_signals
from evorl.recorders.screen import announced

_OPTIONS_OF_A_TRAINING = "Options are the settings of a training run; evorl {} agent=... env=... --cfg job lists them."
# Commands of other tools, with the evorl command to use instead.
_INSTEAD = {
    "enjoy": "render",
    "learn": "train",
    "list": "agents, evorl envs or evorl runs",
    "ls": "runs",
    "resume": "train resume=latest",
    "sweep": "train 'sweep={discount: [0.9,0.99]}'",
    "tensorboard": "watch, or tensorboard --logdir runs",
    "test": "evaluate",
    "version": "--version",
}


def main(*command: str) -> None:
    """Run ``evorl <command> ...``; without a command, or with ``--help``, list the commands.

    Args:
        command: the command, for programs such as ``evorl-train``; without it, the first argument is the command.
    """
    print_any_character()
    with handled_signals(), explained_errors(config_folder()):
        run([*command, *sys.argv[1:]])


def run(arguments: Sequence[str]) -> Any:
    """Run the command that the first argument names; return its result, or ``None`` after printing help or version."""
    if any(flag in arguments for flag in FLAGS):
        complete_from_arguments(arguments)
        return None
    name, *rest = arguments or ["--help"]
    if name in ("--help", "-h", "help"):
        print(overview(), end="")
        return None
    if name in ("--version", "-V"):
        print(f"evorl {installed_version()}")
        return None
    if name in _INSTEAD:
        raise ValueError(f"unknown command {name!r}. Use evorl {_INSTEAD[name]}; evorl --help describes all commands.")
    if name not in COMMANDS:
        raise ValueError(f"{no_such('command', name, COMMANDS)} evorl --help describes all commands.")
    if any(flag in ("--help", "-h") for flag in rest):
        print(help_of(name), end="")
        return None
    if name == "serve" and any(argument.startswith("run=") for argument in rest):
        name = "act"
    command = COMMANDS[name]
    with scope(), announced(command.working) if command.working else contextlib.nullcontext():
        return load(command.runs)(_naming_run(command, rest))


def _naming_run(command: Command, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with ``run=`` added or removed as the command expects: ``render run=x``, but ``watch x``."""
    if command.usage.startswith(("<run>", "[<run>")):
        return [argument.removeprefix("run=") for argument in arguments]
    unnamed = [argument for argument in arguments if "=" not in argument and not argument.startswith(("-", "+", "~"))]
    has_run = any(argument.startswith(("run=", "policy=")) for argument in arguments)
    if command.usage.startswith("run=") and len(unnamed) == 1 and not has_run:
        return [f"run={argument}" if argument == unnamed[0] else argument for argument in arguments]
    return list(arguments)


def overview() -> str:
    """Return the list of all commands with their descriptions."""
    width = max(map(len, COMMANDS))
    lines = "".join(f"  {name:{width}s}  {command.description}\n" for name, command in COMMANDS.items())
    more = "evorl <command> --help describes a command, evorl --version prints the version."
    completion = 'Tab completion: eval "$(evorl -sc install=bash)" (or install=zsh); evorl -sc install=fish | source'
    return f"Usage: evorl <command> ...\n\n{lines}\n{more}\n{completion}\n"


def help_of(name: str) -> str:
    """Return the help text of a command: usage, description and options."""
    command = COMMANDS[name]
    lines = f"Usage: evorl {name} {command.usage}\n\n{command.description}\n"
    if not command.options:
        details = {"train": _describe_settings, "evaluate": _describe_changes, "save-replay": _describe_changes}
        return f"{lines}\n{details[name](name) if name in details else _OPTIONS_OF_A_TRAINING.format(name)}\n"
    return f"{lines}\n{describe_options(command.options)}"


def _describe_settings(name: str) -> str:
    """Return the names of all agents and environments, and the command that lists the settings of a training run."""
    chosen = {group: ", ".join(config_names(config_folder() / group)) for group in ("agent", "env")}
    names = "\n\n".join(
        textwrap.fill(f"{group}: {listed}", 100, break_on_hyphens=False) for group, listed in chosen.items()
    )
    more = "Environments of other libraries: env=gymnasium/<id>, env=envpool/<id>, env=playground/<name> ..."
    sweep = "Example of a sweep: evorl train -m agent=ppo,sac seed=0,1,2"
    return f"{names}\n{more}\n\n{_OPTIONS_OF_A_TRAINING.format(name)}\n{sweep}"


def _describe_changes(name: str) -> str:
    """Return the list of settings of a stored run that ``evorl evaluate`` or ``evorl save-replay`` can change."""
    listed = textwrap.fill(", ".join(changeable_settings(name)), 100, break_on_hyphens=False)
    return f"Options: run, runs_folder, trust, and these settings of the run:\n{listed}"

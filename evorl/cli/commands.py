"""The command ``evorl`` with its subcommands."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evorl.cli.command_options import Option, options_in_words
from evorl.distribution import installed_version


class Command(NamedTuple):
    """A subcommand of ``evorl``.

    Attributes:
        does: description, one sentence.
        usage: synopsis of the arguments.
        runs: ``module:function``, imported when the command runs; the function receives the list of arguments.
        options: ``module:name`` of the options; ``None`` if the command accepts the settings of a training.
    """

    does: str
    usage: str
    runs: str
    options: str | None = None


COMMANDS: dict[str, Command] = {
    "train": Command(
        "Train an agent, or go on with a run.",
        "[agent=ppo] [env=cartpole] [resume=<run>|latest] [setting=value ...]",
        "evorl.cli.commands:train",
    ),
    "serve": Command(
        "Train by simulators that come over the network.",
        "[agent=ppo] [env=remote] env.obs_space='{shape: [4]}' env.action_space='{n: 2}' [serve.bind=127.0.0.1:7001]",
        "evorl.cli.commands:serve",
    ),
    "act": Command(
        "Serve the policy of a run to simulators, games and robots that ask over the network.",
        "run=<run>|latest|policy=<file> [bind=127.0.0.1:7001] [web=127.0.0.1:7003]",
        "evorl.export.act_command:act_from_arguments",
        "evorl.export.act_command:OPTIONS",
    ),
    "serve-parameters": Command(
        "Keep the parameters of a training that workers in other processes learn for.",
        "[agent=a2c] [env=cartpole] [parameters.mode=averaging] [parameters.bind=127.0.0.1:7000] [resume=<run>|latest]",
        "evorl.cli.commands:serve_parameters",
    ),
    "work": Command(
        "Learn for a parameter server, which says what.",
        "<address> [worker=0] [token=env:NAME] [serve.bind=127.0.0.1:7001]",
        "evorl.cli.parameter_serving:work_from_arguments",
        "evorl.cli.parameter_serving:OPTIONS",
    ),
    "evaluate": Command(
        "Play episodes with the best checkpoint of a run.",
        "run=<run>|latest [eval_episodes=10] [seed=0]",
        "evorl.cli.commands:evaluate",
    ),
    "save-replay": Command(
        "Write the replay buffer of a run as a file.", "run=<run>|latest", "evorl.cli.commands:save_replay"
    ),
    "render": Command(
        "Watch the best policy of a run: play episodes and draw them.",
        "run=<run>|latest [episodes=3] [format=webp|gif|png|mp4|html]",
        "evorl.cli.watching:render_from_arguments",
        "evorl.cli.watching:OPTIONS",
    ),
    "show-episode": Command(
        "Draw an episode that an evaluation saved.",
        "episode=<file> | run=<run>|latest",
        "evorl.cli.showing:show_episode_from_arguments",
        "evorl.cli.showing:OPTIONS",
    ),
    "runs": Command(
        "List runs: how far they came, which can be resumed.",
        "[<folder>] [sort=return] [algorithm=ppo] [env=cartpole] [state=finished]",
        "evorl.cli.listing:list_runs",
        "evorl.cli.listing:OPTIONS",
    ),
    "watch": Command(
        "Show runs on a live page, and take metrics from clients.",
        "[<run>|latest|<folder> ...] [port=7002] [bind=127.0.0.1] [token=new] [open=true]",
        "evorl.cli.live_watching:watch_runs",
        "evorl.cli.live_watching:OPTIONS",
    ),
    "report": Command(
        "Write a page on a run, or one that compares many.",
        "<run>|latest|<folder> ... [by=agent] [to=report.html] [csv=table.csv]",
        "evorl.cli.reporting:write_report",
        "evorl.cli.reporting:OPTIONS",
    ),
    "export": Command(
        "Write the policy of a run as a file that runs without evorl, and check it.",
        "run=<run>|latest format=onnx|jax|numpy|html",
        "evorl.export.export_command:export_from_arguments",
        "evorl.export.export_command:OPTIONS",
    ),
    "play": Command(
        "Play episodes of a Gymnasium environment with the policy of a run, as an animation or on the screen.",
        "run=<run>|latest [env=gymnasium/<id>]",
        "evorl.export.play_command:play_from_arguments",
        "evorl.export.play_command:OPTIONS",
    ),
    "check-env": Command(
        "Look for faults in an environment of yours, and step it a few times.",
        "<module>:<function> [steps=200] [arguments={...}]",
        "evorl.cli.env_checking:check_env_from_arguments",
        "evorl.cli.env_checking:OPTIONS",
    ),
    "check-client": Command(
        "Check a client of the RLX protocol by scripted conversations, or print the protocol's test vectors.",
        "[command='node client.js {address}'] [bind=127.0.0.1:7001] [only=answer-*] | vectors [to=vectors.json]",
        "evorl.cli.client_check:check_client_from_arguments",
        "evorl.cli.client_check:OPTIONS",
    ),
    "new": Command(
        "Make the folder of an app: a simulator in plain Python and one file of settings.",
        "<folder> [algorithm=<name>] [env=bandit|gymnasium|gymnasium/<id>|vizdoom|deepmind-lab|empty]",
        "evorl.cli.app_commands:new_from_arguments",
        "evorl.cli.app_commands:NEW_OPTIONS",
    ),
    "generate": Command(
        "Write a part of an app anew: its simulator, an algorithm of its own, files for containers.",
        "[algorithm=<name>] [env=<simulator>] [docker=true]",
        "evorl.cli.app_commands:generate_from_arguments",
        "evorl.cli.app_commands:GENERATE_OPTIONS",
    ),
    "config": Command(
        "Tell which algorithms and simulators an app can have, or fill their settings in.",
        "[algorithm=<name>|<experiment>] [env=<simulator>] [list=true]",
        "evorl.cli.app_commands:config_from_arguments",
        "evorl.cli.app_commands:CONFIG_OPTIONS",
    ),
    "run": Command(
        "Run an app: its training server, its simulators, its live page, until the simulators have ended.",
        "[all|server|environment|metrics|parameters] [-n 4] [--exploit] [--show-ui] [setting=value ...]",
        "evorl.cli.app_running:run_from_arguments",
        "evorl.cli.app_running:OPTIONS",
    ),
}

_OPTIONS_OF_A_TRAINING = (
    "The options are the settings of a training: evorl train agent=... env=... --cfg job shows them all."
)


def main() -> None:
    """Run ``evorl <command> ...``; without a command, or with ``--help``, list the commands."""
    from evorl.cli.composition import config_folder
    from evorl.cli.errors import errors_in_words, print_any_character
    from evorl.cli.signals import signals_in_words

    print_any_character()
    with signals_in_words(), errors_in_words(config_folder()):
        run(sys.argv[1:])


def run(arguments: Sequence[str]) -> Any:
    """Run the command named by the first argument with the remaining arguments, and return its result.

    Raises:
        ValueError: the command does not exist.
    """
    from evorl.config.gate import scope
    from evorl.config.names import load, no_such

    if any(flag in arguments for flag in ("-sc", "--shell-completion")):
        load("evorl.cli.completion:complete_from_arguments")(arguments)
        return None
    name, *rest = arguments or ["--help"]
    if name in ("--help", "-h", "help"):
        print(overview(), end="")
        return None
    if name in ("--version", "-V"):
        print(f"evorl {installed_version()}")
        return None
    if name not in COMMANDS:
        raise ValueError(f"{no_such('command', name, COMMANDS)} evorl --help says what they do.")
    command = COMMANDS[name]
    if any(flag in ("--help", "-h") for flag in rest):
        print(help_of(name), end="")
        return None
    with scope():
        return load(command.runs)(rest)


def overview() -> str:
    """Return the list of all commands with their descriptions."""
    width = max(map(len, COMMANDS))
    lines = "".join(f"  {name:{width}s}  {command.does}\n" for name, command in COMMANDS.items())
    more = "evorl <command> --help says more, evorl --version which this is."
    completion = 'Tab completion: eval "$(evorl -sc install=bash)", the same for zsh; evorl -sc install=fish | source'
    return f"Usage: evorl <command> ...\n\n{lines}\n{more}\n{completion}\n"


def help_of(name: str) -> str:
    """Return the usage and the options of a command."""
    command = COMMANDS[name]
    lines = f"Usage: evorl {name} {command.usage}\n\n{command.does}\n"
    if command.options is None:
        return f"{lines}\n{_settings_in_words() if name == 'train' else _changes_in_words()}\n"
    return f"{lines}\n{options_in_words(options_of(command))}"


def _settings_in_words() -> str:
    """Describe the choices of a training, and how to list its settings."""
    from evorl.cli.composition import config_folder
    from evorl.cli.errors import config_names

    chosen = {group: ", ".join(config_names(config_folder() / group)) for group in ("agent", "env")}
    names = "\n\n".join(
        textwrap.fill(f"{group}: {told}", 100, break_on_hyphens=False) for group, told in chosen.items()
    )
    more = "Other environments by their library: env=gymnasium/<id>, env=envpool/<id>, env=playground/<name> ..."
    sweep = "A sweep: evorl train -m agent=ppo,sac seed=0,1,2"
    return f"{names}\n{more}\n\n{_OPTIONS_OF_A_TRAINING}\n{sweep}"


def _changes_in_words() -> str:
    """Describe the settings of a run that an evaluation can change."""
    from evorl.cli.evaluating import evaluation_settings

    told = textwrap.fill(", ".join(evaluation_settings()), 100, break_on_hyphens=False)
    return f"Of the run's settings these can be given anew:\n{told}"


def options_of(command: Command) -> Mapping[str, Option]:
    """Return the options of a command; an empty mapping if it accepts the settings of a training."""
    from evorl.config.names import load

    return load(command.options) if command.options else {}


def train(arguments: list[str]) -> None:
    """Run ``evorl train``, like ``scripts/train.py``."""
    from evorl.cli import main

    _as_command_line(arguments)
    main.train()


def serve(arguments: list[str]) -> None:
    """Run ``evorl serve``: train with remote simulators; with ``run=``, serve a policy as ``evorl act`` does.

    Raises:
        ValueError: the environment, or the run to resume, does not use remote simulators.
    """
    values = _values_of(arguments)
    if "run" in values:
        run(["act", *arguments])
    elif values.get("resume", "null") not in ("", "null"):
        from evorl.cli.remote_training import refuse_local_run

        refuse_local_run(values["resume"], values.get("runs_folder", "runs"))
        train(arguments)
    elif "env" in values:
        train(["serve={}", *arguments])  # the training then rejects environments other than ``remote``
    else:
        train(["env=remote", *arguments])


def serve_parameters(arguments: list[str]) -> None:
    """Run ``evorl serve-parameters``: a training with workers; a resumed run reads ``parameters`` from its config."""
    from evorl.cli.parameter_serving import refuse_ordinary_run

    values = _values_of(arguments)
    if values.get("resume"):
        refuse_ordinary_run(values["resume"], values.get("runs_folder", "runs"))
    train(arguments if {"resume", "parameters"} & values.keys() else ["parameters=server", *arguments])


def _values_of(arguments: Sequence[str]) -> dict[str, str]:
    """Return the text of each ``name=value`` argument, by name."""
    from evorl.cli.override_text import given_text

    return {argument.partition("=")[0]: given_text(argument) for argument in arguments}


def evaluate(arguments: list[str]) -> None:
    """Run ``evorl evaluate``, like ``scripts/evaluate.py``."""
    from evorl.cli import main

    _as_command_line(arguments)
    main.evaluate()


def save_replay(arguments: list[str]) -> None:
    """Run ``evorl save-replay``, like ``scripts/save_replay.py``."""
    from evorl.cli import saving

    _as_command_line(arguments)
    saving.save_replay()


def _as_command_line(arguments: list[str]) -> None:
    sys.argv[1:] = arguments

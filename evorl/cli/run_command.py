"""Commands that take the settings of a run: of a stored one, or composed by Hydra."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import DictConfig

from evorl.cli.arguments import check_overrides, overrides_first
from evorl.cli.composition import compose_config
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import explained_errors, print_any_character
from evorl.cli.hydra_folders import refuse_other_names
from evorl.cli.hydra_job import job_overrides, with_hydra
from evorl.cli.override_text import given_text
from evorl.cli.overrides import names_a_run, stored_run_settings
from evorl.cli.settings import commented_yaml
from evorl.config.command_lines import as_arguments
from evorl.config.gate import scope
from evorl.config.values import plain
from evorl.execution.multiprocess import leaving_together
from evorl.execution.runtime import collect_garbage_seldom
from evorl.execution.signals import handled_signals
from evorl.runs.spec import RunSpec

Handled = Callable[[Sequence[str]], bool]


def run_command(
    task: Any, arguments: Sequence[str], names_run: str, command: str, handled: Handled = lambda _: False
) -> None:
    """Run ``task(spec, overrides)`` with the settings of the command line.

    Args:
        task: function of the command.
        arguments: arguments of the command.
        names_run: setting that names a stored run; if it is given, ``spec`` has no other settings.
        command: name of the ``evorl`` subcommand.
        handled: called first; if it returns True, it has executed the command and ``task`` is not called.
    """
    # With this variable Hydra passes exceptions unchanged to ``explained_errors``.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    print_any_character()
    collect_garbage_seldom()
    sys.argv[1:] = arguments = overrides_first(list(arguments))
    with leaving_together(), handled_signals(), explained_errors(config_folder()), scope():
        _refuse_the_other(arguments, names_run, command)
        refuse_other_names(arguments, names_a_run(arguments, names_run))
        if handled(arguments):
            return
        if names_a_run(arguments, names_run):
            task(RunSpec(stored=stored_run_settings(arguments)), arguments)
            return

        if _is_asked_for_config(arguments):
            _print_config([argument for argument in arguments if not argument.startswith("-") and "=" in argument])
            return

        def job(config: DictConfig) -> Any:
            with explained_errors(config_folder()):  # inside the job, before Hydra adds its own lines
                check_overrides(*job_overrides())
                return task(RunSpec.from_config(config))

        with_hydra(arguments, job)


def _refuse_the_other(arguments: Sequence[str], names_run: str, command: str) -> None:
    """Raise ``ValueError`` if a run is named by the setting of another command, which would be ignored."""
    other = "run" if names_run == "resume" else "resume"
    if names_a_run(arguments, other):
        folder = next(given_text(argument) for argument in arguments if argument.startswith(f"{other}="))
        resume, evaluate = (as_arguments({name: folder}) for name in ("resume", "run"))
        meant = f"evorl train {resume} resumes a run, evorl evaluate {evaluate} plays its best checkpoint"
        raise ValueError(f"evorl {command} does not accept {as_arguments({other: folder})}: {meant}.")


def _is_asked_for_config(arguments: Sequence[str]) -> bool:
    """Return True if ``--cfg job`` is the only flag; with others Hydra prints the config, without comments."""
    flags = [argument for argument in arguments if argument.startswith("-") or "=" not in argument]
    return flags in (["--cfg", "job"], ["-c", "job"])


def _print_config(overrides: Sequence[str]) -> None:
    """Print the composed config with a comment for each setting."""
    print(commented_yaml(plain(compose_config(overrides)), config_folder()), end="")

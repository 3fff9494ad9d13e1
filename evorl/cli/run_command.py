"""Runs a command with the settings of a run, which are stored in a run folder or composed by Hydra."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from omegaconf import DictConfig

from evorl.cli.arguments import (
    SWEEP_FLAGS,
    argument_text,
    as_hydra_overrides,
    check_overrides,
    names_a_run,
    overrides_first,
    own_folders,
    refuse_unknown_flags,
)
from evorl.cli.composition import compose_config, compose_lock, evorl_hydra
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import explained_errors, print_any_character
from evorl.cli.overrides import stored_run_settings
from evorl.cli.run_names import composed_by, hydra_settings, refuse_other_names
from evorl.cli.settings import commented_yaml
from evorl.config.command_lines import as_arguments
from evorl.config.gate import scope
from evorl.config.values import plain
from evorl.execution.multiprocess import leaving_together
from evorl.execution.runtime import reduce_gc_frequency
from evorl.execution.signals import handled_signals
from evorl.runs.spec import RunSpec

Handled = Callable[[Sequence[str]], bool]


def run_command(
    task: Any, arguments: Sequence[str], names_run: str, command: str, handled: Handled = lambda _: False
) -> None:
    """Run a command with the settings of its command line, or print them (``--cfg job``); exit after expected errors.

    Args:
        task: function of the command: ``task(spec)``, or ``task(spec, arguments)`` if a stored run is named.
        arguments: arguments of the command.
        names_run: setting that names a stored run, ``run`` or ``resume``. If it is set, ``spec`` has only ``stored``.
        command: name of the ``evorl`` subcommand, for messages.
        handled: called first with the arguments; if it returns True, it has executed the whole command.
    """
    # With this variable Hydra passes exceptions unchanged to ``explained_errors``.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    print_any_character()
    reduce_gc_frequency()
    with leaving_together(), handled_signals(), explained_errors(config_folder()), scope():
        refuse_unknown_flags(arguments)
        sys.argv[1:] = arguments = overrides_first(list(arguments))
        is_stored, other = names_a_run(arguments, names_run), "run" if names_run == "resume" else "resume"
        if names_a_run(arguments, other):
            _refuse_the_other(arguments, other, command)
        if any(argument.lstrip("+~").startswith(("hydra.", "hydra/")) for argument in arguments):
            refuse_other_names(arguments, is_stored)
        if handled(arguments):
            return
        if is_stored:
            task(RunSpec(stored=stored_run_settings(arguments)), arguments)
            return
        overrides = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments))
        if overrides != arguments and _check_flags(overrides, arguments[len(overrides) :]):
            return

        def job(config: DictConfig) -> Any:
            with explained_errors(config_folder()):  # inside the job, before Hydra adds its own lines
                check_overrides(*job_overrides())
                return task(RunSpec.from_config(config))

        with_hydra(arguments, job)


def _check_flags(overrides: Sequence[str], flags: Sequence[str]) -> bool:
    """Check the overrides of a command line with flags; for ``--cfg job``, print the config and return True."""
    if not {*flags} & {*SWEEP_FLAGS} and not any(override.startswith("hydra.searchpath") for override in overrides):
        check_overrides(overrides, [config_folder(), *filter(Path.is_dir, own_folders(flags))])
    if flags not in (["--cfg", "job"], ["-c", "job"]):  # with other flags, Hydra prints the config without comments
        return False
    print(commented_yaml(plain(compose_config(as_hydra_overrides(overrides))), config_folder()), end="")
    return True


def _refuse_the_other(arguments: Sequence[str], other: str, command: str) -> None:
    """Raise ``ValueError`` for arguments that name a run by ``other``, a setting that only another command reads."""
    folder = next(argument_text(argument) for argument in arguments if argument.startswith(f"{other}="))
    resume, evaluate = (as_arguments({name: folder}) for name in ("resume", "run"))
    meant = f"evorl train {resume} resumes a run, evorl evaluate {evaluate} plays its best checkpoint"
    raise ValueError(f"evorl {command} does not accept {as_arguments({other: folder})}: {meant}.")


def with_hydra(arguments: Sequence[str], job: Callable[[DictConfig], Any]) -> None:
    """Call ``job`` with the config that Hydra composes; ``arguments`` replace the arguments in ``sys.argv``."""
    with evorl_hydra():
        sys.argv[1:] = as_hydra_overrides(arguments)
        hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)()


def compose_quietly(arguments: Sequence[str], task: Callable[[RunSpec], None]) -> None:
    """Call ``task`` with the composed settings, after Hydra's job, so that other threads may compose meanwhile.

    An error is raised without the lines that Hydra would print.
    """
    raised: list[Exception] = []
    results: list[tuple[RunSpec, Any]] = []  # stays empty if Hydra only prints, as for --cfg

    def job(config: DictConfig) -> None:
        try:
            results.append((RunSpec.from_config(config), HydraConfig.get()))
        except Exception as error:
            raised.append(error)

    with compose_lock:
        with_hydra(arguments, job)
    if raised:
        raise raised[0]
    for spec, hydra_config in results:
        with composed_by(hydra_config), env_override(hydra_config.job.env_set):
            task(spec)


def compose_checked(arguments: Sequence[str], task: Callable[[RunSpec], None]) -> None:
    """Like ``compose_quietly``, but reject overrides without an effect before ``task`` is called."""

    def checked(spec: RunSpec) -> None:
        check_overrides(*job_overrides())
        task(spec)

    compose_quietly(arguments, checked)


def job_overrides() -> tuple[list[str], list[Path]]:
    """Return the overrides of the composed config, and the folders of its config files."""
    hydra_config = hydra_settings()
    folders = [Path(source.path) for source in hydra_config.runtime.config_sources if source.schema == "file"]
    return list(hydra_config.overrides.task), folders

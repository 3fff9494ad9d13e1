"""Entry points of the command line: compose a config, build its workflow, and train or evaluate in a run folder."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evorl.cli.arguments import check_overrides, overrides_first
from evorl.cli.composition import compose_config, config_folder
from evorl.cli.errors import errors_in_words, print_any_character
from evorl.cli.evaluating import evaluate_run
from evorl.cli.hydra_folders import refuse_other_names
from evorl.cli.override_text import given_text
from evorl.cli.overrides import names_a_run, stored_run_settings
from evorl.cli.planning import FLAG, print_plan
from evorl.cli.showing import show_episode_from_arguments
from evorl.cli.signals import signals_in_words
from evorl.cli.training import train_run
from evorl.config.command_lines import as_arguments
from evorl.config.gate import distrust, scope
from evorl.config.names import load
from evorl.config.values import plain
from evorl.execution.multiprocess import leaving_together
from evorl.execution.runtime import collect_garbage_seldom
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evorl.cli.multirun import JobPlace, Trained


def train() -> None:
    """Run ``train.py``: train with the composed config; ``resume=<run folder>|latest`` continues a run."""
    run_command(train_from_spec, "resume", "train")


def evaluate() -> None:
    """Run ``evaluate.py run=<run folder>|latest``: play ``eval_episodes`` episodes with the best checkpoint."""
    run_command(evaluate_run, "run", "evaluate")


def show_episode() -> None:
    """Run ``show_episode.py episode=<file>``, or ``run=<run folder>|latest``: draw a saved episode as a GIF."""
    print_any_character()
    with signals_in_words(), errors_in_words(config_folder()):
        show_episode_from_arguments(sys.argv[1:])


def run_command(task: Any, names_run: str, command: str) -> None:
    """Run ``task(spec, overrides)`` with the settings of the command line.

    Args:
        task: function of the command.
        names_run: setting that names a stored run; if it is given, ``spec`` has no other settings.
        command: name of the ``evorl`` subcommand.
    """
    # With this variable Hydra passes exceptions unchanged to ``errors_in_words``.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    print_any_character()
    collect_garbage_seldom()
    sys.argv[1:] = arguments = overrides_first(sys.argv[1:])
    with leaving_together(), signals_in_words(), errors_in_words(config_folder()), scope():
        if any(flag in arguments for flag in ("--help", "-h")):
            print(load("evorl.cli.commands:help_of")(command), end="")
            return
        _refuse_the_other(arguments, names_run, command)
        refuse_other_names(arguments, names_a_run(arguments, names_run))
        if names_run == "resume" and FLAG in arguments:
            print_plan(arguments, _compose_checked)
            return
        if names_run == "resume" and _is_of_a_sweep(arguments):
            return
        if names_a_run(arguments, names_run):
            task(RunSpec(stored=stored_run_settings(arguments)), arguments)
            return

        if _is_asked_for_config(arguments):
            _print_config([argument for argument in arguments if not argument.startswith("-") and "=" in argument])
            return

        def job(config: DictConfig) -> Any:
            with errors_in_words(config_folder()):  # inside the job, before Hydra adds its own lines
                check_overrides(*_job_overrides())
                return task(RunSpec.from_config(config))

        _with_hydra(arguments, job)


def _with_hydra(arguments: Sequence[str], job: Callable[[DictConfig], Any]) -> None:
    """Call ``job`` with the config that Hydra composes for this command line."""
    import hydra

    sys.argv[1:] = arguments
    hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)()


def _compose_quietly(arguments: Sequence[str], task: Callable[[RunSpec], None]) -> None:
    """Call ``task`` with the composed settings, and raise its errors without the lines that Hydra would print."""
    raised: list[Exception] = []

    def job(config: DictConfig) -> None:
        try:
            task(RunSpec.from_config(config))
        except Exception as error:
            raised.append(error)

    _with_hydra(arguments, job)
    if raised:
        raise raised[0]


def _compose_checked(arguments: Sequence[str], task: Callable[[RunSpec], None]) -> None:
    """Check the overrides, then call ``task`` as ``_compose_quietly`` does."""

    def checked(spec: RunSpec) -> None:
        check_overrides(*_job_overrides())
        task(spec)

    _compose_quietly(arguments, checked)


def _is_of_a_sweep(arguments: Sequence[str]) -> bool:
    """Start or resume the sweep of a command line; return False if it is not about a sweep."""
    from evorl.cli.multirun import resume_sweep, start_sweep
    from evorl.cli.overrides import sweep_to_resume
    from evorl.cli.preparation import check_training
    from evorl.cli.sweep_jobs import is_sweep
    from evorl.runs.trust import foreign_names, refuse_foreign_code

    folder, trust = sweep_to_resume(arguments)
    if folder is None and not is_sweep(arguments):
        return False
    if folder is not None and not trust:
        distrust(f"the sweep in {folder}")

    checked: dict[str, bool] = {}

    def check(job: Sequence[str]) -> bool:
        def task(spec: RunSpec) -> None:
            but_seed = repr(dataclasses.replace(spec, seed=0, title=None))
            names_code[0] = bool(foreign_names(spec.as_config()))
            if but_seed not in checked:  # jobs that differ only in their seeds are built once
                check_training(spec)
                checked[but_seed] = True

        names_code = [False]
        _compose_checked(job, task)
        return names_code[0]

    def train(job: Sequence[str], place: JobPlace) -> Trained:
        trained: list[Trained] = []

        def task(spec: RunSpec) -> None:
            if folder is not None and not trust:
                refuse_foreign_code(spec.as_config(), folder, can_be_overridden=False)
            trained.append(train_run(spec, place=place))

        _compose_quietly(job, task)
        return trained[0]

    def resume(place: JobPlace) -> Trained:
        words = [f"trust={str(trust).lower()}"]
        stored = StoredRun(resume=str(place.root / place.name), trust=trust)
        return train_run(RunSpec(stored=stored), words, place)

    if folder is not None:
        resume_sweep(folder, train, resume, trust)
    else:
        start_sweep(arguments, check, train, StoredRun().runs_folder)
    return True


def _refuse_the_other(arguments: Sequence[str], names_run: str, command: str) -> None:
    """Raise ``ValueError`` if a run is named by the setting of another command, which would be ignored."""
    other = "run" if names_run == "resume" else "resume"
    if names_a_run(arguments, other):
        folder = next(given_text(argument) for argument in arguments if argument.startswith(f"{other}="))
        resume, evaluate = (as_arguments({name: folder}) for name in ("resume", "run"))
        meant = f"evorl train {resume} goes on with a run, evorl evaluate {evaluate} plays its best checkpoint"
        raise ValueError(f"evorl {command} takes no {as_arguments({other: folder})}: {meant}.")


def _job_overrides() -> tuple[list[str], list[Path]]:
    """Return the overrides of this job, and the config folders."""
    from hydra.core.hydra_config import HydraConfig

    hydra_config = HydraConfig.get()
    folders = [Path(source.path) for source in hydra_config.runtime.config_sources if source.schema == "file"]
    return list(hydra_config.overrides.task), folders


def _is_asked_for_config(arguments: Sequence[str]) -> bool:
    """Return True if ``--cfg job`` is the only flag; with others Hydra prints the config, without comments."""
    flags = [argument for argument in arguments if argument.startswith("-") or "=" not in argument]
    return flags in (["--cfg", "job"], ["-c", "job"])


def _print_config(overrides: Sequence[str]) -> None:
    """Print the composed config with a comment for each setting."""
    from evorl.cli.settings import commented_yaml

    print(commented_yaml(plain(compose_config(overrides)), config_folder()), end="")


def train_from_spec(spec: RunSpec, overrides: Sequence[str] = ()) -> float | None:
    """Train in a run folder.

    Args:
        spec: settings of the run; with ``resume`` all but the location of the run folder are ignored.
        overrides: changes to the config of a resumed run.

    Returns:
        The best evaluation return, which a hyperparameter search maximizes.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from evorl.cli.multirun import raise_failures

    trained = train_run(spec, overrides)
    raise_failures(trained.failures)
    if trained.stopped and HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN:
        sys.exit(0)  # otherwise a Hydra sweep would start its next job
    return trained.best_return

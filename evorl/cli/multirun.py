"""Resumable sweeps, ``evorl train -m agent=ppo,sac seed=0,1,2``: a run for each combination of the values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from evorl.cli.arguments import SWEEP, argument_text, with_literal_text
from evorl.cli.combinations import combinations, describe_parallel_runs, naming_setting, split_arguments, split_launcher
from evorl.cli.errors import failure_text
from evorl.cli.launcher import launch
from evorl.cli.run_names import named_folder
from evorl.runs.sweep_folder import SweepFolder
from evorl.sweeps.multirun import Train, launch_runs, train_runs
from evorl.training.start import RunPlace, Trained


def start_sweep(
    arguments: Sequence[str], check: Callable[[Sequence[str]], tuple[bool, str | None]], train: Train, default: str
) -> None:
    """Train a run for every combination of values that are separated by commas or given as ``range(...)``.

    The runs are trained one after another in this process, or by the Hydra launcher that the arguments choose.

    Args:
        arguments: command-line arguments.
        check: composes the config of a run, builds its workflow, and raises if it is invalid; called for all runs
            before the first one starts. Returns True if the config names code outside evorl; and the path of the run
            that provides its initial parameters, which is stored, because ``latest`` will change.
        train: trains a run.
        default: parent folder of the sweep, if the arguments do not name one.

    Raises:
        ValueError: the values of an override cannot be enumerated, or the config of a run is invalid.
        RunsFailed: a run failed; raised after the other runs, or after a stop.
    """
    of_launcher, arguments = split_launcher(arguments)
    overrides, flags = split_arguments(arguments)
    chosen, overrides = named_folder(overrides, SWEEP)
    combined, names_code = list(combinations(overrides)), False
    for run, setting in combined:
        with naming_setting(setting):
            of_run, source = check([*run, *flags])
        names_code |= of_run
        if source is not None:
            run[:] = [text for text in run if not text.lstrip("+").startswith("init_from.run=")]
            run += with_literal_text([f"init_from.run={source}"])
    if (hint := describe_parallel_runs(combined)) and not (flags or of_launcher):
        print(hint, flush=True)
    roots = [argument_text(argument) for argument in combined[0][0] if argument.startswith("runs_folder=")]
    root, name = (chosen.parent, chosen.name) if chosen else (roots[-1] if roots else default, None)
    sweep = SweepFolder.create(root, flags, combined, name, names_code)
    if of_launcher:
        launch_runs(sweep, functools.partial(launch, of_launcher=of_launcher))
    else:
        train_runs(sweep, train, failure_text)


def resume_sweep(path: Path | str, train: Train, resume: Callable[[RunPlace], Trained], trust: bool = False) -> None:
    """Resume a sweep: skip finished and diverged runs, resume runs with a checkpoint, and start all others.

    Args:
        path: folder of the sweep.
        train: trains a run from the beginning.
        resume: resumes a run that has a checkpoint.
        trust: allow stored command lines that contain more than plain ``name=value`` settings.

    Raises:
        RunFolderError: the folder does not describe a sweep, or its command lines would need ``trust``.
        RunsFailed: a run failed, now or in an earlier call; raised after all other runs, or after a stop.
    """
    train_runs(SweepFolder.open(path, trust), train, failure_text, resume, trust)

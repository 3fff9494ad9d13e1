"""``evorl train``, ``evorl serve`` and ``evorl serve-parameters``: train runs and sweeps, or print their plans."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from evorl.cli import STARTED
from evorl.cli.arguments import PLAN, argument_values, is_launched_sweep, is_sweep, names_a_run, overrides_first
from evorl.cli.multirun import resume_sweep, start_sweep
from evorl.cli.overrides import sweep_to_resume
from evorl.cli.plan import print_plan
from evorl.cli.run_command import compose_checked, compose_quietly, run_command
from evorl.cli.training import check_training, train_run
from evorl.config.gate import distrust, scope
from evorl.execution.multiprocess import train_command
from evorl.parameter_server.service import refuse_ordinary_run
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun
from evorl.runs.trust import foreign_names, refuse_foreign_code
from evorl.serving.remote_run import refuse_local_run
from evorl.sweeps.trained import raise_failures
from evorl.training.preparation import with_fixed_source
from evorl.training.start import RunPlace, Trained

EXAMPLE = ("agent=ppo", "env=cartpole", "seed=2")  # the return rises from about 10 to 500


def train(arguments: Sequence[str]) -> None:
    """Run ``evorl train``, like ``scripts/train.py``; without arguments, train ``EXAMPLE``, PPO in CartPole."""
    if not arguments:
        print(f"No settings given, running: {train_command()} {' '.join(EXAMPLE)}", flush=True)
        arguments = EXAMPLE
    run_command(train_from_spec, arguments, "resume", "train", _plans_or_sweeps)


def train_sweep(arguments: Sequence[str]) -> None:
    """Run the sweep of ``evorl train -m ...`` or ``resume=<sweep>``, and raise errors instead of printing them.

    Raises:
        ValueError: a setting is invalid, or no sweep is named. An invalid ``resume`` raises ``RunFolderError``.
        RunsFailed: a run failed, now or in an earlier call; raised after all other runs, or after a stop.
    """
    with scope():
        if not _plans_or_sweeps(overrides_first(list(arguments))):
            raise ValueError(f"{' '.join(arguments)} is not a sweep: give a setting several values, or resume=<sweep>.")


def serve(arguments: Sequence[str]) -> None:
    """Run ``evorl serve`` without ``run=``: train with remote simulators.

    Raises:
        ValueError: the run to resume has no remote simulators. (For an invalid ``env``, ``train`` exits with status 1.)
    """
    values = argument_values(arguments)
    if names_a_run(arguments, "resume"):
        refuse_local_run(values["resume"], values.get("runs_folder", "runs"))
        train(arguments)
    elif "env" in values:
        train(["serve={}", *arguments])  # the training then rejects environments other than ``remote``
    else:
        train(["env=remote", *arguments])


def serve_parameters(arguments: Sequence[str]) -> None:
    """Run ``evorl serve-parameters``: train with ``parameters=server`` unless ``parameters`` or ``resume`` is set."""
    values = argument_values(arguments)
    if resumes := names_a_run(arguments, "resume"):
        refuse_ordinary_run(values["resume"], values.get("runs_folder", "runs"))
    train(arguments if resumes or "parameters" in values else ["parameters=server", *arguments])


def _plans_or_sweeps(arguments: Sequence[str]) -> bool:
    """Print the plan of a command line, or run its sweep; return False if it requests neither."""
    if PLAN in arguments:
        print_plan(arguments, compose_checked)
        return True
    folder, trust = sweep_to_resume(arguments) if names_a_run(arguments, "resume") else (None, False)
    if folder is None and not is_sweep(arguments) and not is_launched_sweep(arguments):
        return False
    _run_sweep(arguments, folder, trust)
    return True


def _run_sweep(arguments: Sequence[str], folder: Path | None, trust: bool) -> None:
    """Start the sweep of a command line, or resume the sweep in ``folder``."""
    if folder is not None and not trust:
        distrust(f"the sweep in {folder}")

    checked: dict[str, bool] = {}

    def check(overrides: Sequence[str]) -> tuple[bool, str | None]:
        def task(spec: RunSpec) -> None:
            spec = with_fixed_source(spec)
            but_seed = repr(dataclasses.replace(spec, seed=0, title=None))
            result[:] = [(bool(foreign_names(spec.as_config())), spec.init_from.run)]
            if but_seed not in checked:  # runs that differ only in their seeds are built once
                check_training(spec)
                checked[but_seed] = True

        result: list[tuple[bool, str | None]] = []
        compose_checked(overrides, task)
        return result[0]

    def train_overrides(overrides: Sequence[str], place: RunPlace) -> Trained:
        trained: list[Trained] = []

        def task(spec: RunSpec) -> None:
            if folder is not None and not trust:
                refuse_foreign_code(spec.as_config(), folder, can_be_overridden=False)
            trained.append(train_run(spec, place=place))

        compose_quietly(overrides, task)
        return trained[0]

    def resume_run(place: RunPlace) -> Trained:
        overrides = [f"trust={str(trust).lower()}"]
        stored = StoredRun(resume=str(place.root / str(place.name)), trust=trust)
        return train_run(RunSpec(stored=stored), overrides, place)

    if folder is not None:
        resume_sweep(folder, train_overrides, resume_run, trust)
    else:
        start_sweep(arguments, check, train_overrides, StoredRun().runs_folder)


def train_from_spec(spec: RunSpec, overrides: Sequence[str] = ()) -> float | None:
    """Train a run, sweep or search; raise ``RunsFailed`` for failed runs, and exit after a stop in a Hydra sweep.

    Args:
        spec: settings of the run; with ``resume`` only ``spec.stored`` is used, the rest comes from the run folder.
        overrides: overrides that change the config of a resumed run.

    Returns:
        The best evaluation return, for Hydra sweepers, which maximize it; ``None`` without evaluations.
    """
    trained = train_run(spec, overrides, began=STARTED)
    raise_failures(trained.failures)
    if trained.stopped and HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN:
        sys.exit(0)  # otherwise a Hydra sweep would start its next job
    return trained.best_return

"""``--plan``: prints the memory that a training run, sweep or search would need, and the files that it would write."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evorl.cli.arguments import PLAN, RUN, SWEEP, SWEEP_FLAGS, is_sweep, names_a_run
from evorl.cli.combinations import combinations, naming_setting, split_arguments
from evorl.cli.run_names import named_folder
from evorl.config.command_lines import describe_setting
from evorl.execution.first_update import weak_spots
from evorl.execution.memory import MEMORY_SHARE, shown_bytes
from evorl.execution.preflight import Preflight, preflight
from evorl.ops.terminal_text import counted
from evorl.parameter_server.service import settle_parameters
from evorl.runs.folder import trial_name
from evorl.runs.spec import RunKind, RunSpec
from evorl.sweeps.search import check_search
from evorl.sweeps.sweep import sweep_groups
from evorl.sweeps.sweep_run import SweepRun
from evorl.training.preparation import prepare_training

Compose = Callable[[Sequence[str], Callable[[RunSpec], None]], None]


class _Planned(NamedTuple):
    """The plan of one program.

    Attributes:
        heading: first line; empty for no heading.
        plan: memory and sizes of the program.
        remarks: warnings about settings that may be mistakes.
    """

    heading: str
    plan: Preflight
    remarks: tuple[str, ...] = ()


def print_plan(arguments: Sequence[str], compose: Compose) -> None:
    """Print the memory and files that the training, sweep or search of a command line would need.

    Args:
        arguments: command-line arguments, including ``PLAN``.
        compose: ``compose(arguments, task)`` calls ``task`` with the composed settings of a command line.

    Raises:
        ValueError: the settings are invalid, need too much memory, or name a run to resume or a Hydra sweeper.
    """
    arguments = [argument for argument in arguments if argument != PLAN]
    if names_a_run(arguments, "resume"):
        raise ValueError(f"{PLAN} applies to new runs: remove resume.")
    if is_sweep(arguments):
        _print_runs(arguments, compose)
        return
    _refuse_launchers(arguments)
    folder, arguments = named_folder(arguments, RUN)

    def task(spec: RunSpec) -> None:
        _refuse_too_large(_print_planned(spec, folder))

    compose(arguments, task)


def _refuse_launchers(arguments: Sequence[str]) -> None:
    """Raise ``ValueError`` for a sweep that evorl does not run itself, see ``is_sweep``."""
    for argument in arguments:
        if argument in SWEEP_FLAGS or argument == "hydra.mode=MULTIRUN":
            others = " ".join(other for other in arguments if other.startswith(("hydra/", "hydra.")))
            raise ValueError(
                f"{PLAN} supports sweeps only in one process, and without Hydra sweepers, launchers and flags: plan "
                f"a single run, without {argument}{f', or remove {others}' if others else ''}."
            )


def _print_runs(arguments: Sequence[str], compose: Compose) -> None:
    """Print the plan of every run of a sweep (``-m``); runs that differ only in their seeds are planned once."""
    overrides, flags = split_arguments(arguments)
    folder, overrides = named_folder(overrides, SWEEP)
    runs = list(combinations(overrides))
    first_alike: dict[str, int] = {}
    too_large: list[str] = []

    for number, (run, setting) in enumerate(runs, start=1):

        def task(spec: RunSpec, number: int = number, described: str = describe_setting(setting)) -> None:
            nonlocal folder
            folder = folder or Path(spec.stored.runs_folder) / "sweep_..."
            heading = f"[{number} of {len(runs)}] {described}"
            but_seed = repr(dataclasses.replace(spec, seed=0, title=None))
            if but_seed in first_alike:
                print(f"{heading}: as [{first_alike[but_seed]} of {len(runs)}]")
                return
            first_alike[but_seed] = number
            print(heading)
            too_large.extend(_print_planned(spec, folder / "...", described))

        with naming_setting(setting):
            compose([*run, *flags], task)
    print(f"all           {counted(len(runs), 'run')} one after another, in {folder}/")
    _refuse_too_large(too_large)


def _print_planned(spec: RunSpec, folder: Path | None, described: str = "") -> list[str]:
    """Print the plans of a config's programs and the files of the run; return the names of programs that do not fit.

    Args:
        spec: settings of the run.
        folder: run folder; ``None`` if the command line does not name it.
        described: name in the returned list of a program without a heading; by default "This run".
    """
    too_large = []
    largest: Preflight | None = None
    for heading, plan, remarks in _planned(spec):
        for line in filter(None, (heading, *plan.lines(), *remarks)):
            print(line)
        if not plan.fits:
            too_large.append(heading or described or "This run")
        largest = plan if largest is None or plan.state_bytes > largest.state_bytes else largest
    if largest is not None:
        print(_describe_files(spec, largest, folder))
    return too_large


def _planned(spec: RunSpec) -> Iterator[_Planned]:
    """Yield the plan of each program that a config describes."""
    if spec.kind is RunKind.SWEEP:
        yield from _planned_sweep(spec)
    elif spec.kind is RunKind.SEARCH:
        yield _planned_search(spec)
    else:
        yield _planned_run(spec)


def _planned_run(spec: RunSpec) -> _Planned:
    if spec.parameters is not None:
        spec = settle_parameters(spec, in_sweep=False)
    workflow = prepare_training(spec, None).workflow
    try:
        return _Planned("", preflight(workflow), tuple(weak_spots(workflow)))
    finally:
        workflow.close()


def _planned_sweep(spec: RunSpec) -> Iterator[_Planned]:
    """Yield the plan of each program of ``sweep=``; fewer settings are planned at a time if not all fit in memory."""
    sweep, settings, groups = sweep_groups(spec)
    run = SweepRun(Path(), sweep, groups, spec.num_seeds, spec.seed, spec.devices, print)
    described = f"{counted(len(settings), 'setting')} of {', '.join(sweep.over)}"
    for number, group in enumerate(groups, start=1):
        members = len(group.members)
        side_by_side = min(members, sweep.at_once or members) if group.workflow.timesteps_per_iteration else 1
        plan = preflight(run.rows(group, range(side_by_side)))
        while not plan.fits and side_by_side > 1:
            side_by_side = math.ceil(side_by_side / 2)
            plan = preflight(run.rows(group, range(side_by_side)))
        rows = counted(members, "setting")
        rows += f" with {spec.num_seeds} seeds each" if spec.num_seeds > 1 else ""
        rows += f", {side_by_side} at a time" if side_by_side < members else ", in parallel" * (members > 1)
        yield _Planned(f"{described}, program {number} of {len(groups)}: {rows}", plan)


def _planned_search(spec: RunSpec) -> _Planned:
    """Return the plan with the largest peak memory among the settings of ``search=`` built before the first trial."""
    plans: list[_Planned] = []
    search = check_search(spec, lambda changed: plans.append(_planned_run(changed)))
    largest = max(plans, key=lambda planned: planned.plan.peak_bytes)
    described = f"{counted(search.trials, 'trial')} over {', '.join(search.over)}, one after another; the largest of "
    return largest._replace(heading=f"{described}{counted(len(plans), 'setting')} that were built")


def _refuse_too_large(names: Sequence[str]) -> None:
    """Raise ``ValueError`` if there are ``names``, the programs that exceed ``MEMORY_SHARE`` of the memory."""
    if names:
        raise ValueError(
            f"{'; '.join(names)} would take more than {MEMORY_SHARE:.0%} of the memory: choose smaller numbers "
            "of environments, steps per rollout, members or transitions."
        )


def _describe_files(spec: RunSpec, plan: Preflight, folder: Path | None) -> str:
    """Return a line with the files of a run in ``folder`` (or a new one), and the size of a checkpoint of ``plan``."""
    path = f"{folder or Path(spec.stored.runs_folder) / '...'}/"
    size = shown_bytes(sum(plan.entries.values()) * plan.num_devices)
    num_checkpoints = spec.checkpoints.checkpoints_kept + spec.checkpoints.best_checkpoints_kept
    checkpoints = f"checkpoints/ ({num_checkpoints} of up to {size} each)"
    if spec.kind is RunKind.SWEEP:
        names = "config.yaml, sweep.csv, evaluations.csv, learning_curves.png, run.log"
        return f"files         {path}: {names}, round_0/ (a checkpoint of up to {size} for each part), best/"
    names = ["config.yaml", "metrics.csv", "metrics.jsonl", "run.log"]
    names += ["learning_curve.png"] if spec.recorders.learning_curve else []
    names += ["tensorboard/"] if spec.recorders.tensorboard else []
    records = spec.evaluation
    names += ["episodes/"] if records and records.save_episodes else []
    names += ["plots/"] if records and records.plot_episodes else []
    of_run = f"{', '.join(names)}, {checkpoints}"
    if spec.kind is RunKind.SEARCH:
        return f"files         {path}: config.yaml, search.csv, study.log, {trial_name(0)}/ ...: {of_run}"
    return f"files         {path}: {of_run}"

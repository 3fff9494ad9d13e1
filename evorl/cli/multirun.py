"""Resumable sweeps, ``evorl train -m agent=ppo,sac seed=0,1,2``: one run after another, in one folder."""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from evorl.cli.composition import config_folder
from evorl.cli.errors import config_error_in_words, is_of_config
from evorl.cli.hydra_folders import sweep_folder
from evorl.cli.override_text import given_text
from evorl.cli.signals import stop_on_signals
from evorl.cli.sweep_jobs import combinations, naming_setting, side_by_side_in_words, split_arguments
from evorl.config.command_lines import as_arguments
from evorl.config.custom_parts import describe_user_error
from evorl.execution.multiprocess import train_command
from evorl.ops.terminal_text import counted

if TYPE_CHECKING:
    from evorl.runs.sweep_folder import SweepFolder, SweepJob

_SHOWN = 10  # maximum number of settings in the final ranking


class Trained(NamedTuple):
    """Result of a training.

    Attributes:
        best_return: best evaluation return; ``None`` without evaluations.
        stopped: True if the training was stopped before its end.
        folder: folder of the results; ``None`` without results.
        failures: one sentence for each failed run of a sweep or search.
    """

    best_return: float | None
    stopped: bool
    folder: Path | None = None
    failures: tuple[str, ...] = ()


class RunsFailed(ValueError):
    """Some runs of a sweep or search failed; all others are trained."""


def raise_failures(failures: Sequence[str]) -> None:
    """Raise ``RunsFailed`` if there are any failures, so that the command's exit status is not 0."""
    if failures:
        runs = counted(len(failures), "run")
        raise RunsFailed("\n  ".join([f"{runs} failed, all others were trained:", *failures]))


class JobPlace(NamedTuple):
    """Location of a job's run in its sweep.

    Attributes:
        root: folder of the sweep.
        name: name of the run's folder.
        way_on: command line that resumes the sweep.
        should_stop: returns True once the sweep was asked to stop, for instance during compilation.
    """

    root: Path
    name: str
    way_on: str
    should_stop: Callable[[], bool]


Train = Callable[[Sequence[str], JobPlace], Trained]


def start_sweep(arguments: Sequence[str], check: Callable[[Sequence[str]], bool], train: Train, usual: str) -> None:
    """Run every combination of the values separated by commas, or given as ``range(...)``.

    Args:
        arguments: command-line arguments.
        check: composes the config of a job, builds its workflow, and raises if it is invalid; called for all jobs
            before the first one starts. Returns True if the config names code outside evorl.
        train: trains a job.
        usual: default folder of all runs.

    Raises:
        ValueError: an override has no enumerable values, or a job cannot be trained.
        RunsFailed: a job failed; all others were trained.
    """
    from evorl.runs.sweep_folder import SweepFolder

    overrides, flags = split_arguments(arguments)
    own, overrides = sweep_folder(overrides)
    jobs = list(combinations(overrides))
    names_code = [_checked(check, job, flags, setting) for job, setting in jobs]
    if (hint := side_by_side_in_words(jobs)) and not flags:
        print(hint, flush=True)
    roots = [given_text(argument) for argument in jobs[0][0] if argument.startswith("runs_folder=")]
    root, name = (own.parent, own.name) if own else (roots[-1] if roots else usual, None)
    _run_jobs(SweepFolder.create(root, flags, jobs, name), train, trust=any(names_code))


def _checked(
    check: Callable[[Sequence[str]], bool], job: Sequence[str], flags: Sequence[str], setting: Mapping[str, str]
) -> bool:
    """Check a job; prefix errors with its setting."""
    with naming_setting(setting):
        return check([*job, *flags])


def resume_sweep(path: Path | str, train: Train, resume: Callable[[JobPlace], Trained], trust: bool = False) -> None:
    """Resume a sweep: skip finished and diverged jobs, resume stopped ones and start all others.

    Args:
        path: folder of the sweep.
        train: trains a job from the beginning.
        resume: resumes the run of a job that has a checkpoint.
        trust: allow stored command lines with more than plain settings.

    Raises:
        RunFolderError: the folder does not describe a sweep, or its command lines are not plain.
        RunsFailed: a job failed, now or before; all others were trained.
    """
    from evorl.runs.sweep_folder import SweepFolder

    _run_jobs(SweepFolder.open(path, trust), train, resume, trust)


def _run_jobs(
    sweep: SweepFolder, train: Train, resume: Callable[[JobPlace], Trained] | None = None, trust: bool = False
) -> None:
    settings = {"resume": str(sweep.path), **({"trust": "true"} if trust else {})}
    way_on = f"{train_command()} {as_arguments(settings)}"
    with stop_on_signals(way_on) as should_stop:
        for number, job in enumerate(sweep.jobs, start=1):
            if job.state == "finished":
                continue
            if should_stop():
                break
            heading = f"[{number} of {len(sweep.jobs)}] {job.describe() or job.folder}"
            if job.state == "diverged":  # with the same seed it would diverge again
                print(f"{heading}: passed over, it diverged before.", flush=True)
                continue
            print(heading, flush=True)
            resumes = resume is not None and sweep.run_of(job).saved_at is not None
            if not resumes:
                job.folder = _free_name(sweep.path, job.folder)
            place = JobPlace(sweep.path, job.folder, way_on, should_stop)
            stopped = _run_job(
                sweep,
                job,
                lambda place=place, job=job, resumes=resumes: (
                    resume(place) if resumes and resume else train([*job.overrides, *sweep.flags], place)
                ),
            )
            if stopped:
                break
    _tell(sweep, way_on)
    failed = [job for job in sweep.jobs if job.has_failed]
    raise_failures([f"{job.describe() or job.folder}: {job.failure}" for job in failed])


def _run_job(sweep: SweepFolder, job: SweepJob, run: Callable[[], Trained]) -> bool:
    """Run a job and store its result or error; return True if the job was stopped."""
    from evorl.execution.session import TrainingDiverged

    job.state, job.failure = "running", ""
    sweep.save()
    try:
        trained = run()
    except Exception as error:  # fails only this job: the others are trained
        job.failure = failure_text(error)
        print(f"Failed: {job.failure}", flush=True)
        _take_down(sweep, job, "diverged" if isinstance(error, TrainingDiverged) else "failed", None)
        return False
    except BaseException:
        _take_down(sweep, job, "stopped", None)
        raise
    _take_down(sweep, job, "stopped" if trained.stopped else "finished", trained.best_return)
    return trained.stopped


def failure_text(error: Exception) -> str:
    """Return the reason of a failed run in one line; print the traceback of an unexpected error."""
    if is_of_config(error):
        return config_error_in_words(error, config_folder())
    if text := describe_user_error(error):
        return text
    if not isinstance(error, ValueError | ArithmeticError | OSError | ImportError):
        traceback.print_exception(error)
    return " ".join(str(error).split()) or type(error).__name__


def _free_name(root: Path, name: str) -> str:
    """Return the name, with a numeric suffix if a run without a checkpoint uses it."""
    names = (name if number == 1 else f"{name}_{number}" for number in itertools.count(1))
    return next(name for name in names if not (root / name).exists())


def _take_down(sweep: SweepFolder, job: SweepJob, state: str, best: float | None) -> None:
    """Store the result of a job."""
    from evorl.recorders.learning_curve import read_curves
    from evorl.recorders.run_status import EVALUATION

    metrics = sweep.run_of(job).metrics_csv
    curves = read_curves(metrics) if metrics.is_file() else {}
    returns = curves.get(EVALUATION, ([], []))[1]
    job.state, job.best_return = state, best if best is None or math.isfinite(best) else None
    job.last_return = returns[-1] if returns else None
    job.timesteps = int(max((steps[-1] for steps, _ in curves.values()), default=0))
    sweep.save()


def ranked(jobs: Sequence[SweepJob]) -> list[tuple[str, list[SweepJob]]]:
    """Group jobs by all settings except seed and environment, sorted by mean best evaluation return, best first."""
    settings: dict[str, list[SweepJob]] = {}
    for job in jobs:
        settings.setdefault(job.describe(without=("seed", "env")) or "all", []).append(job)
    return sorted(settings.items(), key=lambda setting: -_score(setting[1])[0])


def _score(jobs: Sequence[SweepJob]) -> tuple[float, float, int]:
    """Return mean, standard deviation and count of the jobs' best evaluation returns, ignoring missing ones."""
    returns = [job.best_return for job in jobs if job.best_return is not None]
    if not returns:
        return -math.inf, 0.0, 0
    mean = sum(returns) / len(returns)
    return mean, math.sqrt(sum((x - mean) ** 2 for x in returns) / len(returns)), len(returns)


def _tell(sweep: SweepFolder, way_on: str) -> None:
    """Plot the learning curves and print the best settings, separately for each environment."""
    from evorl.recorders.learning_curve import read_curves
    from evorl.recorders.run_status import EVALUATION
    from evorl.recorders.screen import print_line
    from evorl.recorders.sweep_curves import draw_sweep

    panels, lines = {}, []
    for env in dict.fromkeys(job.setting.get("env") for job in sweep.jobs):
        ranking = ranked([job for job in sweep.jobs if job.setting.get("env") == env])
        tables = {
            name: [sweep.run_of(job).metrics_csv for job in jobs if sweep.run_of(job).metrics_csv.is_file()]
            for name, jobs in ranking
        }
        curves = {name: [read_curves(path).get(EVALUATION) for path in paths] for name, paths in tables.items()}
        panels[f"env={env}" if env else sweep.path.name] = {name: [c for c in of if c] for name, of in curves.items()}
        lines += _ranking_in_words(ranking, env)
    drawn = [sweep.learning_curves.name] if draw_sweep(sweep.learning_curves, panels) else []
    states = ("finished", "stopped", "failed", "diverged")
    counts = {state: sum(job.state == state for job in sweep.jobs) for state in states}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    for line in lines:
        print_line(line)
    print(f"Sweep of {len(sweep.jobs)} runs ({told}): {sweep.path}, {', '.join([sweep.summary.name, *drawn])}")
    if any(job.state not in ("finished", "diverged") for job in sweep.jobs):
        print(f"To go on with the sweep: {way_on}")


def _ranking_in_words(ranking: Sequence[tuple[str, Sequence[SweepJob]]], env: str | None) -> Iterator[str]:
    """Yield one line for each of the best settings."""
    known = [(name, *_score(jobs)) for name, jobs in ranking if _score(jobs)[2]]
    if not known:
        return
    where = f" in env={env}" if env else ""
    name, mean, std, runs = known[0]
    told = f"{mean:,.1f}" + (f" ± {std:,.1f} over {runs} runs" if runs > 1 else "")
    if len(ranking) == 1:
        yield f"Best evaluation return{where}: {told}"
        return
    yield f"Best{where}: {name}, with a best evaluation return of {told}"
    for name, mean, std, runs in known[1:_SHOWN]:
        yield f"  {name}: {mean:,.1f}" + (f" ± {std:,.1f}" if runs > 1 else "")

"""Trains, resumes or skips the runs of a sweep, in turn or with a Hydra launcher, and stores their results."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from evorl.execution.multiprocess import train_command
from evorl.execution.signals import resume_advice, stop_on_signals
from evorl.recorders.learning_curve import read_curves
from evorl.recorders.run_status import EVALUATION
from evorl.recorders.screen import print_line
from evorl.recorders.sweep_curves import draw_sweep
from evorl.runs.best_run import find_run
from evorl.runs.files import RunFolderError
from evorl.runs.folder import WITH_PARTS
from evorl.runs.sweep_folder import SweepFolder, SweptRun
from evorl.sweeps.trained import Attempt, FailureText, attempt, raise_failures
from evorl.training.start import RunPlace, Trained

_SHOWN = 10  # maximum number of settings in the final ranking

Train = Callable[[Sequence[str], RunPlace], Trained]


def train_runs(
    sweep: SweepFolder,
    train: Train,
    failure_text: FailureText,
    resume: Callable[[RunPlace], Trained] | None = None,
    trust: bool = False,
) -> None:
    """Train the runs of a sweep that are not finished and have not diverged; print and plot the results of all.

    Args:
        sweep: folder of the sweep.
        train: trains a run from the beginning, given the arguments of its command line.
        failure_text: formats an exception that ended a run as one line.
        resume: resumes a run that has a checkpoint; ``None`` for a new sweep.
        trust: for a sweep to resume, see ``SweepFolder.open``.

    Raises:
        RunFolderError: another process trains the sweep.
        RunsFailed: a run failed, now or in an earlier call; raised after all other runs, or after a stop.
    """
    resume_command = _resume_command(sweep)
    with sweep.locked(), stop_on_signals(lambda: resume_advice(resume_command)) as should_stop:
        if resume is not None:  # another process may have changed the sweep before this one locked it
            sweep = SweepFolder.open(sweep.path, trust)
        for number, swept in enumerate(sweep.runs, start=1):
            if swept.state == "finished":
                continue
            if should_stop():
                break
            heading = f"[{number} of {len(sweep.runs)}] {swept.describe() or swept.folder}"
            if swept.state == "diverged":  # with the same seed it would diverge again
                print(f"{heading}: skipped, because it diverged before.", flush=True)
                continue
            print(heading, flush=True)
            resumes = resume is not None and sweep.folder_of(swept).saved_at(WITH_PARTS) is not None
            if not resumes:
                swept.folder = _free_name(sweep.path, swept.folder)
            place = RunPlace(sweep.path, swept.folder, resume_command, should_stop)
            run = resume if resumes and resume else functools.partial(train, [*swept.overrides, *sweep.flags])
            if _train_run(sweep, swept, functools.partial(run, place), failure_text):
                break
    _report(sweep)


def launch_runs(sweep: SweepFolder, launch: Callable[[SweepFolder], Sequence[Attempt]]) -> None:
    """Train all runs of a new sweep in other processes; print and plot the results.

    Args:
        sweep: folder of the sweep.
        launch: trains the runs and returns the outcome of each.

    Raises:
        RunFolderError: another process trains the sweep, or the disk is full.
        RunsFailed: a run failed; raised after all runs.
    """
    resume_command = _resume_command(sweep)
    with sweep.locked():
        for swept in sweep.runs:
            swept.state = "running"
        sweep.save()
        try:
            with stop_on_signals(lambda: resume_advice(resume_command)):
                outcomes = launch(sweep)
        except BaseException:  # a lost process, for example: nothing is known about the runs
            for swept in sweep.runs:
                _store_result(sweep, swept, "stopped", None)
            print_line(f"The launcher failed. To resume: {resume_command}")
            raise
        for swept, tried in zip(sweep.runs, outcomes, strict=True):
            _store_outcome(sweep, swept, tried)
    for tried in outcomes:
        if tried.trained and tried.failure:
            raise RunFolderError(f"{tried.failure} To resume: {resume_command}")
    _report(sweep)


def _resume_command(sweep: SweepFolder) -> str:
    return f"{train_command()} {sweep.resume_arguments}"


def _report(sweep: SweepFolder) -> None:
    _print_results(sweep)
    failed = [swept for swept in sweep.runs if swept.has_failed]
    raise_failures([f"{swept.describe() or swept.folder}: {swept.failure}" for swept in failed])


def _train_run(sweep: SweepFolder, swept: SweptRun, run: Callable[[], Trained], failure_text: FailureText) -> bool:
    """Train a run and store its result or error; return True if it was stopped."""
    swept.state, swept.failure = "running", ""
    sweep.save()
    try:
        tried = attempt(run, failure_text)
    except BaseException:
        _store_result(sweep, swept, "stopped", None)
        raise
    return _store_outcome(sweep, swept, tried)


def _store_outcome(sweep: SweepFolder, swept: SweptRun, tried: Attempt) -> bool:
    """Store the result or error of a run; return True if it was stopped."""
    if tried.trained is None:
        swept.failure = tried.failure
        _store_result(sweep, swept, "diverged" if tried.diverged else "failed", None)
        return False
    trained, swept.failure = tried.trained, " ".join(tried.trained.failures)
    _store_result(sweep, swept, "stopped" if trained.stopped else "finished", trained.best_return)
    return trained.stopped


def _free_name(root: Path, name: str) -> str:
    names = (name if number == 1 else f"{name}_{number}" for number in itertools.count(1))
    return next(name for name in names if not (root / name).exists())


def _store_result(sweep: SweepFolder, swept: SweptRun, state: str, best: float | None) -> None:
    """Store state and best return of a run, and the last return and step of its metrics."""
    metrics = _metrics_of(sweep, swept)
    curves = read_curves(metrics) if metrics.is_file() else {}
    returns = curves.get(EVALUATION, ([], []))[1]
    swept.state, swept.best_return = state, best if best is None or math.isfinite(best) else None
    swept.last_return = returns[-1] if returns else None
    swept.timesteps = int(max((steps[-1] for steps, _ in curves.values()), default=0))
    sweep.save()


def _metrics_of(sweep: SweepFolder, swept: SweptRun) -> Path:
    """Return the path of the metrics of a run; if it is itself a sweep or search, of its best run, if there is one."""
    folder = sweep.folder_of(swept)
    with contextlib.suppress(RunFolderError):
        folder = find_run(folder.path, sweep.path)
    return folder.metrics_csv


def ranked(runs: Sequence[SweptRun]) -> list[tuple[str, list[SweptRun]]]:
    """Group runs by all settings except seed and environment, sorted by mean best evaluation return, best first."""
    settings: dict[str, list[SweptRun]] = {}
    for swept in runs:
        settings.setdefault(swept.describe(without=("seed", "env")) or "all", []).append(swept)
    return sorted(settings.items(), key=lambda setting: -_score(setting[1])[0])


def _score(runs: Sequence[SweptRun]) -> tuple[float, float, int]:
    """Return mean, standard deviation and count of the runs' best evaluation returns, ignoring missing ones."""
    returns = [swept.best_return for swept in runs if swept.best_return is not None]
    if not returns:
        return -math.inf, 0.0, 0
    mean = sum(returns) / len(returns)
    return mean, math.sqrt(sum((x - mean) ** 2 for x in returns) / len(returns)), len(returns)


def _print_results(sweep: SweepFolder) -> None:
    panels, lines = {}, []
    for env in dict.fromkeys(swept.setting.get("env") for swept in sweep.runs):
        ranking = ranked([swept for swept in sweep.runs if swept.setting.get("env") == env])
        tables = {
            name: [path for swept in runs if (path := _metrics_of(sweep, swept)).is_file()] for name, runs in ranking
        }
        curves = {name: [read_curves(path).get(EVALUATION) for path in paths] for name, paths in tables.items()}
        panels[f"env={env}" if env else sweep.path.name] = {name: [c for c in of if c] for name, of in curves.items()}
        lines += _describe_ranking(ranking, env)
    drawn = [sweep.learning_curves.name] if draw_sweep(sweep.learning_curves, panels) else []
    states = ("finished", "stopped", "failed", "diverged")
    counts = {state: sum(swept.state == state for swept in sweep.runs) for state in states}
    described = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    for line in lines:
        print_line(line)
    print(f"Sweep of {len(sweep.runs)} runs ({described}): {sweep.path}, {', '.join([sweep.summary.name, *drawn])}")
    if any(swept.state not in ("finished", "diverged") for swept in sweep.runs):
        print(f"To resume the sweep: {_resume_command(sweep)}")


def _describe_ranking(ranking: Sequence[tuple[str, Sequence[SweptRun]]], env: str | None) -> Iterator[str]:
    known = [(name, *_score(runs)) for name, runs in ranking if _score(runs)[2]]
    if not known:
        return
    where = f" in env={env}" if env else ""
    name, mean, std, runs = known[0]
    described = f"{mean:,.1f}" + (f" ± {std:,.1f} over {runs} runs" if runs > 1 else "")
    if len(ranking) == 1:
        yield f"Best evaluation return{where}: {described}"
        return
    yield f"Best{where}: {name}, with a best evaluation return of {described}"
    for name, mean, std, runs in known[1:_SHOWN]:
        yield f"  {name}: {mean:,.1f}" + (f" ± {std:,.1f}" if runs > 1 else "")

"""``search=``: Optuna search with one ordinary run per trial, so trials do not have to share a compiled program."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evorl.config.command_lines import describe_setting
from evorl.config.gate import is_restricted
from evorl.execution.multiprocess import refuse_several_processes
from evorl.execution.signals import resume_advice, stop_on_signals
from evorl.recorders.row_file import RowFile, as_line
from evorl.runs.folder import RunFolder, trial_name
from evorl.runs.run_state import HeldState, read_state
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun
from evorl.sweeps.optuna_study import OptunaStudy, Pruner, Trial
from evorl.sweeps.search_settings import PRUNERS, SearchSettings
from evorl.sweeps.sweep import refuse_invalid_paths, spec_of, whole_run
from evorl.sweeps.trained import FailureText, attempt
from evorl.training.preparation import check_build, with_fixed_source
from evorl.training.start import RunPlace, RunStart, Trained

_COMBINATIONS = 16  # number of combinations built before a value is rejected
_COMPARISONS = 100  # maximum number of steps at which the median pruner compares a trial
# position in a range, from 0 to 1, of the inner value that is checked; irrational, so that the value is not an integer
_INNER = math.sqrt(2) - 1


def search_settings(
    spec: RunSpec, start: RunStart, train: Callable[[RunSpec, RunPlace], Trained], failure_text: FailureText
) -> Trained:
    """Run ``spec.search.trials`` trials, or the remaining ones of a resumed search.

    Args:
        spec: settings that all trials share.
        start: folder and resume command of the search.
        train: trains a run; settings with ``resume`` continue a run.
        failure_text: formats an exception that ended a trial as one line.

    Returns:
        ``Trained`` with the best return, ``None`` if no trial has finished, and a sentence for each failed trial.

    Raises:
        ValueError: a setting is invalid.
        RunFolderError: another process runs the search, its journal is corrupted, or its folder cannot be written.
        ImportError: Optuna is not installed.
    """
    refuse_several_processes("search")
    spec = with_fixed_source(spec)
    settings = check_search(spec, check_build)
    over, num_trials = settings.over, settings.trials
    folder = start.folder(spec)
    with HeldState(folder.state):
        start.record_resume(spec)
        study = OptunaStudy(folder.path / "study.log", over, spec.seed, _make_pruner(settings, spec))
        command = start.resume_command(folder, spec)
        _write(folder.search_table, study, over)
        with stop_on_signals(lambda: resume_advice(command)) as should_stop:
            while len(ended := _ended(study)) < num_trials and not should_stop():
                trial = study.next_trial()
                print(f"[{len(ended) + 1} of {num_trials}] {describe_setting(trial.setting)}", flush=True)
                run, name = _run_of(trial, folder)
                judge = _Judge(study, trial, run)
                place = RunPlace(folder.path, name, command, should_stop, judge.evaluated)
                tried = attempt(functools.partial(_train_trial, trial, spec, run, place, train), failure_text)
                trained = tried.trained or Trained(None, False)
                if trained.stopped:
                    break
                if judge.pruned and tried.trained:
                    study.prune(trial)
                else:
                    study.end(trial, trained.best_return, tried.failure)
                _write(folder.search_table, study, over)
    return _report(study, folder, num_trials, command)


class _Judge:
    """Reports the evaluations of a trial to its study, which may end the trial.

    Attributes:
        pruned: True if the study ended the trial at the most recent evaluation.
    """

    def __init__(self, study: OptunaStudy, trial: Trial, run: RunFolder) -> None:
        self._study, self._trial, self._run = study, trial, run
        self.pruned = False

    def evaluated(self, timesteps: int, score: float) -> str | None:
        """Return the reason to end the trial after an evaluation; ``None`` to continue, or if it is complete."""
        total = read_state(self._run.state, self._run.log).total_timesteps or math.inf
        self.pruned = self._study.report(self._trial, timesteps, score) and timesteps < total
        return "search.pruner ends this trial, which is worse than other trials at this step" if self.pruned else None


def _make_pruner(settings: SearchSettings, spec: RunSpec) -> Pruner | None:
    if settings.pruner == PRUNERS[0]:
        return None
    interval, total = (int(spec.workflow[name]) for name in ("eval_interval", "total_timesteps"))
    if settings.pruner == "median":
        interval = max(interval, total // _COMPARISONS)
    return Pruner(settings.pruner, max(interval, 1), total)


def check_search(spec: RunSpec, check: Callable[[RunSpec], None]) -> SearchSettings:
    """Return the settings of a search, after ``check`` has built a workflow for each value, or three of each range.

    A value is rejected if none of the first ``_COMBINATIONS`` combinations with the other values can be trained. The
    ends of ranges that were written as integers become floats, unless the setting accepts integers only.

    Raises:
        ValueError: a path cannot vary, a value cannot be trained, ``search`` is invalid, or evaluations are disabled.
    """
    settings = SearchSettings.of_run(spec)
    over = dict(settings.over)
    refuse_invalid_paths(over, spec)
    values: dict[str, list[Any]] = {
        path: [x["low"], x["high"], x["low"] + _INNER * (x["high"] - x["low"])] if isinstance(x, Mapping) else list(x)
        for path, x in over.items()
    }
    checked: dict[str, set[int]] = {path: set() for path in over}

    def error_of(path: str, number: int) -> ValueError | None:
        error, others = None, [other for other in over if other != path]
        combinations = itertools.product(*(range(len(values[other])) for other in others))
        for chosen in itertools.islice(combinations, 0 if number in checked[path] else _COMBINATIONS):
            indices = dict(zip(others, chosen, strict=True)) | {path: number}
            try:
                check(_with(spec, {name: values[name][index] for name, index in indices.items()}))
            except ValueError as raised:
                error = error or raised
                continue
            for name, index in indices.items():
                checked[name].add(index)
            return None
        return error

    for path, of_path in values.items():
        for number in range(len(of_path)):
            error, bounds, advice = error_of(path, number), over[path], ""
            if isinstance(bounds, Mapping) and number == 2:  # the inner value, which is not an integer
                advice = " A range samples all values between its ends: list the valid ones instead."
                if isinstance(bounds["low"], int) and error is None:
                    over[path] = {**bounds, "low": float(bounds["low"]), "high": float(bounds["high"])}
                elif isinstance(bounds["low"], int):
                    of_path[2] = int(of_path[2])
                    error = error_of(path, 2)
            if error is not None:
                raise ValueError(f"search.over.{path}: {of_path[number]} is not valid: {error}{advice}") from error
    return dataclasses.replace(settings, over=over)


def _run_of(trial: Trial, folder: RunFolder) -> tuple[RunFolder, str]:
    """Return the run that a trial resumes or starts, and the name of its folder.

    A killed process may leave a folder without a checkpoint. That folder is kept, and the trial restarts in a new one.
    """
    name = trial_name(trial.number)
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    existing = list(itertools.takewhile(lambda taken: (folder.path / taken).exists(), names))
    run = RunFolder(folder.path / (existing[-1] if existing else name))
    if existing and run.saved_at() is None and trial.state == "running":
        run = RunFolder(folder.path / f"{name}_{len(existing) + 1}")
    return run, run.path.name


def _train_trial(
    trial: Trial, spec: RunSpec, run: RunFolder, place: RunPlace, train: Callable[[RunSpec, RunPlace], Trained]
) -> Trained:
    """Train the run of a trial, or resume it if it has a checkpoint."""
    if run.saved_at() is None:
        return train(_with(spec, trial.setting), place)
    trust = not is_restricted()  # the same trust as for the search itself
    stored = StoredRun(resume=str(run.path), runs_folder=str(run.path.parent), trust=trust)
    return train(RunSpec(stored=stored), place)


def _with(spec: RunSpec, setting: Mapping[str, Any]) -> RunSpec:
    return spec_of(spec, setting, title=None, **whole_run(spec))


def _ended(study: OptunaStudy) -> list[Trial]:
    return [trial for trial in study.trials if trial.state != "running"]


def _write(path: Path, study: OptunaStudy, over: Mapping[str, Any]) -> None:
    rows: list[list[Any]] = [["trial", *over, "best_return", "state", "failure"]]
    for trial in _ended(study):
        value = "" if trial.value is None else trial.value
        rows.append([trial.number, *(trial.setting[key] for key in over), value, trial.state, trial.failure])
    RowFile(path).replace(as_line(map(str, row)) for row in rows)


def _report(study: OptunaStudy, folder: RunFolder, num_trials: int, resume_command: str) -> Trained:
    pairs = [(trial.value, trial) for trial in _ended(study) if trial.value is not None and trial.state == "finished"]
    best = max(pairs, key=lambda pair: pair[0], default=None)
    if best is not None:
        value, trial = best
        described = f"{describe_setting(trial.setting)}, with a best return of {value:,.1f}"
        num_pruned = sum(trial.state == "pruned" for trial in _ended(study))
        pruned = f" ({num_pruned} pruned)" if num_pruned else ""
        print(f"Best of {len(_ended(study))} settings{pruned}: {described}.")
        print(f"Its run folder is {_run_of(trial, folder)[0].path}; {folder.path / 'search.csv'} lists all settings.")
    stopped = len(_ended(study)) < num_trials
    if stopped:
        print(f"To resume: {resume_command}", flush=True)
    failures = tuple(
        f"{describe_setting(trial.setting)}: {trial.failure}" for trial in _ended(study) if trial.state == "failed"
    )
    return Trained(best[0] if best else None, stopped, folder.path, failures)

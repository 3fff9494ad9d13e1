"""``search=``: settings by Optuna, one ordinary run after another, for what cannot share a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from evorl.cli.sweeping import in_words, of_setting, refuse_what_is_no_setting
from evorl.config.gate import is_restricted

if TYPE_CHECKING:
    from pathlib import Path

    from omegaconf import DictConfig

    from evorl.cli.multirun import JobPlace, Trained
    from evorl.runs.folder import RunFolder
    from evorl.sweeps.optuna_study import OptunaStudy, Trial

_OPTIONS = ("over", "trials")


def search_from_config(
    config: DictConfig,
    find_folder: Callable[[], RunFolder],
    resume_command: Callable[[RunFolder], str],
    train: Callable[[DictConfig, JobPlace], Trained],
) -> Trained:
    """Try ``config.search.trials`` settings, or go on with those that are left.

    Args:
        config: composed; every setting changes it.
        find_folder: of the search; called once it is known that its settings can be.
        resume_command: that goes on with it.
        train: trains a run; a config with ``resume`` is one to go on with.

    Raises:
        ValueError: a setting cannot be, in words.
        ImportError: Optuna is not installed.
    """
    from evorl.cli.multirun import JobPlace, Trained
    from evorl.cli.signals import stop_on_signals
    from evorl.execution.learning import TrainingDiverged
    from evorl.runs.folder import RunFolder
    from evorl.sweeps.optuna_study import OptunaStudy

    over, num_trials = _read(config)
    refuse_what_is_no_setting(over, config)
    folder = find_folder()
    study = OptunaStudy(folder.path / "study.log", over, config.seed)
    way_on = resume_command(folder)
    _write(folder.search_table, study, over)
    with stop_on_signals(way_on) as should_stop:
        while len(_ended(study)) < num_trials and not should_stop():
            trial = study.next_trial()
            print(f"[{trial.number + 1} of {num_trials}] {in_words(trial.setting)}", flush=True)
            place = JobPlace(folder.path, _name(trial), way_on, should_stop)
            try:
                trained = train(_config_of(trial, config, RunFolder(folder.path / _name(trial))), place)
            except TrainingDiverged as error:  # as a step size may be too large
                print(f"Failed: {error}", flush=True)
                trained = Trained(None, False)
            if trained.stopped:
                break
            study.end(trial, trained.best_return)
            _write(folder.search_table, study, over)
    return _told(study, folder, num_trials, way_on)


def _read(config: DictConfig) -> tuple[dict[str, Any], int]:
    """What is varied, and how many settings are tried."""
    from evorl.config.nodes import plain
    from evorl.config.values import check_names, checked_mapping, positive
    from evorl.sweeps.sweep_settings import what_is_varied

    search = checked_mapping(plain(config)["search"], "search")
    check_names(search, _OPTIONS, "key of search")
    if "trials" not in search:
        raise ValueError("search.trials is missing: how many settings are tried, as in search.trials=30.")
    return what_is_varied(search.get("over"), "search"), positive(search["trials"], "search.trials")


def _config_of(trial: Trial, config: DictConfig, run: RunFolder) -> DictConfig:
    """The config of a trial's run, or one that goes on with it where it has a checkpoint."""
    from omegaconf import OmegaConf

    if run.saved_at is not None:
        return OmegaConf.create(
            {
                "resume": str(run.path),
                "run": None,
                "runs_folder": str(run.path.parent),
                "trust": not is_restricted(),  # as the search itself
            }
        )
    shared = {name: config.get(name) for name in ("num_seeds", "devices", "evaluation", "actors")}
    return of_setting(config, trial.setting, title=None, **shared)


def _ended(study: OptunaStudy) -> list[Trial]:
    return [trial for trial in study.trials if trial.state != "running"]


def _name(trial: Trial) -> str:
    return f"trial_{trial.number:04d}"


def _write(path: Path, study: OptunaStudy, over: Mapping[str, Any]) -> None:
    """A line for each trial that has ended."""
    from evorl.recorders.csv_recorder import as_line
    from evorl.recorders.row_file import RowFile

    rows = [
        [trial.number, *(trial.setting[path] for path in over), "" if trial.value is None else trial.value, trial.state]
        for trial in _ended(study)
    ]
    RowFile(path).replace(as_line(map(str, row)) for row in [["trial", *over, "best_return", "state"], *rows])


def _told(study: OptunaStudy, folder: RunFolder, num_trials: int, way_on: str) -> Trained:
    """Say what came of it."""
    from evorl.cli.multirun import Trained

    found = [(trial.value, trial) for trial in _ended(study) if trial.value is not None]
    best = max(found, key=lambda pair: pair[0], default=None)
    if best is not None:
        value, trial = best
        print(f"Best of {len(_ended(study))} settings: {in_words(trial.setting)}, with a best return of {value:,.1f}.")
        print(f"It is the run {folder.path / _name(trial)}; all are in {folder.path / 'search.csv'}.")
    stopped = len(_ended(study)) < num_trials
    if stopped:
        print(f"To go on: {way_on}", flush=True)
    return Trained(best[0] if best else None, stopped, folder.path)

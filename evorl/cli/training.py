"""Trains a run in its folder, with recorders, checkpoints, error messages and resumption."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig

from evorl.agents.flat_images import describe_flat_images
from evorl.cli import STARTED
from evorl.cli.choices import choices, origin_of_settings, title_of
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import failure_text
from evorl.cli.hydra_folders import place_of_run
from evorl.cli.init_from import begin_with, refuse_with_resume
from evorl.cli.overrides import changed_spec, own_recorders
from evorl.cli.preparation import check_build, prepare_training
from evorl.config.command_lines import as_arguments
from evorl.config.gate import scope
from evorl.execution.first_update import weak_spots
from evorl.execution.multiprocess import ProcessLost, describe_lost_process, train_command
from evorl.execution.plan import describe_devices
from evorl.execution.restoration import restore
from evorl.execution.session import RunSession, TrainingDiverged
from evorl.execution.signals import stop_on_signals
from evorl.ops.processes import is_first
from evorl.parameter_server.service import settle_parameters
from evorl.recorders import LogRecorder, make_recorder
from evorl.recorders.episode_records import episode_recorders
from evorl.runs.about import add_start, describe_start
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Recorder
from evorl.runs.rescue import FolderMissing, RescuingCheckpointer, WatchedFolder
from evorl.runs.run_state import RECORDED_IN, RESULTS_IN, RESUME_WITH_CHANGE, refuse_running
from evorl.runs.spec import RunKind, RunSpec
from evorl.runs.trust import foreign_names
from evorl.serving.remote_run import connect_training_server
from evorl.sweeps.search import search_settings
from evorl.sweeps.sweep import sweep_settings
from evorl.sweeps.trained import RunPlace, Trained
from evorl.workflows.workflow import Workflow


@scope()
def train_run(spec: RunSpec, overrides: Sequence[str] = (), place: RunPlace | None = None) -> Trained:
    """Train in a run folder.

    Args:
        spec: settings of the run; with ``resume`` all but the location of the run folder are ignored.
        overrides: changes to the config of a resumed run.
        place: location within a sweep; ``None`` for a separate run.
    """
    started = time.perf_counter() if place else STARTED
    spec, resumed = _resumed(spec, overrides)
    spec = settle_parameters(spec, place is not None)
    if spec.kind in (RunKind.SWEEP, RunKind.SEARCH):
        return _compare(spec, resumed, overrides)
    spec, workflow, served, beginning = prepare_training(spec, resumed)
    spec = dataclasses.replace(spec, title=title_of(spec, choices()))
    root, name = (place.root, place.name) if place else place_of_run(spec.stored.runs_folder)
    folder = resumed or RunFolder.create(root, spec.as_config(), name)
    command = place.resume_command if place else resume_command(folder, spec)
    watched = WatchedFolder(folder)
    checkpointer = _checkpointer(watched, spec)
    state = progress = None
    if resumed and not served:
        state, progress = restore(workflow, checkpointer, spec.seed, "latest")
    if resumed:
        resumed.update_config(spec.as_config())  # a later resume uses the changed config
    _note_start(folder, overrides)
    recorder = _recorder(folder, workflow, spec)
    closes = (functools.partial(_close_recorder, recorder, watched), workflow.close, watched.close)
    with stop_on_signals(command) as should_stop, _noticing_removal(watched):
        stops = functools.partial(_any_stops, should_stop, place, watched)
        with RunSession(recorder, checkpointer, progress, stops, closes) as session:
            for notice in _notices(folder, workflow, recorder, checkpointer, progress):
                recorder.message(notice)
            if beginning:
                state = begin_with(beginning, spec.seed, recorder)
            connect_training_server(workflow, folder, stops)
            with _failures_explained(folder, checkpointer, spec):
                if served:
                    served.serve(recorder, checkpointer, stops)
                else:
                    workflow.learn(state, key=spec.seed, session=session, eval_at_start=spec.eval_at_start)
            watched.refuse_missing()
            stopped = session.should_stop()
            end = f"{RESULTS_IN}{folder.path} ({time.perf_counter() - started:.0f} s in all)"
            if stopped and not place:
                end += f"\nTo resume: {command}"
            recorder.message(end)
    if not spec.recorders.progress and is_first():
        print(end, flush=True)
    return Trained(checkpointer.best_score, stopped, folder.path)


def _checkpointer(watched: WatchedFolder, spec: RunSpec) -> RescuingCheckpointer:
    def command(rescued: RunFolder) -> str:
        return resume_command(rescued, spec)

    folder, chosen = watched.folder, spec.checkpoints
    return RescuingCheckpointer(
        watched,
        spec.as_config(),
        command,
        chosen.checkpoints_kept,
        (folder.metrics_csv, folder.metrics_jsonl),
        best_to_keep=chosen.best_checkpoints_kept,
        score_over=chosen.best_over,
        seconds=chosen.checkpoint_seconds,
    )


def _recorder(folder: RunFolder, workflow: Workflow, spec: RunSpec) -> Recorder:
    recorders, wandb = spec.recorders, None
    if recorders.wandb is not False:
        wandb = {"config": spec.as_config(), **(recorders.wandb if isinstance(recorders.wandb, Mapping) else {})}
    return make_recorder(
        folder,
        title=spec.title or "",
        progress=recorders.progress,
        tensorboard=recorders.tensorboard,
        learning_curve=recorders.learning_curve,
        wandb=wandb,
        others=(*episode_recorders(folder, workflow, spec), *(own.call(folder.path) for own in own_recorders(spec))),
    )


def _notices(
    folder: RunFolder,
    workflow: Workflow,
    recorder: Recorder,
    checkpointer: RunCheckpointer,
    progress: dict[str, Any] | None,
) -> Iterable[str]:
    """Return the messages before the first iteration; truncate the records of a resumed run to its checkpoint."""
    if progress:
        recorder.resume_at(progress["iterations"])
        return _describe_resumed(folder, checkpointer, progress)
    return filter(None, (origin_of_settings(choices()), _flat_images(workflow), *weak_spots(workflow)))


def _any_stops(should_stop: Callable[[], bool], place: RunPlace | None, watched: WatchedFolder) -> bool:
    return should_stop() or bool(place and place.should_stop()) or watched.is_missing


def _resumed(spec: RunSpec, overrides: Sequence[str]) -> tuple[RunSpec, RunFolder | None]:
    """Return the changed settings and the folder of the run to resume; ``spec`` and ``None`` for a new run."""
    stored = spec.stored
    if not stored.resume:
        return spec, None
    resumed = RunFolder.find(stored.resume, stored.runs_folder)
    resumed.refuse_links()
    refuse_running(resumed.state)
    refuse_with_resume(overrides)
    return changed_spec(resumed, stored.trust, overrides)[0], resumed


def _describe_resumed(folder: RunFolder, checkpointer: RunCheckpointer, progress: Mapping[str, Any]) -> list[str]:
    """Return the messages at the start of a resumed run."""
    resumed = f"Resuming {folder.path} at {progress['timesteps']:,} steps."
    return [*checkpointer.notices, *checkpointer.differing_records(progress["iterations"]), resumed]


def _flat_images(workflow: Workflow) -> str | None:
    return describe_flat_images(getattr(workflow, "agent", None), workflow.env.obs_space)


def _compare(spec: RunSpec, resumed: RunFolder | None, overrides: Sequence[str]) -> Trained:
    """Train many settings instead of one, in parallel (``sweep=``) or sequentially (``search=``)."""

    def find_folder() -> RunFolder:
        root, name = place_of_run(spec.stored.runs_folder, spec.kind.value)
        folder = resumed or RunFolder.create(root, spec.as_config(), name)
        _note_start(folder, overrides)
        return folder

    def command_of(folder: RunFolder) -> str:
        return resume_command(folder, spec)

    if spec.kind is RunKind.SWEEP:
        return sweep_settings(spec, title_of(spec, choices()), find_folder, command_of)

    def train(changed: RunSpec, place: RunPlace) -> Trained:
        return train_run(changed, (), place)

    return search_settings(spec, find_folder, command_of, check_build, train, failure_text)


@contextmanager
def _noticing_removal(watched: WatchedFolder) -> Iterator[None]:
    """Replace an ``OSError`` raised within the context by ``FolderMissing`` if the run folder was removed."""
    try:
        yield
    except OSError as error:
        if watched.is_missing and not isinstance(error, FolderMissing):
            raise watched.error() from error
        raise


def _close_recorder(recorder: Recorder, watched: WatchedFolder) -> None:
    try:
        recorder.close()
    except OSError:
        if not watched.is_missing:  # if the folder was removed, another error is already raised
            raise


@contextmanager
def _failures_explained(folder: RunFolder, checkpointer: RunCheckpointer, spec: RunSpec) -> Iterator[None]:
    """Add the resume command to errors about divergence and lost processes; a divergence is also logged."""
    try:
        yield
    except TrainingDiverged as error:
        advice = f"{RECORDED_IN}{folder.path}."
        if checkpointer.steps:
            advice = f"{RESUME_WITH_CHANGE}{resume_command(folder, spec)}"
        log = LogRecorder(folder.log)
        log.message(f"{error} {advice}")
        log.close()
        raise TrainingDiverged(f"{error} {advice}") from error
    except Exception as error:
        kept = " Its checkpoints are kept. To resume:" if checkpointer.steps else " To start again:"
        text = describe_lost_process(error, f"{kept} {resume_command(folder, spec)}")
        if text is None:
            raise
        raise ProcessLost(text) from error


def resume_command(folder: RunFolder, spec: RunSpec) -> str:
    """Return the command that resumes a run, with the names of code that have to be repeated on the command line."""
    names = as_arguments({"resume": str(folder.path), **foreign_names(spec.as_config())})
    return f"{train_command()} {names}"


def _note_start(folder: RunFolder, overrides: Sequence[str]) -> None:
    """Record the command that started the training; for a run of a sweep, with its settings."""
    if not is_first():
        return
    names = {}
    if HydraConfig.initialized() and not overrides:
        names = {name: str(choices().get(name, default)) for name, default in (("agent", "run"), ("env", "env"))}
        overrides = list(HydraConfig.get().overrides.task)
    start = describe_start(train_command(), overrides, describe_devices(), config_folder().parent)
    add_start(folder.about, names | start)

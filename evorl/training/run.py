"""Trains a run in its folder, with recorders, checkpoints, error messages and resumption."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

from evorl.agents.flat_images import describe_flat_images
from evorl.config.custom_parts import CustomPart
from evorl.config.gate import admit
from evorl.execution.compile_times import CompileTimes
from evorl.execution.early_stop import EarlyStop
from evorl.execution.first_changes import first_changes
from evorl.execution.first_update import weak_spots
from evorl.execution.multiprocess import ProcessLost, describe_lost_process
from evorl.execution.restoration import restore
from evorl.execution.session import RunSession, TrainingDiverged
from evorl.execution.signals import resume_advice, stop_on_signals
from evorl.ops.processes import is_first
from evorl.recorders import LogRecorder, make_recorder
from evorl.recorders.episode_records import episode_recorders
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Recorder
from evorl.runs.rescue import FolderMissing, RescuingCheckpointer, WatchedFolder
from evorl.runs.run_state import RECORDED_IN, RESULTS_IN, RESUME_WITH_CHANGE
from evorl.runs.spec import RunKind, RunSpec, learning_settings
from evorl.serving.remote_run import connect_training_server
from evorl.training.preparation import own_recorders, prepare_training
from evorl.training.start import RunStart, Trained, resume_command
from evorl.workflows.workflow import Workflow


def train(spec: RunSpec, start: RunStart) -> Trained:
    """Train a single run, new or from its last checkpoint, in its folder, and return the result.

    Raises:
        ValueError: the settings are inconsistent, too large for the memory, or allow no update.
        RunFolderError: a folder cannot be read or written, or was removed during the training.
        TrainingDiverged: a number became NaN or infinite; with a checkpoint, the message has the resume command.
        ProcessLost: one of several processes ended.
    """
    resumed = start.resumed
    spec, workflow, served, beginning = prepare_training(spec, resumed)
    with ExitStack() as resources:  # closed by the session, or here if an error occurs before its start
        resources.callback(workflow.close)
        spec = replace(spec, title=start.title)
        folder = start.folder(spec)
        command = start.resume_command(folder, spec)
        watched = WatchedFolder(folder)
        resources.callback(watched.close)
        checkpointer = _checkpointer(watched, spec)
        recorder = _recorder(folder, workflow, spec)  # holds the lock: no other process can train the run
        resources.push(lambda _, error, __: _close_recorder(recorder, watched, error))
        restores = resumed and not served
        state, progress = restore(workflow, checkpointer, spec.seed, "latest") if restores else (None, None)
        stopping = stop_on_signals(lambda: resume_advice(command, start.place.resume_command or checkpointer.steps))
        with stopping as should_stop, _noticing_removal(watched):

            def stops() -> bool:
                return should_stop() or start.place.should_stop() or watched.is_missing

            early_stop = EarlyStop.resumed(spec.stop, progress, start.place.judge)
            with RunSession(recorder, checkpointer, progress, stops, (resources.close,), early_stop) as session:
                session.compile_times = CompileTimes.of_run(spec, workflow.env.title or "")
                if progress:  # the untrained policy may be evaluated again
                    starts_again = spec.eval_at_start and workflow.eval_interval and not progress["iterations"]
                    recorder.resume_at(-1 if starts_again else progress["iterations"])
                notices = list(_notices(start, folder, workflow, checkpointer, progress))
                start.record_resume(spec)
                for message in (*notices, *(beginning.messages if beginning else ())):
                    recorder.message(message)
                if beginning:
                    state = beginning.first_state(spec.seed)
                if spec.kind is RunKind.REMOTE:
                    connect_training_server(
                        workflow, folder, lambda: early_stop.is_met() or session.should_stop(), recorder.message
                    )
                with _failures_explained(folder, checkpointer, spec):
                    if served:
                        served.serve(recorder, checkpointer, stops)
                    else:
                        workflow.learn(state, key=spec.seed, session=session, eval_at_start=spec.eval_at_start)
                watched.refuse_missing()
                stopped = session.should_stop() and early_stop.reason is None
                end = f"{RESULTS_IN}{folder.path} ({time.perf_counter() - start.began:.0f} s in total)"
                if stopped and not start.place.resume_command:
                    end += f"\nTo resume: {command}"
                recorder.message(end)
    if not spec.recorders.progress and is_first():
        print(end, flush=True)
    return Trained(checkpointer.best_score, stopped, folder.path)


def _checkpointer(watched: WatchedFolder, spec: RunSpec) -> RescuingCheckpointer:
    folder, chosen = watched.folder, spec.checkpoints
    return RescuingCheckpointer(
        watched,
        spec,
        resume_command,
        chosen.checkpoints_kept,
        (folder.metrics_csv, folder.metrics_jsonl),
        best_to_keep=chosen.best_checkpoints_kept,
        score_over=chosen.best_over,
        seconds=chosen.checkpoint_seconds,
    )


def _recorder(folder: RunFolder, workflow: Workflow, spec: RunSpec) -> Recorder:
    recorders, settings = spec.recorders, {"title": spec.title, **learning_settings(spec.as_config())}
    wandb = _tracker(recorders.wandb, {"config": spec.as_config(), "name": spec.title})
    mlflow = _tracker(recorders.mlflow, {"settings": settings, "name": spec.title})
    if mlflow and mlflow.get("uri"):
        admit(str(mlflow["uri"]), "recorders.mlflow.uri")  # the server receives the settings and metrics
    own = own_recorders(spec) if recorders.own else []
    others: Iterator[Recorder] = (_own_recorder(part, folder) for part in own)  # created by ``make_recorder``
    if workflow.keeping is not None or spec.render_interval:
        others = itertools.chain(episode_recorders(folder, workflow, spec), others)
    return make_recorder(
        folder,
        title=spec.title or "",
        progress=recorders.progress,
        tensorboard=recorders.tensorboard,
        settings=settings,
        learning_curve=recorders.learning_curve,
        wandb=wandb,
        mlflow=mlflow,
        others=others,
    )


def _own_recorder(part: CustomPart, folder: RunFolder) -> Recorder:
    """Create a user's recorder; raise ``ValueError`` if its function returns something else."""
    if not isinstance(recorder := part.call(folder.path), Recorder):
        raise ValueError(f"recorders.own: {part.name} must return an evorl Recorder, got {type(recorder).__name__}.")
    return recorder


def _tracker(chosen: bool | Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of an experiment tracker's recorder; ``None`` if it is disabled."""
    return None if chosen is False else {**defaults, **(chosen if isinstance(chosen, Mapping) else {})}


def _notices(
    start: RunStart,
    folder: RunFolder,
    workflow: Workflow,
    checkpointer: RunCheckpointer,
    progress: dict[str, Any] | None,
) -> Iterable[str]:
    """Return the messages before the first iteration; remove the checkpoints after a resumed one."""
    if progress:
        checkpointer.resume_at(progress["iterations"])
        resumed = f"Resuming {folder.path} at {progress['timesteps']:,} steps."
        return [*checkpointer.notices, *checkpointer.differing_records(progress["iterations"]), resumed]
    flat_images = describe_flat_images(getattr(workflow, "agent", None), workflow.env.obs_space)
    suggested = first_changes(workflow) if start.suggests_changes else None
    return filter(None, (start.notice, suggested, flat_images, *weak_spots(workflow)))


@contextmanager
def _noticing_removal(watched: WatchedFolder) -> Iterator[None]:
    """Context manager that replaces an ``OSError`` by ``FolderMissing`` if the run folder was removed."""
    try:
        yield
    except OSError as error:
        if watched.is_missing and not isinstance(error, FolderMissing):
            raise watched.error() from error
        raise


def _close_recorder(recorder: Recorder, watched: WatchedFolder, error: BaseException | None) -> None:
    if isinstance(error, Exception):  # before the session, which reports its own errors
        recorder.failure(error)
    try:
        recorder.close()
    except OSError:
        if not watched.is_missing:  # if the folder was removed, another error is already raised
            raise


@contextmanager
def _failures_explained(folder: RunFolder, checkpointer: RunCheckpointer, spec: RunSpec) -> Iterator[None]:
    """Context manager that adds the folder or resume command to divergence (also logged) and lost-process errors."""
    try:
        yield
    except TrainingDiverged as error:
        advice = f"{RECORDED_IN}{folder.path}."
        if checkpointer.steps:
            advice = f"{RESUME_WITH_CHANGE}{resume_command(folder, spec)}"
        with closing(LogRecorder(folder.log)) as log:
            log.message(f"{error} {advice}")
        raise TrainingDiverged(f"{error} {advice}") from error
    except Exception as error:
        text = describe_lost_process(error, resume_advice(resume_command(folder, spec), checkpointer.steps))
        if text is None:
            raise
        raise ProcessLost(text) from error

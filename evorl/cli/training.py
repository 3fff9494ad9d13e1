"""A training as a composed config says: its run folder, its recorders and checkpoints, how it ends and goes on."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evorl.cli.choices import choices, origin_of_settings, title_of
from evorl.cli.composition import config_folder
from evorl.cli.hydra_folders import place_of_run
from evorl.cli.init_from import begin_with, refuse_with_resume
from evorl.execution.multiprocess import ProcessLost, loss_in_words, train_command
from evorl.cli.overrides import (
    check_run_settings,
    checkpoint_rules,
    draws_learning_curve,
    own_recorders,
    wandb_settings,
)
from evorl.cli.parameter_serving import settle_parameters
from evorl.cli.preparation import check_build, prepare_training
from evorl.cli.remote_training import connect_training_server
from evorl.cli.signals import stop_on_signals
from evorl.cli.stored_run import check_folders, stored_config
from evorl.config.command_lines import as_arguments
from evorl.config.gate import scope

if TYPE_CHECKING:
    from pathlib import Path

    from omegaconf import DictConfig

    from evorl.cli.multirun import JobPlace, Trained
    from evorl.cli.parameter_serving import ParameterService
    from evorl.runs.checkpointer import RunCheckpointer
    from evorl.runs.folder import RunFolder
    from evorl.runs.recording import Recorder
    from evorl.runs.rescue import RescuingCheckpointer, WatchedFolder
    from evorl.types import State
    from evorl.workflows.workflow import Workflow

_STARTED = time.perf_counter()


@scope()
def train_run(config: DictConfig, overrides: Sequence[str] = (), place: JobPlace | None = None) -> Trained:
    """As ``train_from_config``, for a job of a sweep that has its ``place``."""
    from evorl.cli.multirun import Trained
    from evorl.execution.first_update import weak_spots
    from evorl.execution.restoring import restore
    from evorl.ops.processes import any_says, is_first
    from evorl.recorders import make_recorder
    from evorl.recorders.episode_records import episode_recorders
    from evorl.runs.folder import RunFolder
    from evorl.runs.rescue import WatchedFolder

    started = time.perf_counter() if place else _STARTED
    config, resumed = _config_of(config, overrides)
    check_run_settings(config)
    settle_parameters(config, place is not None)
    if config.get("sweep") is not None or config.get("search") is not None:
        return _compare(config, resumed, overrides)
    workflow, served, beginning = prepare_training(config, resumed)
    chosen = choices()
    title = config.title = title_of(config, chosen)
    root, name = (place.root, place.name) if place else place_of_run(config.runs_folder)
    folder = resumed or RunFolder.create(root, config, name)
    way_on = place.way_on if place else resume_command(folder, config)
    records = folder.metrics_csv, folder.metrics_jsonl
    watched = WatchedFolder(folder)
    checkpointer = _checkpointer(watched, config, records)
    state = progress = None
    if resumed and not served:
        state, progress = restore(workflow, checkpointer, config.seed, "latest")
    if resumed:
        resumed.update_config(config)  # the next resume goes on with it
    _note_start(folder, overrides)
    recorder = make_recorder(
        folder,
        title=title,
        progress=config.recorders.progress,
        tensorboard=config.recorders.tensorboard,
        learning_curve=draws_learning_curve(config),
        wandb=wandb_settings(config),
        others=(
            *episode_recorders(folder, workflow, config),
            *(own.call(folder.path) for own in own_recorders(config)),
        ),
    )
    with stop_on_signals(way_on) as should_stop, _closing(recorder, checkpointer, workflow, watched):
        if progress:
            recorder.resume_at(progress["iterations"])
            notices = _resumed_in_words(folder, checkpointer, progress)
        else:
            notices = filter(None, (origin_of_settings(chosen), _flat_images(workflow), *weak_spots(workflow)))
        for notice in notices:
            recorder.message(notice)
        if beginning:
            state = begin_with(beginning, config.seed, recorder)
        stops = functools.partial(_any_stops, should_stop, place, watched)
        connect_training_server(workflow, folder, stops)
        with _failures_told(folder, checkpointer, config):
            _learn(workflow, served, config, state, progress, recorder, checkpointer, stops)
        watched.refuse_gone()
        stopped = any_says(stops())
        end = f"Results are in {folder.path} ({time.perf_counter() - started:.0f} s in all)"
        if stopped and not place:
            end += f"\nTo go on: {way_on}"
        recorder.message(end)
    if not config.recorders.progress and is_first():
        print(end, flush=True)
    return Trained(checkpointer.best_score, stopped, folder.path)


def _checkpointer(watched: WatchedFolder, config: DictConfig, records: Sequence[Path]) -> RescuingCheckpointer:
    from evorl.runs.rescue import RescuingCheckpointer

    def command(rescued: RunFolder) -> str:
        return resume_command(rescued, config)

    most = config.checkpoints_kept
    return RescuingCheckpointer(watched, config, command, most, records, **checkpoint_rules(config))


def _learn(
    workflow: Workflow,
    served: ParameterService | None,
    config: DictConfig,
    state: State | None,
    progress: dict[str, Any] | None,
    recorder: Recorder,
    checkpointer: RunCheckpointer,
    should_stop: Callable[[], bool],
) -> None:
    """Learn here, or by workers that come over the network."""
    if served:
        served.serve(recorder, checkpointer, should_stop)
        return
    workflow.learn(
        state,
        key=config.seed,
        recorder=recorder,
        checkpointer=checkpointer,
        progress=progress,
        eval_at_start=config.get("eval_at_start", False),
        should_stop=should_stop,
    )


def _any_stops(should_stop: Callable[[], bool], place: JobPlace | None, watched: WatchedFolder) -> bool:
    return should_stop() or bool(place and place.should_stop()) or watched.is_gone


def _config_of(config: DictConfig, overrides: Sequence[str]) -> tuple[DictConfig, RunFolder | None]:
    """The config of a run that goes on, with what is changed, and its folder; of another one as it is."""
    from evorl.runs.folder import RunFolder
    from evorl.runs.run_state import refuse_running

    check_folders(config)
    if not config.resume:
        return config, None
    resumed = RunFolder.find(str(config.resume), config.runs_folder)
    resumed.refuse_links()
    refuse_running(resumed.state)
    refuse_with_resume(overrides)
    return stored_config(resumed, config.trust, overrides)[0], resumed


def _resumed_in_words(folder: RunFolder, checkpointer: RunCheckpointer, progress: Mapping[str, Any]) -> list[str]:
    """What is said of a run that goes on."""
    resumed = f"Resuming {folder.path} at {progress['timesteps']:,} steps."
    return [*checkpointer.notices, *checkpointer.differing_records(progress["iterations"]), resumed]


def _flat_images(workflow: Workflow) -> str | None:
    from evorl.agents.flat_images import flat_images_in_words

    return flat_images_in_words(getattr(workflow, "agent", None), workflow.env.obs_space)


def _compare(config: DictConfig, resumed: RunFolder | None, overrides: Sequence[str]) -> Trained:
    """Many settings instead of one training: side by side, or one after another."""
    from evorl.cli.searching import search_from_config
    from evorl.cli.sweeping import sweep_from_config
    from evorl.runs.folder import RunFolder

    kind = "sweep" if config.get("sweep") is not None else "search"
    if kind == "sweep" and config.get("search") is not None:
        raise ValueError("sweep and search were both given: compare settings in one program, or search by Optuna.")

    def find_folder() -> RunFolder:
        root, name = place_of_run(config.runs_folder, kind)
        folder = resumed or RunFolder.create(root, config, name)
        _note_start(folder, overrides)
        return folder

    def way_on(folder: RunFolder) -> str:
        return resume_command(folder, config)

    if kind == "sweep":
        return sweep_from_config(config, find_folder, way_on)
    return search_from_config(
        config, find_folder, way_on, check_build, lambda changed, place: train_run(changed, (), place)
    )


@contextmanager
def _closing(
    recorder: Recorder, checkpointer: RunCheckpointer, workflow: Workflow, watched: WatchedFolder
) -> Iterator[None]:
    from evorl.runs.rescue import FolderGone

    try:
        yield
    except OSError as error:
        if watched.is_gone and not isinstance(error, FolderGone):
            raise watched.error() from error
        raise
    finally:
        checkpointer.close()
        try:
            recorder.close()
        except OSError:
            if not watched.is_gone:  # otherwise an error is already raised
                raise
        finally:
            workflow.close()
            watched.close()


@contextmanager
def _failures_told(folder: RunFolder, checkpointer: RunCheckpointer, config: DictConfig) -> Iterator[None]:
    """Within: what the caller says of a divergence, or of a lost process, tells how to go on; the first is logged."""
    from evorl.execution.session import TrainingDiverged
    from evorl.recorders import LogRecorder

    try:
        yield
    except TrainingDiverged as error:
        on = f"What was recorded is in {folder.path}."
        if checkpointer.steps:
            on = f"To go on from the checkpoint: {resume_command(folder, config)}, with such a setting."
        log = LogRecorder(folder.log)
        log.message(f"{error} {on}")
        log.close()
        raise TrainingDiverged(f"{error} {on}") from error
    except Exception as error:
        kept = " Its checkpoints are kept; to go on:" if checkpointer.steps else " To start again:"
        text = loss_in_words(error, f"{kept} {resume_command(folder, config)}")
        if text is None:
            raise
        raise ProcessLost(text) from error


def resume_command(folder: RunFolder, config: DictConfig) -> str:
    """The command line that goes on with a run, with the names that have to be given again."""
    from evorl.runs.trust import foreign_names

    names = as_arguments({"resume": str(folder.path), **foreign_names(config)})
    return f"{train_command()} {names}"


def _note_start(folder: RunFolder, overrides: Sequence[str]) -> None:
    """Write down by what the training was started, in a sweep by the settings of this one job."""
    from hydra.core.hydra_config import HydraConfig

    from evorl.execution.plan import describe_devices
    from evorl.ops.processes import is_first
    from evorl.runs.about import add_start, describe_start

    if not is_first():
        return
    names = {}
    if HydraConfig.initialized() and not overrides:
        names = {name: str(choices().get(name, usual)) for name, usual in (("agent", "run"), ("env", "env"))}
        overrides = list(HydraConfig.get().overrides.task)
    start = describe_start(train_command(), overrides, describe_devices(), config_folder().parent)
    add_start(folder.about, names | start)

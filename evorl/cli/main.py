"""The command line: compose a config, build the workflow it names, train or evaluate it in a run folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evorl.cli.arguments import check_overrides, overrides_first
from evorl.cli.composition import compose_config, config_folder
from evorl.cli.errors import errors_in_words, print_any_character
from evorl.cli.evaluating import evaluate_from_config
from evorl.cli.init_from import begin_with, refuse_with_resume, warm_start_from
from evorl.cli.joining import ProcessLost, leaving_together, loss_in_words, refuse_different_settings, train_command
from evorl.cli.overrides import check_run_settings, names_a_run, run_settings, wandb_settings
from evorl.cli.planning import FLAG, print_plan, refuse_hopeless_sizes
from evorl.cli.runtime import collect_garbage_seldom
from evorl.cli.showing import show_episode_from_arguments
from evorl.cli.signals import signals_in_words, stop_on_signals
from evorl.cli.stored_run import build_workflow, check_folders, prepare_for, restore, stored_config

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evorl.runs.checkpointer import RunCheckpointer
    from evorl.runs.folder import RunFolder
    from evorl.runs.recording import Recorder
    from evorl.workflows.workflow import Workflow

_STARTED = time.perf_counter()


def train() -> None:
    """``train.py``: train as the composed config says; ``resume=<run folder>|latest`` continues a run."""
    run_command(train_from_config, "resume")


def evaluate() -> None:
    """``evaluate.py run=<run folder>|latest``: play ``eval_episodes`` episodes with the run's best checkpoint."""
    run_command(evaluate_from_config, "run")


def show_episode() -> None:
    """``show_episode.py episode=<file>``, or ``run=<run folder>|latest``: an episode that was saved, as a GIF."""
    print_any_character()
    with signals_in_words(), errors_in_words(config_folder()):
        show_episode_from_arguments(sys.argv[1:])


def run_command(task: Any, names_run: str) -> None:
    """Run ``task(config, overrides)`` as the command line says, which names a run by the setting ``names_run``."""
    # Exceptions come to us as they are raised, and we say them in words.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    print_any_character()
    collect_garbage_seldom()
    sys.argv[1:] = arguments = overrides_first(sys.argv[1:])
    with leaving_together(), signals_in_words(), errors_in_words(config_folder()):
        if names_run == "resume" and FLAG in arguments:
            print_plan(arguments)
            return
        import hydra
        from omegaconf import OmegaConf

        if names_a_run(arguments, names_run):
            usual: Any = OmegaConf.load(config_folder() / "config.yaml")
            task(run_settings(arguments, usual), arguments)
            return

        if _is_asked_for_config(arguments):
            _print_config([argument for argument in arguments if not argument.startswith("-") and "=" in argument])
            return

        def job(config: DictConfig) -> Any:
            with errors_in_words(config_folder()):  # in here, before Hydra adds lines of its own
                check_overrides(*_job_overrides())
                return task(config)

        hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)()


def _job_overrides() -> tuple[list[str], list[Path]]:
    """What was overridden for this job, and the folders of configs."""
    from hydra.core.hydra_config import HydraConfig

    hydra_config = HydraConfig.get()
    folders = [Path(source.path) for source in hydra_config.runtime.config_sources if source.schema == "file"]
    return list(hydra_config.overrides.task), folders


def _is_asked_for_config(arguments: Sequence[str]) -> bool:
    """Whether the flags are ``--cfg job`` alone; with others Hydra answers, without comments."""
    flags = [argument for argument in arguments if argument.startswith("-") or "=" not in argument]
    return flags in (["--cfg", "job"], ["-c", "job"])


def _print_config(overrides: Sequence[str]) -> None:
    """The composed config with a comment behind every setting."""
    from omegaconf import OmegaConf

    from evorl.cli.settings import commented_yaml

    config: Any = OmegaConf.to_container(compose_config(overrides), resolve=True)
    print(commented_yaml(config, config_folder()), end="")


def train_from_config(config: DictConfig, overrides: Sequence[str] = ()) -> float | None:
    """Train as a composed config says, in a run folder.

    Args:
        config: of the run; one with ``resume`` need only say where the run folder is, which has the rest.
        overrides: what the config of a resumed run is changed by.

    Returns:
        The best evaluation return: what a hyper-parameter search maximises.
    """
    from evorl.ops.processes import any_says, is_first
    from evorl.recorders import make_recorder
    from evorl.recorders.episode_records import episode_recorders
    from evorl.runs.checkpointer import RunCheckpointer
    from evorl.runs.folder import RunFolder

    check_folders(config)
    resumed = RunFolder.find(str(config.resume), config.runs_folder) if config.resume else None
    if resumed:
        resumed.refuse_links()
        refuse_with_resume(overrides)
        config, _ = stored_config(resumed, config.trust, overrides)
    check_run_settings(config)
    refuse_hopeless_sizes(config)
    prepare_for(config)
    refuse_different_settings(f"{config} {resumed}")
    workflow = build_workflow(config)
    beginning = None if resumed else warm_start_from(config, workflow)
    folder = resumed or RunFolder.create(_folder_of_runs(config), config)
    records = (folder.metrics_csv, folder.metrics_jsonl)
    checkpointer = RunCheckpointer(folder.checkpoints, config.checkpoints_kept, records)
    state, progress = None, None
    if resumed:
        state, progress = restore(workflow, checkpointer, config.seed, "latest")
        resumed.update_config(config)  # the next resume goes on with it
    settings = config.recorders
    recorder = make_recorder(
        folder,
        progress=settings.progress,
        tensorboard=settings.tensorboard,
        wandb=wandb_settings(config),
        others=episode_recorders(folder, workflow, config),
    )
    with stop_on_signals(_resume_command(folder, config)) as should_stop, _closing(recorder, checkpointer, workflow):
        if progress:
            recorder.resume_at(progress["iterations"])
            for notice in (*checkpointer.notices, *checkpointer.differing_records(progress["iterations"])):
                recorder.message(notice)
            recorder.message(f"Resuming {folder.path} at {progress['timesteps']:,} steps.")
        if beginning:
            state = begin_with(beginning, config.seed, recorder)
        with _failures_told(folder, checkpointer, config):
            workflow.learn(
                state,
                key=config.seed,
                recorder=recorder,
                checkpointer=checkpointer,
                progress=progress,
                should_stop=should_stop,
            )
        stopped = any_says(should_stop())
        end = f"Results are in {folder.path} ({time.perf_counter() - _STARTED:.0f} s in all)"
        if stopped:
            end += f"\nTo go on: {_resume_command(folder, config)}"
        recorder.message(end)
    if not settings.progress and is_first():
        print(end, flush=True)
    return checkpointer.best_score


@contextmanager
def _closing(recorder: Recorder, checkpointer: RunCheckpointer, workflow: Workflow) -> Iterator[None]:
    try:
        yield
    finally:
        checkpointer.close()
        recorder.close()
        workflow.close()


@contextmanager
def _failures_told(folder: RunFolder, checkpointer: RunCheckpointer, config: DictConfig) -> Iterator[None]:
    """Within: what the caller says of a divergence, or of a lost process, tells how to go on; the first is logged."""
    from evorl.execution.learning import TrainingDiverged
    from evorl.recorders import LogRecorder

    try:
        yield
    except TrainingDiverged as error:
        on = f"What was recorded is in {folder.path}."
        if checkpointer.steps:
            on = f"To go on from the checkpoint: {_resume_command(folder, config)}, with such a setting."
        log = LogRecorder(folder.log)
        log.message(f"{error} {on}")
        log.close()
        raise TrainingDiverged(f"{error} {on}") from error
    except Exception as error:
        kept = " Its checkpoints are kept; to go on:" if checkpointer.steps else " To start again:"
        text = loss_in_words(error, f"{kept} {_resume_command(folder, config)}")
        if text is None:
            raise
        raise ProcessLost(text) from error


def _resume_command(folder: RunFolder, config: DictConfig) -> str:
    """The command line that goes on with a run, with the names that have to be given again."""
    from evorl.runs.trust import as_arguments, foreign_names

    names = as_arguments({"resume": str(folder.path), **foreign_names(config)})
    return f"{train_command()} {names}"


def _folder_of_runs(config: DictConfig) -> Path:
    from hydra.core.hydra_config import HydraConfig

    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    agent, env = (str(choices.get(*choice)).replace("/", "-") for choice in (("agent", "run"), ("env", "env")))
    return Path(config.runs_folder) / f"{agent}-{env}"

"""The command line: compose a config, build the workflow it names, train or evaluate it in a run folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evorl.cli_errors import errors_in_words
from evorl.cli_settings import apply_overrides, check_run_settings, options_of_any_run, wandb_settings
from evorl.runtime import collect_garbage_seldom, prepare_runtime

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evorl.checkpointing import RunCheckpointer
    from evorl.run_folder import RunFolder
    from evorl.types import State
    from evorl.workflows import Workflow

_STARTED = time.perf_counter()


def config_folder() -> Path:
    """The config tree: inside an installed package, or at the top of the source tree."""
    package = Path(__file__).resolve().parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def train() -> None:
    """``train.py``: train as the composed config says; ``resume=<run folder>|latest`` continues a run."""
    _run_hydra(train_from_config)


def evaluate() -> None:
    """``evaluate.py run=<run folder>|latest``: play ``eval_episodes`` episodes with the run's best checkpoint."""
    _run_hydra(evaluate_from_config)


def _run_hydra(task: Any) -> None:
    # Exceptions come to us as they are raised, and we say them in words.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    collect_garbage_seldom()
    with errors_in_words(config_folder()):
        import hydra

        def job(config: DictConfig) -> Any:
            with errors_in_words(config_folder()):  # in here, before Hydra adds lines of its own
                return task(config)

        with options_of_any_run():
            hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)()


def train_from_config(config: DictConfig) -> float | None:
    """Train as a composed config says, in a run folder.

    Returns:
        The best evaluation return: what a hyper-parameter search maximises.
    """
    from evorl.checkpointing import RunCheckpointer
    from evorl.run_folder import RunFolder

    resumed = RunFolder.find(config.resume, config.runs_folder) if config.resume else None
    if resumed:
        config = resumed.load_config()
        apply_overrides(config, allowed=None)
    check_run_settings(config)
    prepare_for(config)
    workflow = build_workflow(config)
    folder = resumed or RunFolder.create(_folder_of_runs(config), config)
    checkpointer = RunCheckpointer(folder.checkpoints, max_to_keep=config.checkpoints_kept)
    state, progress = None, None
    if resumed:
        state, progress = restore(workflow, checkpointer, config.seed, "latest")
        resumed.update_config(config)  # the next resume goes on with it
    return _train_in(folder, workflow, checkpointer, config, state, progress)


def _train_in(
    folder: RunFolder,
    workflow: Workflow,
    checkpointer: RunCheckpointer,
    config: DictConfig,
    state: State | None,
    progress: dict[str, Any] | None,
) -> float | None:
    from evorl.recorders import make_recorder

    shown = config.recorders.progress
    recorder = make_recorder(
        folder, progress=shown, tensorboard=config.recorders.tensorboard, wandb=wandb_settings(config)
    )
    if progress:
        recorder.resume_at(progress["iterations"])
    try:
        with _divergence_told(folder, checkpointer), stop_on_signals() as should_stop:
            if progress is not None:
                recorder.message(f"Resuming {folder.path} at {progress['timesteps']:,} steps.")
            workflow.learn(
                state,
                key=config.seed,
                recorder=recorder,
                checkpointer=checkpointer,
                progress=progress,
                should_stop=should_stop,
            )
            end = f"Results are in {folder.path} ({time.perf_counter() - _STARTED:.0f} s in all)"
            if should_stop():
                end += f"\nTo go on: python scripts/train.py resume={folder.path}"
        recorder.message(end)
    finally:
        checkpointer.close()
        recorder.close()
        workflow.close()
    if not shown:
        print(end, flush=True)
    return checkpointer.best_score


@contextmanager
def _divergence_told(folder: RunFolder, checkpointer: RunCheckpointer) -> Iterator[None]:
    """Within: a divergence is noted in the run's log, and its message says how to go on; the caller shows it."""
    from evorl.recorders import LogRecorder
    from evorl.workflows import TrainingDiverged

    try:
        yield
    except TrainingDiverged as error:
        on = f"What was recorded is in {folder.path}."
        if checkpointer.steps:
            on = f"To go on from the checkpoint: python scripts/train.py resume={folder.path}, with such a setting."
        log = LogRecorder(folder.log)
        log.message(f"{error} {on}")
        log.close()
        raise TrainingDiverged(f"{error} {on}") from error


def evaluate_from_config(config: DictConfig) -> float:
    """Load the best checkpoint of ``config.run`` and report ``config.eval_episodes`` episodes.

    Where none was scored it is the latest. A seed given on the command line draws other episodes than the
    checkpoint's own key.

    Raises:
        ValueError: no run is named.
    """
    import jax
    import numpy as np

    from evorl.checkpointing import RunCheckpointer
    from evorl.run_folder import RunFolder
    from evorl.workflows import execution

    if not config.run:
        raise ValueError("Which run? Give its folder: python scripts/evaluate.py run=<folder>, or run=latest.")
    folder = RunFolder.find(config.run, config.runs_folder)
    settings = folder.load_config()
    given = apply_overrides(settings, allowed=("eval_episodes", "seed", "devices", "env_chunk", "compilation_cache"))
    check_run_settings(settings)
    prepare_for(settings)
    workflow = build_workflow(settings)
    checkpointer = RunCheckpointer(folder.checkpoints)
    which = "latest" if checkpointer.best_step is None else "best"
    state, progress = restore(workflow, checkpointer, settings.seed, which, workflow.evaluation_entries)
    if "seed" in given:
        eval_key = execution.seed_keys(workflow.execution, jax.random.key(settings.seed))
        state = execution.place(workflow, state.replace(eval_key=eval_key))
    metrics = workflow.evaluate(state)
    seeds = f" for each of {settings.num_seeds} seeds" if settings.num_seeds > 1 else ""
    unscored = "" if which == "best" else " (the latest: none has an evaluation score)"
    print(f"{folder.path}")
    print(f"checkpoint of {progress['timesteps']:,} steps{unscored}, {settings.eval_episodes} episodes{seeds}:")
    for name, value in metrics.items():
        print(f"  {name:24s} {np.array2string(np.asarray(value), precision=2, floatmode='fixed')}")
    return float(np.mean(metrics.episode_return))


def prepare_for(config: Mapping[str, Any]) -> None:
    """Set JAX up as a run of this config wants it: its ``devices``, ``compilation_cache`` and ``env`` are read."""
    env = config["env"]
    library = env.get("library") if isinstance(env, Mapping) else None
    prepare_runtime(
        config.get("devices", "auto"), config.get("compilation_cache", True), long_programs=library == "brax"
    )


def build_workflow(config: DictConfig) -> Workflow:
    """The workflow that a composed config names and describes.

    Raises:
        ValueError: the config does not fit together, in words.
    """
    from evorl.workflows.building import workflow_from_config

    return workflow_from_config(config)


def restore(
    workflow: Workflow, checkpointer: RunCheckpointer, seed: int, which: str, entries: Iterable[str] | None = None
) -> tuple[State, dict[str, Any]]:
    """A saved state on this workflow's devices, and what the checkpoint says of the run.

    Args:
        workflow: as it was when the state was saved, but for numbers and devices.
        checkpointer: of the run.
        seed: any: it shapes nothing.
        which: ``latest``, ``best``, or an iteration.
        entries: of the state, to read these only; ``workflow.evaluation_entries`` leave the replay buffer alone.
    """
    import jax

    from evorl.workflows import execution

    template = jax.eval_shape(workflow.init, jax.random.key(seed))
    if entries is not None:
        template = _entries_of(template, entries)
    state, progress = checkpointer.restore(template, which, partial=entries is not None)
    return execution.place(workflow, state), progress


def _entries_of(state: State, names: Iterable[str]) -> State:
    """Some entries of a state; with a dot, an entry of an entry."""
    from evorl.types import State

    chosen = State()
    for name in names:
        entry, _, within = name.partition(".")
        if within:
            chosen[entry] = State({**chosen.get(entry, {}), within: state[entry][within]})
        else:
            chosen[entry] = state[entry]
    return chosen


@contextmanager
def stop_on_signals() -> Iterator[Any]:
    """Within: SIGINT and SIGTERM ask for a stop after the current chunk; a second one ends the process at once."""
    received: list[int] = []
    # Not the handlers from before: a shell starts background jobs with SIGINT ignored.
    ends_at_once = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def on_signal(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, ends_at_once[signal.Signals(number)])

    before = {number: signal.signal(number, on_signal) for number in ends_at_once}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _folder_of_runs(config: DictConfig) -> Path:
    from hydra.core.hydra_config import HydraConfig

    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    agent, env = (str(choices.get(*choice)).replace("/", "-") for choice in (("agent", "run"), ("env", "env")))
    return Path(config.runs_folder) / f"{agent}-{env}"


if __name__ == "__main__":
    sys.exit("Run scripts/train.py or scripts/evaluate.py.")

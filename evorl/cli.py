"""The command line: compose a config, build the workflow it names, train or evaluate it in a run folder."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evorl.cli_errors import errors_in_words
from evorl.runtime import prepare_runtime

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
    with errors_in_words(config_folder()):
        import hydra

        def job(config: DictConfig) -> Any:
            with errors_in_words(config_folder()):  # in here, before Hydra adds lines of its own
                return task(config)

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
        config = _resumed_config(resumed, config)
    prepare_runtime(config.devices, config.compilation_cache)
    workflow = build_workflow(config)
    folder = resumed or RunFolder.create(_folder_of_runs(config), config)
    checkpointer = RunCheckpointer(folder.checkpoints, max_to_keep=config.checkpoints_kept)
    state, progress = None, None
    if resumed:
        state, progress = restore(workflow, checkpointer, config.seed, "latest")
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

    recorder = make_recorder(
        folder,
        progress=config.recorders.progress,
        tensorboard=config.recorders.tensorboard,
        wandb={} if config.recorders.wandb else None,
    )
    if progress:
        recorder.resume_at(progress["iterations"])
    finished = False
    try:
        with stop_on_signals() as should_stop:
            if progress is not None:
                recorder.message(f"Resuming {folder.path} at {progress['timesteps']:,} steps.")
            state = workflow.learn(
                state,
                key=config.seed,
                recorder=recorder,
                checkpointer=checkpointer,
                progress=progress,
                should_stop=should_stop,
            )
            finished = not should_stop()
        recorder.message(f"Results are in {folder.path} ({time.perf_counter() - _STARTED:.0f} s in all)")
        if not finished:
            recorder.message(f"To go on: python scripts/train.py resume={folder.path}")
    except ArithmeticError as error:
        recorder.message(str(error))
        raise
    finally:
        checkpointer.close()
        recorder.close()
        workflow.close()
    return checkpointer.best_score


def evaluate_from_config(config: DictConfig) -> float:
    """Load the best checkpoint of ``config.run`` and report ``config.eval_episodes`` episodes.

    Raises:
        ValueError: no run is named.
    """
    from evorl.checkpointing import RunCheckpointer
    from evorl.run_folder import RunFolder

    if not config.run:
        raise ValueError("Which run? Give its folder: python scripts/evaluate.py run=<folder>, or run=latest.")
    folder = RunFolder.find(config.run, config.runs_folder)
    settings = folder.load_config()
    _apply_overrides(settings, allowed=("eval_episodes", "seed", "devices", "env_chunk", "compilation_cache"))
    prepare_runtime(settings.devices, settings.compilation_cache)
    workflow = build_workflow(settings)
    checkpointer = RunCheckpointer(folder.checkpoints)
    state, progress = restore(workflow, checkpointer, settings.seed, "best")
    import numpy as np

    metrics = workflow.evaluate(state)
    seeds = f" for each of {settings.num_seeds} seeds" if settings.num_seeds > 1 else ""
    print(f"{folder.path}\ncheckpoint of {progress['timesteps']:,} steps, {settings.eval_episodes} episodes{seeds}:")
    for name, value in metrics.items():
        print(f"  {name:24s} {np.array2string(np.asarray(value), precision=2, floatmode='fixed')}")
    return float(np.mean(metrics.episode_return))


def build_workflow(config: DictConfig) -> Workflow:
    """The workflow that a composed config names and describes.

    Raises:
        ValueError: the config does not fit together, in words.
    """
    module_name, _, class_name = str(config.workflow).rpartition(".")
    try:
        workflow_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"workflow={config.workflow!r} names no class that can be imported: {error}.") from error
    return workflow_class.build_from_config(config)


def restore(workflow: Workflow, checkpointer: RunCheckpointer, seed: int, which: str) -> tuple[State, dict[str, Any]]:
    """A saved state on this workflow's devices, and what the checkpoint says of the run."""
    import jax

    from evorl.workflows import execution

    template = jax.eval_shape(workflow.init, jax.random.key(seed))
    state, progress = checkpointer.restore(template, which)
    return execution.place(workflow, state), progress


@contextmanager
def stop_on_signals() -> Iterator[Any]:
    """Within: SIGINT and SIGTERM ask for a stop after the current chunk; a second one ends the process at once."""
    received: list[int] = []
    before = {}

    def on_signal(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, before[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, on_signal)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _folder_of_runs(config: DictConfig) -> Path:
    from hydra.core.hydra_config import HydraConfig

    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    env = str(choices.get("env", "env")).replace("/", "-")
    return Path(config.runs_folder) / f"{choices.get('agent', 'run')}-{env}"


def _resumed_config(folder: RunFolder, config: DictConfig) -> DictConfig:
    """The config of the run, with the overrides of this command."""
    settings = folder.load_config()
    _apply_overrides(settings, allowed=None)
    return settings


def _apply_overrides(settings: DictConfig, allowed: tuple[str, ...] | None) -> None:
    """Set what this command line gave besides ``resume`` and ``run``; the algorithm and the environment stay."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    for override in OverridesParser.create().parse_overrides(list(given)):
        key = override.key_or_group
        if key in ("resume", "run", "runs_folder"):
            continue
        if key in ("agent", "env", "experiment"):
            raise ValueError(f"{key} is taken from the run folder: leave {key}=... out.")
        if allowed is not None and key not in allowed:
            raise ValueError(f"{key} has no effect here; what can be set: {', '.join(allowed)}.")
        OmegaConf.update(settings, key, override.value(), force_add=False)


if __name__ == "__main__":
    sys.exit("Run scripts/train.py or scripts/evaluate.py.")

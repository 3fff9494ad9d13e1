"""``evaluate.py``: episodes of a stored run's best checkpoint, what they come to, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evorl.cli.overrides import check_run_settings
from evorl.cli.stored_run import build_workflow, check_folders, prepare_for, stored_config
from evorl.config.command_lines import as_arguments
from evorl.config.gate import scope

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evorl.metrics import EvaluationMetrics
    from evorl.runs.folder import RunFolder
    from evorl.workflows.workflow import Workflow

_KEPT = ("goals", "goal_cells", "save_episodes", "plot_episodes", "plot_of", "plot_dimensions")
EVALUATION_SETTINGS = ("eval_episodes", "seed", "devices", "env_chunk", "compilation_cache", "env.skill")
EVALUATION_SETTINGS += tuple(f"evaluation.{name}" for name in _KEPT)


@scope()
def evaluate_from_config(config: DictConfig, overrides: Sequence[str] = ()) -> float:
    """Load the best checkpoint of ``config.run`` and report ``config.eval_episodes`` episodes.

    Where none was scored it is the latest. A seed given on the command line draws other episodes than the
    checkpoint's own key. What ``config.evaluation`` keeps of them is told, or written into the run folder.

    Raises:
        ValueError: no run is named.
    """
    import jax
    import numpy as np

    from evorl.execution import programs
    from evorl.execution.restoring import restore
    from evorl.ops.processes import on_host
    from evorl.runs.best_run import find_run
    from evorl.runs.checkpointer import RunCheckpointer

    check_folders(config)
    if not config.run:
        raise ValueError("Which run? Give its folder: evorl evaluate run=<folder>, or run=latest.")
    folder = find_run(str(config.run), config.runs_folder)
    settings, given = stored_config(folder, config.trust, overrides, EVALUATION_SETTINGS)
    check_run_settings(settings)
    prepare_for(settings)
    workflow = build_workflow(settings)
    checkpointer = RunCheckpointer(folder.checkpoints)
    which = "latest" if checkpointer.best_step is None else "best"
    state, progress = restore(workflow, checkpointer, settings.seed, which, workflow.evaluation_entries)
    if "seed" in given:
        eval_key = programs.seed_keys(workflow.execution, jax.random.key(settings.seed))
        state = programs.place(workflow, state.replace(eval_key=eval_key))
    for notice in checkpointer.notices:
        print(notice)
    metrics = on_host(workflow.evaluate(state))
    episodes = metrics.pop("episodes", None)
    seeds = f" for each of {settings.num_seeds} seeds" if settings.num_seeds > 1 else ""
    unscored = "" if which == "best" else " (the latest: none has an evaluation score)"
    print(f"{folder.path}")
    print(f"checkpoint of {progress['timesteps']:,} steps{unscored}, {settings.eval_episodes} episodes{seeds}:")
    for name, value in metrics.items():
        print(f"  {name:24s} {np.array2string(np.asarray(value), precision=2, floatmode='fixed')}")
    if episodes is not None:
        _show(workflow, episodes)
        suffix = f"_evaluated_{settings.seed}" if "seed" in given else ""
        _write(folder, workflow, settings, progress, episodes, suffix)
    return float(np.mean(metrics.episode_return))


def _show(workflow: Workflow, episodes: EvaluationMetrics) -> None:
    """Print which goals were reached."""
    from evorl.evaluators.goal_regions import as_lines, by_goal
    from evorl.recorders.goal_table import goal_table

    if episodes.goals is None:
        return
    space = workflow.eval_env.goal_task.goal_space
    for line in as_lines(by_goal(goal_table(episodes), space, workflow.keeping.goal_cells)):
        print(f"  {line}")


def _write(
    folder: RunFolder,
    workflow: Workflow,
    settings: DictConfig,
    progress: dict[str, Any],
    episodes: EvaluationMetrics,
    suffix: str,
) -> None:
    """Write the episodes and the picture that are asked for, and say where they are."""
    from evorl.recorders.episode_records import episode_recorders

    folder.refuse_links()
    for recorder in episode_recorders(folder, workflow, settings, of_training=False, suffix=suffix):
        recorder.evaluation(progress["iterations"], progress["timesteps"], episodes)
    name = f"{progress['timesteps']:012d}{suffix}"
    if workflow.keeping.save_episodes:
        first = sorted(folder.episodes.glob(f"{name}_*.npz"))[0]
        command = f"evorl show-episode {as_arguments({'episode': str(first)})}"
        print(f"Episodes are in {folder.episodes}. To see one: {command}")
    if workflow.keeping.plot_episodes:
        print(f"Their ways are drawn in {folder.plots / name}.png")

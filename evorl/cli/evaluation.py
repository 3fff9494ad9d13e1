"""``evorl evaluate``: evaluates the best checkpoint of a stored run, and records its episodes on request."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from evorl.assembly import workflow_from_config
from evorl.cli.overrides import changeable_settings, changed_spec
from evorl.cli.run_command import run_command
from evorl.config.command_lines import as_arguments
from evorl.config.gate import scope
from evorl.evaluators.goal_regions import as_lines, by_goal
from evorl.execution import programs
from evorl.execution.restoration import restore
from evorl.execution.runtime import prepare_for
from evorl.metrics import EvaluationMetrics
from evorl.ops.processes import on_host
from evorl.recorders.episode_records import episode_recorders
from evorl.recorders.goal_table import goal_table
from evorl.runs.best_run import find_run
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.workflows.workflow import Workflow


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes:
        run: the run folder.
        checkpoint: ``best``, or ``latest`` if no checkpoint has an evaluation score.
        timesteps: environment steps trained, per seed, when the checkpoint was saved.
        episodes: number of episodes per seed.
        metrics: statistics over the episodes by name, such as ``episode_return``, the mean return: scalars, or
            ``[num_seeds]`` in a run of several seeds.
    """

    run: Path
    checkpoint: str
    timesteps: int
    episodes: int
    metrics: Mapping[str, npt.NDArray[np.float64]]

    @property
    def mean_return(self) -> float:
        """Mean episode return, averaged over all seeds."""
        return float(np.mean(self.metrics["episode_return"]))


def evaluate(arguments: Sequence[str]) -> None:
    """Run ``evorl evaluate run=<run folder>|latest``: play episodes with the best checkpoint and print the metrics."""
    run_command(evaluate_run, arguments, "run", "evaluate")


def named_run(named: RunSpec, overrides: Sequence[str], command: str) -> tuple[RunFolder, RunSpec, Collection[str]]:
    """Set up JAX for the run ``named.stored.run``; return its folder, settings with ``overrides``, and changed keys.

    ``overrides`` may change only ``changeable_settings(command)``.

    Raises:
        ValueError: no run is named, or a setting is unknown or invalid.
        RunFolderError: the run does not exist, is corrupted, or is not trusted.
    """
    stored = named.stored
    if not stored.run:
        raise ValueError(f"no run was given: use evorl {command} run=<folder>, or run=latest.")
    folder = find_run(stored.run, stored.runs_folder)
    spec, changed = changed_spec(folder, stored.trust, overrides, changeable_settings(command))
    prepare_for(spec)
    return folder, spec, changed


@scope()
def evaluate_run(named: RunSpec, overrides: Sequence[str] = ()) -> Evaluation:
    """Evaluate the best checkpoint of the run ``named.stored.run`` on ``eval_episodes`` episodes; print the metrics.

    If no checkpoint has a score, the latest is evaluated. A ``seed`` in ``overrides`` replaces the stored random key,
    so that other episodes are played. The records of the section ``evaluation`` are printed or saved in the run folder.

    Raises:
        ValueError: no run is named, an override is invalid, or no checkpoint can be loaded.
        RunFolderError: the run does not exist, is corrupted or not trusted, or a record cannot be written.
    """
    folder, spec, changes = named_run(named, overrides, "evaluate")
    with contextlib.closing(workflow_from_config(spec.workflow_config())) as workflow:
        checkpointer = RunCheckpointer(folder.checkpoints)
        which = checkpointer.available("best")
        state, progress = restore(workflow, checkpointer, spec.seed, which, workflow.evaluation_entries)
        if "seed" in changes:
            eval_key = programs.seed_keys(workflow.execution, jax.random.key(spec.seed))
            state = programs.place(workflow, state.replace(eval_key=eval_key))
        for notice in checkpointer.notices:
            print(notice)
        metrics = on_host(workflow.evaluate(state))
        episodes = metrics.pop("episodes", None)
        seeds = f" for each of {spec.num_seeds} seeds" if spec.num_seeds > 1 else ""
        unscored = "" if which == "best" else " (the latest, because none has an evaluation score)"
        print(f"{folder.path}")
        print(f"checkpoint of {progress['timesteps']:,} steps{unscored}, {workflow.eval_episodes} episodes{seeds}:")
        for name, value in metrics.items():
            print(f"  {name:24s} {np.array2string(np.asarray(value), precision=2, floatmode='fixed')}")
        if episodes is not None:
            _show(workflow, episodes)
            suffix = f"_evaluated_{spec.seed}" if "seed" in changes else ""
            _write(folder, workflow, spec, progress, episodes, suffix)
    arrays = {name: np.asarray(value, np.float64) for name, value in metrics.items()}
    return Evaluation(folder.path, str(which), int(progress["timesteps"]), workflow.eval_episodes, arrays)


def _show(workflow: Workflow, episodes: EvaluationMetrics) -> None:
    """Print a table of success rates and returns by region of the goal; nothing if no goals were recorded."""
    if episodes.goals is None:
        return
    space = workflow.eval_env.goal_task.goal_space
    for line in as_lines(by_goal(goal_table(episodes), space, workflow.keeping.goal_cells)):
        print(f"  {line}")


def _write(
    folder: RunFolder,
    workflow: Workflow,
    spec: RunSpec,
    progress: dict[str, Any],
    episodes: EvaluationMetrics,
    suffix: str,
) -> None:
    """Write the episodes and plots that the section ``evaluation`` requests, and print their paths."""
    folder.refuse_links()
    for recorder in episode_recorders(folder, workflow, spec, of_training=False, suffix=suffix):
        recorder.evaluation(progress["iterations"], progress["timesteps"], episodes)
    name = f"{progress['timesteps']:012d}{suffix}"
    if workflow.keeping.save_episodes:
        first = min(folder.episodes.glob(f"{name}_*.npz"), key=lambda path: (len(path.name), path.name))
        command = f"evorl show-episode {as_arguments({'episode': str(first)})}"
        print(f"Episodes are in {folder.episodes}. To watch one: {command}")
    if workflow.keeping.plot_episodes:
        print(f"Episode trajectories are drawn in {folder.plots / name}.png")

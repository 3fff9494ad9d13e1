"""``save_replay.py``: what a run's replay buffer has, as a file that another run can start from or a user can open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evorl.cli.evaluating import EVALUATION_SETTINGS
from evorl.cli.main import run_command
from evorl.cli.stored_run import build_workflow, prepare_for, stored_config
from evorl.config.gate import scope

if TYPE_CHECKING:
    from omegaconf import DictConfig


def save_replay() -> None:
    """``save_replay.py run=<run folder>|latest``: write the replay buffer of the run's last checkpoint beside it."""
    run_command(save_replay_from_config, "run", "save-replay")


@scope()
def save_replay_from_config(config: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Write ``replay.npz`` and ``replay.json`` into the folder of ``config.run``.

    Raises:
        ValueError: no run is named, or it has no replay buffer of its own, or an empty one.
    """
    from evorl.execution.restoring import restore
    from evorl.runs.best_run import find_run
    from evorl.runs.checkpointer import RunCheckpointer
    from evorl.workflows.off_policy import OffPolicyWorkflow
    from evorl.workflows.recorded_steps import save_recorded_steps

    if not config.run:
        raise ValueError("Which run? Give its folder: evorl save-replay run=<folder>, or run=latest.")
    folder = find_run(str(config.run), config.runs_folder)
    settings, _ = stored_config(folder, config.trust, overrides, EVALUATION_SETTINGS)
    prepare_for(settings)
    workflow = build_workflow(settings)
    if not isinstance(workflow, OffPolicyWorkflow):
        raise ValueError(
            f"{folder.path} is a run of {type(workflow).__name__}, which has no replay buffer of its own: off-policy "
            "agents such as dqn, td3 and sac have one."
        )
    checkpointer = RunCheckpointer(folder.checkpoints)
    state, progress = restore(workflow, checkpointer, settings.seed, "latest", ("replay_state", "iterations"))
    for notice in checkpointer.notices:
        print(notice)
    facts = save_recorded_steps(workflow, state, folder.replay)
    print(f"{folder.replay.with_suffix('.npz')}")
    print(f"{facts['num_steps']:,} transitions of {facts['env']}, checkpoint of {progress['timesteps']:,} steps")
    if facts["num_episodes"]:
        mean, std = facts["episode_return_mean"], facts["episode_return_std"]
        print(f"{facts['num_episodes']:,} episodes, return {mean:.2f} +- {std:.2f}")

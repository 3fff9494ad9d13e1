"""``evorl save-replay``: writes the replay buffer of a run to a file, for another run to load or a user to inspect."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from evorl.assembly import workflow_from_config
from evorl.cli.evaluation import named_run
from evorl.cli.run_command import run_command
from evorl.config.gate import scope
from evorl.execution.recorded_steps import save_recorded_steps
from evorl.execution.restoration import restore
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.spec import RunSpec
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.workflow import learning_algorithms


def save_replay(arguments: Sequence[str]) -> None:
    """Run ``evorl save-replay run=<run folder>|latest``: write the replay buffer of the last checkpoint to a file."""
    run_command(save_replay_of_run, arguments, "run", "save-replay")


@scope()
def save_replay_of_run(named: RunSpec, overrides: Sequence[str] = ()) -> None:
    """Write ``replay.npz`` and ``replay.json`` into the folder of the run ``named.stored.run``.

    Raises:
        ValueError: the algorithm is not off-policy, or checkpoint or transitions are missing; see also ``named_run``.
    """
    folder, spec, _ = named_run(named, overrides, "save-replay")
    with contextlib.closing(workflow_from_config(spec.workflow_config())) as workflow:
        if not isinstance(workflow, OffPolicyWorkflow):
            raise ValueError(
                "evorl save-replay writes the replay buffers of off-policy algorithms "
                f"({learning_algorithms(OffPolicyWorkflow)}), but {folder.path} is a run of {type(workflow).__name__}."
            )
        checkpointer = RunCheckpointer(folder.checkpoints)
        state, progress = restore(workflow, checkpointer, spec.seed, "latest", ("replay_state", "iterations"))
        for notice in checkpointer.notices:
            print(notice)
        facts = save_recorded_steps(workflow, state, folder.replay)
    print(f"{folder.replay.with_suffix('.npz')}")
    print(f"{facts['num_steps']:,} transitions of {facts['env']}, checkpoint of {progress['timesteps']:,} steps")
    if facts["num_episodes"]:
        mean, std = facts["episode_return_mean"], facts["episode_return_std"]
        print(f"{facts['num_episodes']:,} episodes, return {mean:.2f} +- {std:.2f}")

"""``save_replay.py``: a run's replay buffer becomes a file from which another run learns offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from evorl.algorithms.sac import SACWorkflow
from evorl.algorithms.td3_bc import TD3BCWorkflow
from evorl.assembly import workflow_from_config
from evorl.cli.config_tree import config_folder
from evorl.cli.save_replay import save_replay_of_run
from evorl.execution.restoration import restore
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.replay_file import read_columns, read_replay_facts
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun
from tests.support.errors import raises_naming
from tests.support.small_workflows import SAC_CONFIG

RUN = {key: value for key, value in OmegaConf.load(config_folder() / "config.yaml").items() if key != "defaults"}
RUN = {key: value for key, value in RUN.items() if key not in ("hydra", "actors")} | {"compilation_cache": False}
PENDULUM = {"library": "gymnax", "name": "Pendulum-v1", "max_episode_steps": 10}


def _stored(root: Path, name: str, workflow: type, **settings: Any) -> tuple[RunFolder, Any]:
    """Train a run of this workflow to its end; return its folder and last state."""
    path = f"{workflow.__module__}.{workflow.__name__}"
    config = {**RUN, **SAC_CONFIG, "workflow": path, "env": PENDULUM, "checkpoint_interval": 0, **settings}
    folder = RunFolder.create(root, OmegaConf.create(config), name=name)
    checkpointer = RunCheckpointer(folder.checkpoints)
    state = workflow_from_config(OmegaConf.create(config)).learn(checkpointer=checkpointer)
    return folder, state


def _save(root: Path, run: str) -> None:
    save_replay_of_run(RunSpec(stored=StoredRun(run=run, runs_folder=str(root))))


def test_what_one_run_recorded_another_learns_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, state = _stored(tmp_path, "online", SACWorkflow)
    _save(tmp_path, str(folder.path))
    path = folder.path / "replay.npz"
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [str(path), "128 transitions of gymnax/Pendulum-v1, checkpoint of 160 steps"]
    facts = read_replay_facts(path)
    assert lines[2] == (
        f"{facts['num_episodes']} episodes, return {facts['episode_return_mean']:.2f} +- "
        f"{facts['episode_return_std']:.2f}"
    )
    recorded = read_columns(path, facts)["rewards"]
    np.testing.assert_array_equal(np.sort(recorded), np.sort(np.asarray(state.replay_state.data.rewards).ravel()))

    offline, learned = _stored(
        tmp_path, "offline", TD3BCWorkflow, replay={"load": str(folder.path)}, total_timesteps=20
    )
    assert int(learned.iterations) == 10  # two updates each
    again, progress = restore(
        workflow_from_config(offline.load_config()), RunCheckpointer(offline.checkpoints), 0, "latest"
    )
    assert progress["timesteps"] == 20
    np.testing.assert_array_equal(again.replay_state.data.rewards, learned.replay_state.data.rewards)


def test_what_cannot_be_saved_is_refused_in_words(tmp_path: Path) -> None:
    config = {**RUN, "workflow": "evorl.algorithms.random_agent.RandomAgentWorkflow", "env": PENDULUM}
    folder = RunFolder.create(tmp_path, OmegaConf.create(config), name="random")
    with raises_naming(ValueError, "RandomAgentWorkflow", "replay buffer", "dqn", "sac"):
        _save(tmp_path, str(folder.path))
    with raises_naming(ValueError, "evorl save-replay run=<folder>"):
        _save(tmp_path, "")


def test_settings_without_effect_are_rejected(tmp_path: Path) -> None:
    config = {**RUN, "workflow": "evorl.algorithms.sac.SACWorkflow", "env": PENDULUM}
    folder = RunFolder.create(tmp_path, OmegaConf.create(config), name="sac")
    with raises_naming(ValueError, "eval_episodes", "no effect", "devices"):
        save_replay_of_run(RunSpec(stored=StoredRun(run=str(folder.path))), ["eval_episodes=5"])

"""Runs in environments outside of JAX, from the config to the resumed checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evorl.assembly import workflow_from_config
from evorl.cli.composition import compose_config
from evorl.cli.train import train_from_spec
from evorl.execution.collector import iterate
from evorl.execution.restoration import restore
from evorl.execution.training_loop import NEW_EPISODES
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun
from tests.support.small_workflows import assert_close, assert_identical

SMALL = ["num_envs=2", "rollout_length=4", "agent.network.torso=[8]", "eval_episodes=2", "eval_interval=0"]
SMALL += ["log_interval=8", "checkpoint_interval=0", "recorders.progress=false", "recorders.tensorboard=false"]


def run(tmp_path: Path, name: str, *overrides: str) -> tuple[Any, RunFolder]:
    """Return the last state of a run, and its folder."""
    config = compose_config([*SMALL, f"runs_folder={tmp_path / name}", "compilation_cache=false", *overrides])
    train_from_spec(RunSpec.from_config(config))
    folder = RunFolder.find("latest", str(tmp_path / name))
    workflow = workflow_from_config(folder.load_config(trust=True))
    state, _ = restore(workflow, RunCheckpointer(folder.checkpoints), 0, "latest")
    workflow.close()
    return state, folder


def resumed(tmp_path: Path, name: str, folder: RunFolder, timesteps: int) -> Any:
    stored = StoredRun(resume=str(folder.path), runs_folder=str(tmp_path / name))
    train_from_spec(RunSpec(stored=stored), [f"total_timesteps={timesteps}"])
    workflow = workflow_from_config(folder.load_config(trust=True))
    state, _ = restore(workflow, RunCheckpointer(folder.checkpoints), 0, "latest")
    workflow.close()
    return state


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_simulators_that_can_be_saved_go_on_exactly(agent: str, tmp_path: Path) -> None:
    options = [f"agent={agent}", "env=host/hopper"]
    options += ["num_minibatches=1"] if agent == "ppo" else ["learning_starts=8", "batch_size=8", "replay_capacity=400"]
    _, folder = run(tmp_path, "half", *options, "total_timesteps=64")
    again = resumed(tmp_path, "half", folder, 128)
    assert int(again.iterations) == 128 // 8
    if agent == "sac":  # schedules of PPO depend on the total steps, which differed
        whole, _ = run(tmp_path, "whole", *options, "total_timesteps=128")
        assert_identical(again, whole)
    assert NEW_EPISODES not in folder.log.read_text(encoding="utf-8")


def test_other_simulators_start_new_episodes_and_the_run_says_so(tmp_path: Path) -> None:
    options = ["agent=ppo", "env=gymnasium/CartPole-v1", "num_minibatches=1"]
    half, folder = run(tmp_path, "half", *options, "total_timesteps=64")
    again = resumed(tmp_path, "half", folder, 96)
    assert (again.env_state._internal.episode > half.env_state._internal.episode).all()
    assert int(again.iterations) == 12
    assert NEW_EPISODES in folder.log.read_text(encoding="utf-8")


def test_what_plays_whole_episodes_plays_them_on_the_host() -> None:
    """Population episodes on the host, with recording and normalized observations, equal the results in JAX."""
    network = {"network": {"torso": [4]}}
    small = {"agent": {**network, "normalize_obs": True}, "optimizer": {"name": "openes", "pop_size": 6}}
    path = "evorl.algorithms.neuroevolution.NeuroevolutionWorkflow"
    states = []
    for env in ({"factory": "tests.support.host_envs:cartpole", "max_steps": 20}, {"name": "gymnax/CartPole-v1"}):
        limit = {} if "factory" in env else {"max_episode_steps": 20}
        workflow = workflow_from_config({"workflow": path, "env": {**env, **limit}, "eval_chunk": 3, **small})
        states.append(iterate(workflow, workflow.init(0), 2)[1])
        workflow.close()
    host, device = states
    assert_close(host.agent_state, device.agent_state, 1e-4)
    assert int(host.timesteps.total()) == int(device.timesteps.total())


def test_learners_beside_a_population_and_members_of_pbt_take_part_on_the_host() -> None:
    network = {"network": {"torso": [4]}}
    env = {"factory": "tests.support.host_envs:cartpole", "max_steps": 10}
    inner = {"workflow": "evorl.algorithms.ppo.PPOWorkflow", "num_envs": 2, "rollout_length": 4, "num_minibatches": 1}
    pbt = workflow_from_config(
        {
            "workflow": "evorl.algorithms.pbt.PBTWorkflow",
            "env": env,
            "pop_size": 3,
            "generation_interval": 16,
            "search_space": {"discount": {"low": 0.9, "high": 0.99}},
            "inner": {**inner, "agent": network},
            "eval_episodes": 2,
        }
    )
    metrics, state = iterate(pbt, pbt.init(0), 1)
    assert np.isfinite(jax.tree.leaves(metrics)[0]).all()
    assert state.members.env_state.obs.shape == (3, 2, 4)
    pbt.close()

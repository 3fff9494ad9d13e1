"""Hindsight in whole trainings."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

from evorl.algorithms.dqn import DQNWorkflow
from evorl.config.names import load
from evorl.workflows.workflow import Workflow
from tests.conformance.workflow import WorkflowContract
from tests.support.small_workflows import NUM_ENVS, SAC_CONFIG, arrays

HINDSIGHT = {"replay": {"hindsight": "future"}}
BITS, MAZE = {"name": "bit_flip", "num_bits": 6}, {"name": "point_maze", "max_episode_steps": 10}


class TestContract(WorkflowContract):
    """Of the same promises as without: no key twice, one program, resumed bit for bit, on any number of devices."""

    workflow = DQNWorkflow
    SMALL = {**SAC_CONFIG, **HINDSIGHT}
    env = "bit_flip"
    endless_env = ("bit_flip", 100)


def _workflow(algorithm: str, **changes: Any) -> Workflow:
    config = {**SAC_CONFIG, **HINDSIGHT, "env": BITS if algorithm in ("dqn", "r2d2") else MAZE, **changes}
    if algorithm == "ddpg":  # which is TD3 without its parts
        agent = {**SAC_CONFIG["agent"], "num_critics": 1}
        algorithm, config = "td3", {**config, "agent": agent, "policy_delay": 1}
    return load(f"evorl.algorithms.{algorithm}:{algorithm.upper()}Workflow").build_from_config(config)


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac", "tqc", "dqn"])
def test_every_off_policy_agent_learns_from_hindsight(algorithm: str) -> None:
    """Its networks see the observation and the desired goal, and learning changes them."""
    workflow = _workflow(algorithm)
    state = workflow.init(0)
    first = arrays(state.agent_state.params)
    goals = workflow.env.obs_space.spaces
    num_inputs = goals["observation"].shape[0] + goals["desired_goal"].shape[0]
    widths = {x.shape[-2] for name, x in first.items() if x.ndim >= 2 and ("_0" in name or "layers" in name)}
    assert {num_inputs, num_inputs + 2} & widths
    for _ in range(4):
        metrics, state = workflow.step(state)
    assert all(np.isfinite(x).all() for name, x in arrays(metrics).items() if "episodes" not in name)
    after = arrays(state.agent_state.params)
    assert any((after[name] != first[name]).any() for name in first)


def test_an_update_of_many_batches_never_touches_the_host() -> None:
    workflow = _workflow("sac", updates_per_iteration=64)
    program = jax.jit(workflow.pure_step).lower(jax.eval_shape(workflow.setup, jax.random.key(0))).as_text()
    assert "stablehlo.while" in program
    for call in ("callback", "infeed", "outfeed", "stablehlo.send", "stablehlo.recv"):
        assert call not in program


def test_what_is_learned_from_is_a_goal_of_the_environment() -> None:
    """Rewards of a batch are those that the environment pays on the swapped goal."""
    workflow = _workflow("dqn", replay={"hindsight": "future", "ratio": 1.0}, batch_size=256)
    state = workflow.init(0)
    for _ in range(6):
        _, state = workflow.step(state)
    batch = jax.jit(workflow.draw_batches)(state, jax.random.key(0), 0.0)[0]
    reached = np.all(np.asarray(batch.next_obs.achieved_goal == batch.next_obs.desired_goal), axis=-1)
    assert 0.1 < reached.mean() < 0.9
    np.testing.assert_array_equal(batch.rewards, reached - 1.0)
    np.testing.assert_array_equal(batch.extras.discounts == 0.0, reached)
    np.testing.assert_array_equal(batch.obs.desired_goal, batch.next_obs.desired_goal)
    assert 0.4 < np.asarray(batch.extras.is_relabelled).mean() < 0.6


@pytest.mark.parametrize(
    ("algorithm", "changes", "words"),
    [
        ("sac", {"env": {"name": "Pendulum-v1"}}, "replay.hindsight needs an environment with goals"),
        ("sac", {"env": {**MAZE, "action_repeat": 2}}, "env.action_repeat pays for several steps at once"),
        ("dqn", {"prioritized": True}, "prioritized=true remembers errors"),
        ("dqn", {"replay": {"hindsight": "futur"}}, "Did you mean 'future'"),
        ("dqn", {"replay": {"ratio": -1.0}}, "replay.ratio"),
        ("ppo", {}, "replay says what is drawn out of a replay buffer, and PPOWorkflow has none"),
    ],
)
def test_what_cannot_be_is_told(algorithm: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        _workflow(algorithm, **changes)


def test_sequences_have_no_hindsight() -> None:
    with pytest.raises(ValueError, match="learns from sequences"):
        _workflow("r2d2", replay_capacity=NUM_ENVS * 64)


def test_hindsight_solves_what_nothing_else_does() -> None:
    """Ten bits, of which a random episode hits the goal once in a hundred times."""
    config = {
        "env": {"name": "bit_flip", "num_bits": 10},
        "num_envs": 8,
        "total_timesteps": 16_000,
        "eval_interval": 0,
    }
    success = {}
    for name, hindsight in (("with", HINDSIGHT), ("without", {})):
        workflow = DQNWorkflow.build_from_config({**config, **hindsight})
        success[name] = float(workflow.evaluate(workflow.learn(key=0)).success)
    assert success["with"] >= 0.9
    assert success["without"] <= 0.3

"""Rollouts without learning."""

from __future__ import annotations

import jax
import numpy as np

from evorl.assembly import workflow_from_config


def test_the_agent_stays_as_it_is_and_its_environments_go_on():
    config = {
        "workflow": "benchmarks.speed.collecting.CollectingWorkflow",
        "env": {"library": "gymnax", "name": "CartPole-v1"},
        "num_envs": 2,
        "rollout_length": 3,
        "num_minibatches": 1,
        "agent": {"network": {"torso": [4]}},
    }
    workflow = workflow_from_config(config)
    before = workflow.init(0)
    metrics, after = workflow.step(before)
    jax.tree.map(np.testing.assert_array_equal, after.agent_state, before.agent_state)
    assert (np.asarray(after.env_state.obs) != np.asarray(before.env_state.obs)).all()
    assert metrics.rewards == 1.0
    assert metrics.log_prob < 0.0

"""Requests to an actor, without a process: leaves in, leaves out."""

from __future__ import annotations

import jax
import numpy as np

from evorl.actors.worker import Worker, acting_template, leaves_of, tree_of
from evorl.assembly import build_settings, workflow_from_config
from tests.support.small_workflows import assert_close

CONFIG = {
    "workflow": "evorl.algorithms.ppo.PPOWorkflow",
    "env": {"name": "gymnax/CartPole-v1"},
    "num_envs": 2,
    "rollout_length": 4,
    "num_minibatches": 1,
    "agent": {"network": {"torso": [8]}},
    "env_chunk": None,
}


def test_trees_are_the_same_after_the_journey() -> None:
    tree = {"key": jax.random.key(3), "x": np.arange(3.0), "none": None}
    leaves = leaves_of(tree)
    assert all(type(leaf) is np.ndarray for leaf in leaves)
    back = tree_of(leaves, jax.eval_shape(lambda: tree))
    assert_close(back["x"], tree["x"])
    np.testing.assert_array_equal(jax.random.key_data(back["key"]), jax.random.key_data(tree["key"]))


def test_the_learners_environments_go_on_where_the_learner_says_the_actors_own_where_they_were() -> None:
    workflow, worker = workflow_from_config(CONFIG), Worker(build_settings(CONFIG))
    acting, env_template, template = acting_template(workflow)
    del acting
    state = workflow.init(0)
    acting, _ = jax.jit(lambda state: workflow.acting(state))(state)
    start = leaves_of(state.env_state)
    trajectory, after, restarts = worker.answer(leaves_of(acting), start, None)
    assert not restarts
    again, *_ = worker.answer(leaves_of(acting), start, None)
    assert_close(trajectory, again)
    first = tree_of(trajectory, template)
    assert first.rewards.shape == (4, 2)
    assert_close(tree_of(after, env_template).info.steps, np.array([4, 4]))

    own, none, _ = worker.answer(leaves_of(acting), None, np.asarray(jax.random.key_data(jax.random.key(5))))
    assert none == []
    further = tree_of(worker.answer(leaves_of(acting), None, None)[0], template)
    assert_close(further.obs[0], tree_of(own, template).next_obs[-1])
    worker.close()

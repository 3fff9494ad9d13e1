"""The whole state of a clone is its parent's except random keys; its hyperparameters are the parent's, varied."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.execution import programs
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.small_workflows import arrays, inner_config, small

SCORES = np.array([3.0, 1.0, 2.0, 0.0], np.float32)  # member 3 becomes a clone of member 0


@functools.cache
def _selected() -> tuple[Any, Any, Any]:
    """Return a population whose members differ in every number, before and after a selection."""
    inner = inner_config("ppo")
    inner["agent"] = {**inner["agent"], "normalize_obs": True}
    workflow: Any = small("pbt", "Pendulum-v1", inner=inner, resample_probability=0.0, perturbation_factor=1.1)
    state = workflow.init(0)

    def unlike(x: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) or x.dtype == jnp.bool_:
            return x
        return x + jnp.arange(1, 5, dtype=x.dtype).reshape(4, *[1] * (x.ndim - 1))

    state = state.replace(members=jax.tree.map(unlike, state.members))
    extras = PyTreeDict(metrics=PyTreeDict(loss=np.zeros(4, np.float32)), healthy=np.ones(4, bool))
    batch = SampleBatch(rewards=SCORES, extras=extras)
    return workflow, state, jax.jit(lambda w, s, b: w.update(s, b)[1])(workflow, state, batch)


def test_a_clone_has_the_whole_state_of_its_parent_except_keys() -> None:
    _, before, after = _selected()
    np.testing.assert_array_equal(after.history.parents[0], [0, 1, 2, 0])
    old, new = arrays(before.members), arrays(after.members)
    assert old.keys() == new.keys()
    parts = {path.split("'")[1] for path in old}
    assert {"agent_state", "opt_state", "env_state", "key"} <= parts
    assert any("obs_preprocessor_state" in path for path in old)
    keys = {
        jax.tree_util.keystr(path)
        for path, x in jax.tree_util.tree_leaves_with_path(before.members)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    }
    for path, x in old.items():
        parents = [0, 1, 2, 3] if path in keys else [0, 1, 2, 0]
        np.testing.assert_array_equal(new[path], x[parents], err_msg=path)
        if path not in keys and x.dtype != np.bool_:
            assert (x[0] != x[3]).any(), f"{path} would be equal without a copy"


def test_a_clone_varies_the_settings_of_its_parent_and_winners_keep_theirs() -> None:
    """Each setting of the clone is one step up or down from that of its parent, within the bounds."""
    workflow, before, after = _selected()
    space, old, new = workflow.search_space, np.asarray(before.hyper_parameters), np.asarray(after.hyper_parameters)
    np.testing.assert_array_equal(new[:3], old[:3])
    logarithmic, span = np.asarray(space.logarithmic), np.asarray(space.high - space.low)
    up, down = (np.where(logarithmic, old[0] * 1.1**sign, old[0] + sign * 0.1 * span) for sign in (1, -1))
    candidates = np.clip(np.stack([up, down]), space.low, space.high)
    assert np.isclose(new[3], candidates, rtol=1e-5).any(axis=0).all()
    assert not np.isclose(old[3], old[0], rtol=0.2).all()  # the clone's own settings would give other numbers


def test_clones_go_on_in_their_own_simulators() -> None:
    """Simulators on the host are not cloned: every stored transition obeys the physics, and none is joined to another
    episode. The position of CartPole moves by its velocity times 0.02.
    """
    env = {"factory": "tests.support.host_envs:cartpole", "max_episode_steps": 50}
    inner = inner_config("dqn") | {"num_envs": 2, "rollout_length": 4}
    space = {"tau": {"low": 0.01, "high": 0.1, "scale": "log"}}
    workflow = small("pbt", env, inner=inner, search_space=space, generation_interval=40)
    _, state = programs.iterate_program(workflow, workflow.init(0), 3)
    assert (state.history.parents[:3] != np.arange(4)).any()
    replay = state.members.replay_state
    assert int(replay.size.min()) == int(replay.size.max()) == 3 * 20
    obs, next_obs, dones = (np.asarray(x)[:, :60] for x in (replay.data.obs, replay.data.next_obs, replay.data.dones))
    np.testing.assert_allclose(next_obs[..., 0], obs[..., 0] + 0.02 * obs[..., 1], atol=1e-5)
    goes_on = (next_obs[:, :-1] == obs[:, 1:]).all(axis=-1)
    assert (goes_on | dones[:, :-1].astype(bool)).all()

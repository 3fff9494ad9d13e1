"""Observations and actions converted outside of the environment equal its wrappers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.agents.random_actions import random_actions
from evorl.envs import create_env
from evorl.envs.wrapped_row import WrappedRow
from tests.support.toy_envs import MASKED

ENVS: list[dict[str, Any]] = [
    {"name": "Pendulum-v1", "history": 3, "observed": [2, 0]},
    {"name": "Pendulum-v1", "max_episode_steps": 20, "reward_scale": 0.1},
    {"name": "gymnax/Catch-bsuite", "history": 2},
    {"name": "goal/point_maze", "flatten_obs": True},
    {"factory": MASKED, "flatten_obs": True, "history": 2},
]


@pytest.mark.parametrize("config", ENVS, ids=lambda c: "-".join(map(str, c.values())).split(":")[-1])
def test_a_stream_is_seen_and_acted_on_as_through_the_wrappers(config: dict[str, Any]) -> None:
    env = create_env(config)
    row = WrappedRow(env)
    inner = row.inner
    assert (row.obs_space, row.action_space) == (inner.obs_space, inner.action_space)

    @jax.jit
    def both(key: jax.Array) -> tuple[Any, Any]:
        wrapped, bare, memory = env.env.reset(key), inner.reset(key), row.initial_memory()
        seen, expected = [], []
        for i in range(3):
            obs, memory = row.seen(bare.obs, memory)
            seen.append(obs)
            expected.append(wrapped.obs)
            action = jax.tree.map(lambda x: x[0], random_actions(env.action_space, jax.random.key(i), 1))
            wrapped, bare = env.env.step(wrapped, action), inner.step(bare, row.done(action, bare.obs))
        return (seen, bare.reward * config.get("reward_scale", 1.0)), (expected, wrapped.reward)

    ours, theirs = both(jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)


def test_actions_reach_the_ends_of_their_range() -> None:
    env = create_env("Pendulum-v1", action_repeat=2)
    row = WrappedRow(env)
    actions = [np.asarray(row.done(np.asarray([x], np.float32), np.zeros(3, np.float32))) for x in (-3.0, 0.5, 1.0)]
    np.testing.assert_allclose(actions, [[-2.0], [1.0], [2.0]])
    assert row.action_repeat == 2
    assert row.initial_memory() is None

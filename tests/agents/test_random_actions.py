"""The random agent samples uniformly, in any space."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.random_actions import RandomAgent, random_actions
from evorl.envs import Box, DictSpace, Discrete, Space
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict

KEY = jax.random.key(0)
BOX = Box(-2.0, 3.0, (2,))


@pytest.mark.parametrize("space", [BOX, Discrete(3), DictSpace({"a": BOX, "b": Discrete(3)})], ids=repr)
def test_the_random_agent_acts_in_any_space(space: Space) -> None:
    agent = RandomAgent()
    state = agent.init(Box(0.0, 1.0, (3,)), space, KEY)
    assert jax.tree.leaves(state) == []
    batch = SampleBatch(obs=jnp.zeros((5, 3)))
    actions, extras = jax.jit(agent.compute_actions)(state, batch, KEY)
    jax.tree.map(
        lambda x, one: np.testing.assert_equal((x.shape, x.dtype), ((5, *one.shape), one.dtype)), actions, space.zeros()
    )
    assert extras == {}
    again, _ = agent.evaluate_actions(state, batch, jax.random.PRNGKey(0))  # legacy keys are accepted too
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), again, actions)


def test_random_actions_are_uniform_over_the_space() -> None:
    actions = np.asarray(random_actions(BOX, KEY, 2000))
    assert (actions >= -2.0).all()
    assert (actions <= 3.0).all()
    np.testing.assert_allclose(actions.mean(axis=0), 0.5, atol=0.15)
    counts = np.bincount(np.asarray(random_actions(Discrete(4), KEY, 2000)), minlength=4)
    np.testing.assert_allclose(counts, 500, atol=100)


def test_a_key_for_each_row_draws_that_row() -> None:
    keys = jax.random.split(KEY, 3)
    rows = random_actions(BOX, keys, 3)
    np.testing.assert_array_equal(rows[1], BOX.sample(keys[1]))


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    obs = PyTreeDict(action_mask=jnp.broadcast_to(jnp.array([True, False, True, True]), (3000, 4)))
    counts = np.bincount(np.asarray(random_actions(Discrete(4), KEY, 3000, obs)), minlength=4)
    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], 1000, atol=120)
    keys = jax.random.split(KEY, 3)
    few = PyTreeDict(action_mask=obs.action_mask[:3])
    one = PyTreeDict(action_mask=obs.action_mask[:1])
    assert random_actions(Discrete(4), keys, 3, few)[1] == random_actions(Discrete(4), keys[1:2], 1, one)[0]


@pytest.mark.parametrize("space", [BOX, Box(-1.0, 1.0, (4, 2)), DictSpace({"a": BOX})])
@pytest.mark.parametrize("num_choices", [1, 2, 4])
def test_a_mask_applies_only_to_discrete_actions(space: Space, num_choices: int) -> None:
    obs = PyTreeDict(observation=jnp.zeros((3, 5)), action_mask=jnp.ones((3, num_choices), jnp.bool_))
    jax.tree.map(np.testing.assert_array_equal, random_actions(space, KEY, 3, obs), random_actions(space, KEY, 3))

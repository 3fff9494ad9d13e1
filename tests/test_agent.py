"""The baseline agent, and what all learning agents share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import (
    AgentState,
    RandomAgent,
    action_distribution,
    allowed_only,
    observation_ndim,
    preprocess,
    random_actions,
    select_observation,
)
from evorl.envs import Box, DictSpace, Discrete, Space, TupleSpace
from evorl.envs.action_spaces import ActionSpaces, describe_kinds
from evorl.ops.normalization import init_statistics, normalize, update_statistics
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict

KEY = jax.random.key(0)
BOX = Box(-2.0, 3.0, (2,))
OBS = PyTreeDict(image=jnp.arange(8.0).reshape(4, 2), speed=jnp.ones((4, 3)))


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
    again, _ = agent.evaluate_actions(state, batch, jax.random.PRNGKey(0))  # legacy keys are taken too
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


def test_observations_are_normalised_and_chosen_in_one_place() -> None:
    plain = AgentState(params=())
    np.testing.assert_array_equal(preprocess(plain, OBS.image), OBS.image)
    np.testing.assert_array_equal(preprocess(plain, OBS, "speed"), OBS.speed)
    statistics = update_statistics(init_statistics(jax.tree.map(lambda x: x[0], OBS)), OBS)
    seen = preprocess(plain.replace(obs_preprocessor_state=statistics), OBS, "image")
    np.testing.assert_array_equal(seen, normalize(statistics, OBS)["image"])
    assert not np.allclose(seen, OBS.image)
    with pytest.raises(ValueError, match=r"no entry 'speeed'.*Did you mean 'speed'"):
        preprocess(plain, OBS, "speeed")


def test_a_mask_forbids_actions_and_is_not_read() -> None:
    mask = jnp.array([[1, 0, 1], [0, 0, 0]], jnp.int8)
    obs = PyTreeDict(observation=jnp.arange(4.0).reshape(2, 2), action_mask=mask)
    outputs = jnp.arange(6.0).reshape(2, 3)
    masked = allowed_only(outputs, obs)
    np.testing.assert_array_equal(masked, [[0.0, -jnp.inf, 2.0], [3.0, 4.0, 5.0]])  # all forbidden: nothing is
    assert allowed_only(outputs, obs.observation) is outputs
    assert allowed_only(outputs, PyTreeDict(observation=obs.observation)) is outputs
    with pytest.raises(ValueError, match=r"action_mask has shape \(2, 3\).*outputs have \(2, 4\)"):
        allowed_only(jnp.zeros((2, 4)), obs)
    assert select_observation(obs, None) is obs.observation
    assert set(select_observation(obs | {"more": mask}, None)) == {"observation", "more"}
    assert select_observation(obs, "action_mask") is mask
    assert observation_ndim(DictSpace({"grid": BOX, "action_mask": Box(0, 1, (3,), jnp.int8)}), None) == 1


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    obs = PyTreeDict(action_mask=jnp.broadcast_to(jnp.array([True, False, True, True]), (3000, 4)))
    counts = np.bincount(np.asarray(random_actions(Discrete(4), KEY, 3000, obs)), minlength=4)
    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], 1000, atol=120)
    keys = jax.random.split(KEY, 3)
    few = PyTreeDict(action_mask=obs.action_mask[:3])
    one = PyTreeDict(action_mask=obs.action_mask[:1])
    assert random_actions(Discrete(4), keys, 3, few)[1] == random_actions(Discrete(4), keys[1:2], 1, one)[0]


def test_the_distribution_suits_the_action_space() -> None:
    categorical = action_distribution(Discrete(3))
    assert (categorical.is_discrete, categorical.num_parameters) == (True, 3)
    squashed = action_distribution(BOX)
    assert (squashed.is_discrete, squashed.size, squashed.num_parameters) == (False, 2, 4)
    assert squashed.kind == "tanh_normal"
    assert action_distribution(BOX, squashed=False).kind == "normal"
    assert action_distribution(Box(-jnp.inf, jnp.inf, (2,))).kind == "normal"


@pytest.mark.parametrize("space", [TupleSpace((BOX, Discrete(2))), Box(-1.0, 1.0, (2, 2))], ids=repr)
def test_a_space_it_cannot_act_in_is_refused_describe_kinds(space: Space) -> None:
    with pytest.raises(ValueError, match=r"over Discrete spaces and flat Boxes, but this action space is"):
        action_distribution(space)


def test_every_kind_of_action_space_has_words() -> None:
    for kinds in range(1, ActionSpaces.ANY.value + 1):
        assert describe_kinds(ActionSpaces(kinds))
    assert (
        describe_kinds(ActionSpaces.BOUNDED_BOXES | ActionSpaces.DISCRETE) == "Discrete spaces and flat, bounded Boxes"
    )


def test_the_rank_of_an_observation() -> None:
    space = DictSpace({"image": Box(0.0, 1.0, (4, 4, 3)), "speed": Box(0.0, 1.0, (2,))})
    assert observation_ndim(space, "image") == 3
    assert observation_ndim(space, "speed") == 1
    assert observation_ndim(Discrete(3), None) == 0

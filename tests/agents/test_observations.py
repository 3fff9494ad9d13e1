"""Observations are selected, normalized and masked in one place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState
from evorl.agents.observations import allowed_only, observation_ndim, preprocess, select_observation
from evorl.envs import Box, DictSpace, Discrete
from evorl.ops.normalization import init_statistics, normalize, update_statistics
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming

BOX = Box(-2.0, 3.0, (2,))
OBS = PyTreeDict(image=jnp.arange(8.0).reshape(4, 2), speed=jnp.ones((4, 3)))


def test_observations_are_normalized_and_chosen_in_one_place() -> None:
    plain = AgentState(params=())
    np.testing.assert_array_equal(preprocess(plain, OBS.image), OBS.image)
    np.testing.assert_array_equal(preprocess(plain, OBS, "speed"), OBS.speed)
    statistics = update_statistics(init_statistics(jax.tree.map(lambda x: x[0], OBS)), OBS)
    seen = preprocess(plain.replace(obs_preprocessor_state=statistics), OBS, "image")
    np.testing.assert_array_equal(seen, normalize(statistics, OBS)["image"])
    assert not np.allclose(seen, OBS.image)
    with raises_naming(ValueError, "entry 'speeed'", "'speed'"):
        preprocess(plain, OBS, "speeed")


def test_a_mask_forbids_actions_and_is_not_read() -> None:
    mask = jnp.array([[1, 0, 1], [0, 0, 0]], jnp.int8)
    obs = PyTreeDict(observation=jnp.arange(4.0).reshape(2, 2), action_mask=mask)
    outputs = jnp.arange(6.0).reshape(2, 3)
    masked = allowed_only(outputs, obs)
    np.testing.assert_array_equal(masked, [[0.0, -jnp.inf, 2.0], [3.0, 4.0, 5.0]])  # no legal action: unmasked
    assert allowed_only(outputs, obs.observation) is outputs
    assert allowed_only(outputs, PyTreeDict(observation=obs.observation)) is outputs
    with raises_naming(ValueError, "action_mask", "(2, 3)", "(2, 4)"):
        allowed_only(jnp.zeros((2, 4)), obs)
    assert select_observation(obs, None) is obs.observation
    assert set(select_observation(obs | {"more": mask}, None)) == {"observation", "more"}
    assert select_observation(obs, "action_mask") is mask
    assert observation_ndim(DictSpace({"grid": BOX, "action_mask": Box(0, 1, (3,), jnp.int8)}), None) == 1


def test_the_rank_of_an_observation() -> None:
    space = DictSpace({"image": Box(0.0, 1.0, (4, 4, 3)), "speed": Box(0.0, 1.0, (2,))})
    assert observation_ndim(space, "image") == 3
    assert observation_ndim(space, "speed") == 1
    assert observation_ndim(Discrete(3), None) == 0


def test_an_entry_is_chosen_by_its_key() -> None:
    obs = PyTreeDict(state=jnp.ones(3), privileged=jnp.zeros(5))
    assert select_observation(obs, "state").shape == (3,)
    assert select_observation(obs, None) is obs
    with raises_naming(ValueError, "entry 'stat'", "'state'", "Available: privileged, state"):
        select_observation(obs, "stat")
    with raises_naming(ValueError, "one array", "observation key 'state'"):
        select_observation(jnp.ones(3), "state")

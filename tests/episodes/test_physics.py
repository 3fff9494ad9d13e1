"""Positions of bodies in a saved episode, and episodes of other bodies."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.envs import create_env
from evorl.episodes.physics import PHYSICS, physics_in, physics_of
from evorl.episodes.saved_episode import SavedEpisode
from tests.support.errors import raises_naming

PLAIN = SavedEpisode({}, {"obs": np.zeros((3, 4))})


@pytest.mark.parametrize("names", PHYSICS)
def test_positions_and_velocities_are_found_by_the_names_of_mujoco_and_brax(names: tuple[str, str]) -> None:
    arrays = {name: np.full((3, 2), float(i)) for i, name in enumerate(names)}
    found = physics_of(SavedEpisode({}, {**PLAIN.arrays, **arrays}))
    assert found is not None
    assert [(values == i).all() for i, values in enumerate(found)] == [True, True]


def test_one_of_the_two_alone_is_not_enough() -> None:
    assert physics_of(PLAIN) is None
    assert physics_of(SavedEpisode({}, {"qpos": np.zeros((3, 2)), "qd": np.zeros((3, 2))})) is None


def test_what_has_no_bodies_or_other_ones_is_refused() -> None:
    with raises_naming(ValueError, "positions of bodies"):
        physics_in(PLAIN, create_env("gymnax/CartPole-v1"))
    env = create_env("host/inverted_pendulum")
    with raises_naming(ValueError, "positions of bodies"):
        physics_in(PLAIN, env)
    other = SavedEpisode({}, {"qpos": np.zeros((3, 9)), "qvel": np.zeros((3, 9))})
    with raises_naming(ValueError, "coordinates of shape [3, 9]", "velocities of shape [3, 9]", "2 coordinates and 2"):
        physics_in(other, env)
    fitting = SavedEpisode({}, {"qpos": np.zeros((3, 2)), "qvel": np.ones((3, 2))})
    assert [values.sum() for values in physics_in(fitting, env)] == [0.0, 6.0]
    env.close()

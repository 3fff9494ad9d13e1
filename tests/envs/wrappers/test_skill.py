"""Skills: sampled per episode, part of every observation, constant until the episode ends."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.envs import AutoresetMode, create_env
from evorl.envs.vector import VectorEnv
from tests.conformance.env import VectorEnvContract
from tests.support.errors import raises_naming

NUM_SKILLS = 3
CARTPOLE = {"library": "gymnax", "name": "CartPole-v1"}


class TestSkills(VectorEnvContract):
    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        return create_env(
            CARTPOLE, parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=25, skills=NUM_SKILLS
        )


def skills_of(obs: jax.Array) -> np.ndarray:
    one_hot = np.asarray(obs)[..., -NUM_SKILLS:]
    np.testing.assert_array_equal(one_hot.sum(axis=-1), 1.0)
    return one_hot.argmax(axis=-1)


def test_each_episode_draws_a_skill_and_keeps_it() -> None:
    env = create_env(CARTPOLE, parallel=64, skills=NUM_SKILLS)
    plain = create_env(CARTPOLE, parallel=64)
    assert env.num_skills == NUM_SKILLS
    assert plain.num_skills == 0
    state, twin = env.reset(jax.random.key(0)), plain.reset(jax.random.key(0))
    counts = np.bincount(skills_of(state.obs), minlength=NUM_SKILLS)
    assert counts.min() > 8, "64 uniform draws of 3"
    changed = 0
    for _ in range(40):
        before = skills_of(state.obs)
        actions = np.ones(64, np.int32)
        state, twin = env.step(state, actions), plain.step(twin, actions)
        np.testing.assert_array_equal(state.obs[:, :-NUM_SKILLS], twin.obs)  # equal to the environment without skills
        np.testing.assert_array_equal(skills_of(state.info.next_obs), before)
        differs = skills_of(state.obs) != before
        assert not (differs & ~np.asarray(state.done)).any()
        changed += differs.sum()
    assert changed > 50, "about two thirds of some 200 new episodes"


def test_one_skill_can_be_chosen() -> None:
    env = create_env(CARTPOLE, parallel=8, skills=NUM_SKILLS, skill=2)
    np.testing.assert_array_equal(skills_of(env.reset(jax.random.key(0)).obs), 2)


@pytest.mark.parametrize(
    ("env", "options", "parts"),
    [
        ("gymnax/CartPole-v1", {"skills": 1}, ("env.skills", "got 1", "at least 2")),
        ("gymnax/CartPole-v1", {"skills": 3, "skill": 3}, ("env.skill", "got 3", "from 0 to 2")),
        ("gymnax/CartPole-v1", {"skill": 1}, ("env.skill=1", "env.skills")),
        ("goal/point_maze", {"skills": 4}, ("env.skills", "vector of floats")),
        ("gymnax/Breakout-MinAtar", {"skills": 4}, ("env.skills", "vector of floats")),
        ("gymnax/CartPole-v1", {"skills": 4, "observed": [0, 1]}, ("env.observed", "env.skills")),
        ("gymnax/CartPole-v1", {"skills": 4, "history": 2}, ("env.history=2", "env.skills", "env.history=1")),
        ("gymnasium/CartPole-v1", {"skills": 4}, ("env.skills", "JAX environment")),
    ],
)
def test_unusable_skills_are_refused(env: str, options: dict[str, int], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        create_env(env, **options)

"""Random steps, and faults detected in their numbers."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from evorl.agents.random_actions import random_actions
from evorl.envs import create_env
from evorl.envs.env_trial import Trial, try_env
from evorl.envs.stack import wrap_env
from tests.support import faulty_envs
from tests.support.errors import assert_names, raises_naming
from tests.support.faulty_envs import Walk

KEY = jax.random.key(3)


def tried(name: str) -> Trial:
    return try_env(wrap_env(getattr(faulty_envs, name)(), parallel=2, max_episode_steps=5), 12, KEY, random_actions)


def test_a_sound_one_has_no_faults() -> None:
    trial = try_env(wrap_env(Walk(), parallel=2, max_episode_steps=5), 12, KEY, random_actions)
    assert (trial.problems, trial.notes) == ((), ())
    assert trial.num_steps == 24
    assert trial.lengths.tolist() == [5] * 4  # two per copy
    np.testing.assert_allclose(trial.returns, -0.05, rtol=1e-5)
    np.testing.assert_allclose(trial.rewards, -0.01, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RewardNan", "The reward became NaN in step "),
        ("StartsDone", "An episode was done after reset"),
        ("Outside", "The observation after a step is outside of its space: its number[0] is "),
        ("RandomOfNumpy", "RandomOfNumpy.step gives a different program each time it is compiled: it reads NumPy's"),
        ("ReadsInfo", "ReadsInfo.step reads env_state.info, which wrappers change"),
        ("ReadsObs", "ReadsObs.step reads env_state.obs, which wrappers change"),
        ("ObservesObs", "ObservesObs.step reads env_state.obs, which wrappers change"),
    ],
)
def test_faults_of_numbers(name: str, message: str) -> None:
    (problem,) = tried(name).problems
    assert problem.startswith(message)


def test_what_may_be_meant_so_is_noted() -> None:
    trial = tried("Still")
    assert trial.problems == ()
    assert [note.partition(":")[0] for note in trial.notes] == [
        "Every episode starts from the same observation",
        "Every reward was 0",
    ]
    endless = try_env(wrap_env(Walk(), parallel=1), 2, KEY, random_actions)
    assert endless.notes == (
        "No episode ended in this test: set env.max_episode_steps for training, unless episodes should be longer.",
    )


class Leaving(gymnasium.Env):
    """Environment whose observations leave their space."""

    observation_space: Any = gymnasium.spaces.Box(0.0, 2.0, (1,))
    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == 4, False, {}


def test_simulators_are_tried_too() -> None:
    env = create_env({"factory": f"{__name__}:Leaving"}, parallel=2)
    try:
        (problem,) = try_env(env, 4, KEY, random_actions).problems
    finally:
        env.close()
    assert_names(problem, "number[0] is 3", "0 to 2")


@pytest.mark.parametrize("num_steps", [0, -1, 2.5])
def test_a_trial_has_steps(num_steps: Any) -> None:
    with raises_naming(ValueError, "num_steps", f"got {num_steps}"):
        try_env(wrap_env(Walk(), parallel=2, max_episode_steps=5), num_steps, KEY, random_actions)

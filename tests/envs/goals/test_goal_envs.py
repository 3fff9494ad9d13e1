"""Goal environments by name."""

from __future__ import annotations

import pytest

from evorl.envs import create_env
from evorl.envs.goals.goal_envs import ENV_NAMES, create_wrapped_goal_env
from tests.support.errors import raises_naming


@pytest.mark.parametrize("name", ENV_NAMES)
def test_equal_descriptions_are_equal_environments(name: str) -> None:
    assert create_env(f"goal/{name}") == create_env(name, library="goal")
    assert create_env(f"goal/{name}").goal_task is not None
    assert create_wrapped_goal_env(name, max_episode_steps=None) == create_env(f"goal/{name}")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"name": "bit_flop", "library": "goal"}, ("bit_flop", "'bit_flip'")),
        ({"name": "goal/bit_flip", "num_bit": 3}, ("'num_bit'", "'num_bits'")),
        ({"name": "goal/point_maze", "backend": "mjx"}, ("goal/point_maze", "'backend'")),
    ],
)
def test_what_is_not_there_is_told(config: dict, words: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *words):
        create_env(config)

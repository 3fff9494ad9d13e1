"""``evorl check-env``: what it prints, and what it refuses."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from evorl.cli.env_check import check_env_from_arguments
from evorl.envs import Box, Discrete, TupleSpace
from tests.support.action_env import ActionEnv
from tests.support.faulty_envs import Walk

MODULE = Walk.__module__
FEW = ["steps=6", "num_envs=2"]
THEIRS = {
    "mixture": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0.0, 1.0, (2,))}),
    "whole": spaces.Box(-(2**62), 2**62, (1,), np.int64),
    "choices": spaces.MultiDiscrete([200, 200]),
}
OURS = {
    "mixture": TupleSpace([Discrete(2), Box(0.0, 1.0, (1,))]),
    "whole": Box(0, 2**25, (1,), np.int64),
}


class HostActions(gymnasium.Env):
    """A simulator with one of the action spaces of ``THEIRS``."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, space: str) -> None:
        self.action_space = THEIRS[space]

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {}


def jax_actions(space: str) -> ActionEnv:
    """An environment in JAX with one of the action spaces of ``OURS``."""
    return ActionEnv(OURS[space])


def test_a_sound_one_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    check_env_from_arguments([f"{MODULE}:Walk", *FEW])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{MODULE}:Walk"
    assert said[1:3] == [
        "  observations  Box(low=-1.0, high=1.0, shape=(1,), dtype=float32)",
        "  actions       Discrete(2)",
    ]
    assert "  played        12 random steps, 4 episodes ended" in said  # half of the steps is the time limit
    assert said[-1] == "These steps found no errors."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no environment is given: name the function or class"),
        (["a:b", "c:d"], "no environment is given"),
        ([f"{MODULE}:Wlak"], f"there is no function of {MODULE} 'Wlak'. Did you mean 'Walk'?"),
        ([f"{MODULE}:Walk", "step=3"], "there is no option of evorl check-env 'step'. Did you mean 'steps'?"),
        ([f"{MODULE}:Walk", "steps=0"], "steps must be a positive whole number"),
        ([f"{MODULE}:Walk", "seed=a"], "seed must be a whole number from 0 to 2^32"),
        ([f"{MODULE}:Walk", "arguments=3"], "arguments must be a mapping"),
        ([f"{MODULE}:Walk", "arguments={size: 3}"], f"there is no option of {MODULE}:Walk 'size'"),
        ([f"{MODULE}:NoActions"], "NoActions has no action_space"),
        ([f"{MODULE}:Growing"], f"{MODULE}:Growing: The state's env_state is weak int32[] after"),
        ([f"{MODULE}:NoFlags"], f"{MODULE}:NoFlags has 2 faults:\n  1. NoFlags.reset returns info without"),
        ([f"{MODULE}:Outside", *FEW], f"{MODULE}:Outside: The observation after a step is outside of its space"),
    ],
)
def test_faults_are_told(arguments: list[str], said: str) -> None:
    with pytest.raises(ValueError) as error:
        check_env_from_arguments(arguments)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("factory", "space", "said"),
    [
        ("HostActions", "mixture", "choices (Discrete, MultiDiscrete, MultiBinary) or in Boxes, alone"),
        ("HostActions", "whole", "at most 16,777,216 integer values"),
        ("HostActions", "choices", "40,000 combinations"),
        ("jax_actions", "mixture", "choices (Discrete, MultiDiscrete, MultiBinary) or in Boxes, alone"),
        ("jax_actions", "whole", "at most 16,777,216 integer values"),
    ],
)
def test_an_action_space_in_which_no_agent_acts_is_a_fault(
    factory: str, space: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError) as error:
        check_env_from_arguments([f"{__name__}:{factory}", f"arguments={{space: {space}}}", *FEW])
    assert f"{__name__}:{factory}: No agent can learn to act here: " in str(error.value)
    assert said in str(error.value)
    assert "no errors" not in capsys.readouterr().out

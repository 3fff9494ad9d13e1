"""``evorl check-env``: output and errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from evorl.cli.env_check import check_env_from_arguments
from evorl.envs import Box, Discrete, TupleSpace
from tests.support.errors import assert_names, raises_naming
from tests.support.faulty_envs import Walk
from tests.support.toy_envs import ActionEnv

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


class FaultySteps(HostActions):
    """A simulator whose ``step`` returns other values than a reward, two flags and a dict."""

    def __init__(self, reward: Any = 1.0, terminated: Any = False, fails: bool = False) -> None:
        self.action_space = spaces.Discrete(2)
        self._outcome, self._fails = (reward, terminated), fails

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        if self._fails:
            raise ZeroDivisionError("no ground")
        return np.zeros(1, np.float32), *self._outcome, False, {}


class OneAllowed(HostActions):
    """A simulator that raises an error for every action except one, which its mask allows."""

    observation_space: Any = spaces.Dict({"x": HostActions.observation_space, "action_mask": spaces.MultiBinary(9)})

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(9)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return {"x": np.zeros(1, np.float32), "action_mask": np.eye(9, dtype=np.int8)[4]}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action == 4, "a forbidden action"
        return self.reset()[0], 1.0, False, False, {}


def jax_actions(space: str) -> ActionEnv:
    """An environment in JAX with one of the action spaces of ``OURS``."""
    return ActionEnv(OURS[space])


def test_a_sound_one_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    check_env_from_arguments([f"{MODULE}:Walk", *FEW])
    message = capsys.readouterr().out.splitlines()
    assert message[0] == f"{MODULE}:Walk"
    assert message[1:3] == [
        "  observations  Box(low=-1.0, high=1.0, shape=(1,), dtype=float32)",
        "  actions       Discrete(2)",
    ]
    assert "  played        12 random steps, 4 episodes ended" in message  # the time limit is half of the steps
    assert message[-1] == "No errors were found in these steps."


def test_large_returns_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["max_episode_steps=2", "arguments={reward: 50000.0}"]
    check_env_from_arguments([f"{__name__}:FaultySteps", *FEW, *options])
    assert_names(capsys.readouterr().out, "mean return 100,000.0 (100,000.0 to", "rewards       50,000.0 to 50,000.0")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("environment", "function or class", "got none")),
        (["a:b", "c:d"], ("environment", "function or class", "got a:b c:d")),
        ([f"{MODULE}:Wlak"], (f"function of {MODULE}", "'Wlak'", "'Walk'")),
        ([f"{MODULE}:Walk", "step=3"], ("option of evorl check-env", "'step'", "'steps'")),
        ([f"{MODULE}:Walk", "steps=0"], ("steps", "got 0")),
        ([f"{MODULE}:Walk", "seed=a"], ("seed", "2^32", "got 'a'")),
        ([f"{MODULE}:Walk", "arguments=3"], ("arguments", "mapping", "got 3")),
        ([f"{MODULE}:Walk", "arguments={size: 3}"], (f"option of {MODULE}:Walk", "'size'")),
        ([f"{MODULE}:NoActions"], ("NoActions", "action_space")),
        ([f"{MODULE}:Growing"], (f"{MODULE}:Growing", "env_state", "int32[]")),
        ([f"{MODULE}:NoFlags"], (f"{MODULE}:NoFlags", "2 problems: 1. NoFlags.reset")),
        ([f"{MODULE}:Outside", *FEW], (f"{MODULE}:Outside", "observation", "outside of its space")),
    ],
)
def test_faults_are_told(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        check_env_from_arguments(arguments)


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("reward: one", ("reward", "single number", "'one'")),
        ("reward: [1.0]", ("reward", "single number")),
        ("reward: .nan", ("reward", "not finite")),
        ("terminated: maybe", ("terminated", "True or False", "'maybe'")),
        ("fails: true", ("environment 0", "failed in step", "ZeroDivisionError: no ground")),
    ],
)
def test_a_fault_of_a_simulator_is_one_line(fault: str, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, f"{__name__}:FaultySteps: ", *parts) as error:
        check_env_from_arguments([f"{__name__}:FaultySteps", f"arguments={{{fault}}}", *FEW])
    assert "\n" not in str(error.value)


def walk_of_any(**arguments: Any) -> Walk:
    assert arguments == {"a": 1}
    return Walk()


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [(f"{MODULE}:Walk", "history: 2"), (f"{__name__}:walk_of_any", "a: 1, history: 2")],
)
def test_the_contract_is_checked_with_options_and_with_any_arguments(
    factory: str, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_env_from_arguments([factory, f"arguments={{{arguments}}}", *FEW])
    assert_names(capsys.readouterr().out, "contract      satisfied", "4 episodes ended")


@pytest.mark.parametrize(("more", "limit"), [([], 2), (["max_episode_steps=3"], 3)])
def test_a_limit_among_the_arguments_applies_without_the_option(more: list[str], limit: int) -> None:
    trial = check_env_from_arguments([f"{MODULE}:Walk", "arguments={max_episode_steps: 2}", *FEW, *more])
    assert trial.lengths.tolist() == [limit] * len(trial.lengths)


def test_random_actions_respect_the_mask(capsys: pytest.CaptureFixture[str]) -> None:
    check_env_from_arguments([f"{__name__}:OneAllowed", *FEW])
    assert_names(capsys.readouterr().out, "No errors")


@pytest.mark.parametrize(
    ("factory", "space", "said"),
    [
        ("HostActions", "mixture", ("Discrete, MultiDiscrete, MultiBinary", "Boxes")),
        ("HostActions", "whole", ("16,777,216",)),
        ("HostActions", "choices", ("40,000 combinations",)),
        ("jax_actions", "mixture", ("Discrete, MultiDiscrete, MultiBinary", "Boxes")),
        ("jax_actions", "whole", ("16,777,216",)),
    ],
)
def test_an_action_space_in_which_no_agent_acts_is_a_fault(
    factory: str, space: str, said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with raises_naming(ValueError, f"{__name__}:{factory}", *said):
        check_env_from_arguments([f"{__name__}:{factory}", f"arguments={{space: {space}}}", *FEW])
    assert "no errors" not in capsys.readouterr().out

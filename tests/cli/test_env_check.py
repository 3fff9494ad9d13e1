"""``evorl check-env``: output and errors."""

from __future__ import annotations

import pytest

from evorl.cli.env_check import check_env_from_arguments
from tests.support.errors import raises_naming
from tests.support.faulty_envs import Walk

MODULE = Walk.__module__
FEW = ["steps=6", "num_envs=2"]


def test_a_sound_one_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    check_env_from_arguments([f"{MODULE}:Walk", *FEW])
    message = capsys.readouterr().out.splitlines()
    assert message[0] == f"{MODULE}:Walk"
    assert message[1:3] == [
        "  observations  Box(low=-1.0, high=1.0, shape=(1,), dtype=float32)",
        "  actions       Discrete(2)",
    ]
    assert "  played        12 random steps, 4 episodes ended" in message  # half of the steps is the time limit
    assert message[-1] == "These steps found no errors."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ("environment", "function or class")),
        (["a:b", "c:d"], ("environment", "function or class")),
        ([f"{MODULE}:Wlak"], (f"function of {MODULE}", "'Wlak'", "'Walk'")),
        ([f"{MODULE}:Walk", "step=3"], ("option of evorl check-env", "'step'", "'steps'")),
        ([f"{MODULE}:Walk", "steps=0"], ("steps", "got 0")),
        ([f"{MODULE}:Walk", "seed=a"], ("seed", "2^32", "got 'a'")),
        ([f"{MODULE}:Walk", "arguments=3"], ("arguments", "mapping", "got 3")),
        ([f"{MODULE}:Walk", "arguments={size: 3}"], (f"option of {MODULE}:Walk", "'size'")),
        ([f"{MODULE}:NoActions"], ("NoActions", "action_space")),
        ([f"{MODULE}:Growing"], (f"{MODULE}:Growing", "env_state", "int32[]")),
        ([f"{MODULE}:NoFlags"], (f"{MODULE}:NoFlags", "2 faults: 1. NoFlags.reset")),
        ([f"{MODULE}:Outside", *FEW], (f"{MODULE}:Outside", "observation", "outside of its space")),
    ],
)
def test_faults_are_told(arguments: list[str], said: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *said):
        check_env_from_arguments(arguments)

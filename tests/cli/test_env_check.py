"""``evorl check-env``: output and errors."""

from __future__ import annotations

import pytest

from evorl.cli.env_check import check_env_from_arguments
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
        ([], "no environment was given: pass the function or class"),
        (["a:b", "c:d"], "no environment was given"),
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

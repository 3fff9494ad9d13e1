"""Unknown flags, words without a name and excluding flags are rejected with the setting to write instead."""

from __future__ import annotations

import pytest

from evorl.cli.flags import refuse_unknown_flags
from tests.support.errors import raises_naming


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--seed", "3"], ("--seed", "seed=3")),
        (["--total-timesteps=1000", "agent=ppo"], ("--total-timesteps", "total_timesteps=1000")),
        (["--seed", "agent=ppo"], ("--seed", "seed=VALUE")),
        (["--seed", "--plan"], ("--seed", "seed=VALUE")),
        (["--title", "my run"], ("'title=my run'",)),
        (["-n", "4"], ("-n", "n=4")),
        (["--run", "runs/a"], ("--run", "run=runs/a")),
        (["--run=runs/a"], ("--run", "run=runs/a")),
        (["ppo", "cartpole"], ("'ppo'", "agent=ppo env=cartpole")),
        (["ppo", "sac"], ("'ppo' 'sac'", "such as")),
        (["nothing", "seed=3"], ("'nothing'", "name=value")),
        (["--cfg", "job", "--plan"], ("--cfg", "--plan", "one of them")),
        (["-c", "job", "-m", "agent=ppo,sac"], ("--cfg", "remove -m")),
    ],
)
def test_the_setting_that_is_meant_is_suggested(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        refuse_unknown_flags(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "agent=ppo,sac", "--config-dir", "mine", "--plan"],
        ["--config-dir=mine", "-c", "job", "--resolve", "+a=1", "~b", "title=--x"],
        ["--info", "plugins"],
        ["--multi", "seed=0,1"],
        ["--cfg", "job", "--config-dir", "a=b"],
        [],
    ],
)
def test_flags_of_hydra_pass(arguments: list[str]) -> None:
    refuse_unknown_flags(arguments)

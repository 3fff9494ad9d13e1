"""Runs of a sweep's command line, and the hint about parallel runs."""

from __future__ import annotations

import pytest
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError

from evorl.cli.arguments import is_launched_sweep, is_sweep
from evorl.cli.combinations import (
    combinations,
    describe_parallel_runs,
    naming_setting,
    split_arguments,
    split_launcher,
)
from tests.support.errors import raises_naming


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["-m", "seed=0,1"], True),
        (["seed=0,1", "--multirun", "--config-dir", "mine"], True),
        (["seed=0"], False),
        (["-m", "hydra/launcher=joblib"], False),
        (["-m", "hydra.sweep.dir=x"], True),
        (["-m", "hydra.sweep.dir=x", "hydra.sweep.subdir=y"], False),
        (["-m", "--cfg", "job"], False),
    ],
)
def test_sweepers_and_launchers_of_hydra_are_left_to_it(arguments: list[str], answer: bool) -> None:
    assert is_sweep(arguments) is answer


def test_every_combination_is_a_job() -> None:
    jobs = list(combinations(["agent=ppo,sac", "+x='a,b'", "seed=range(2)", "total_timesteps=10", "seed=3,4"]))
    assert [job for job, _ in jobs] == [
        [f"agent={agent}", "+x='a,b'", f"seed={seed}", "total_timesteps=10"]
        for agent in ("ppo", "sac")
        for seed in (3, 4)
    ]
    assert jobs[1][1] == {"agent": "ppo", "seed": "4"}
    assert list(combinations(["seed=1"])) == [(["seed=1"], {})]
    with raises_naming(ValueError, "discount=interval(0,1)", "discount=1,2,3"):
        list(combinations(["discount=interval(0,1)"]))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["agent=a2c", "discount=0.9,0.99", "optimizer.learning_rate=1e-3,1e-2", "seed=2,3,4"],
            "agent=a2c seed=2 num_seeds=3 'sweep={discount: [0.9, 0.99], optimizer.learning_rate: [0.001, 0.01]}'",
        ),
        (["seed=range(4)"], "evorl train num_seeds=4"),
        (["env=cartpole,acrobot"], None),
        (["optimizer=adam,sgd", "seed=0,1"], None),
        (["seed=0,7"], None),
        (["devices=1,2", "seed=0,1"], None),
        (["discount=0.9"], None),
        (["env=user", "env.factory=mine:Env", "seed=0,1"], None),
        (["env=gymnasium/CartPole-v1", "seed=0,1"], None),
        (["agent.normalize_advantages=true,false"], None),
        (["seed=0,1", "num_seeds=3"], None),
        (["seed=0,1", "sweep={discount: [0.9, 0.99]}"], None),
        (["discount=0.9,0.99", "+sweep.gae_lambda=[0.9, 0.95]"], None),
        (["seed=0,1", "search={over: {discount: {low: 0.9, high: 0.99}}}"], None),
        (["seed=0,1", "init_from.run=latest"], "init_from.run=latest num_seeds=2"),
        (["discount=0.9,0.99", "init_from.run=latest"], None),
        (["discount=0.9,0.99", "recorders.wandb=true"], None),
        (["discount=0.9,0.99", "stop.at=475"], None),
        (["agent=ec/openes", "optimizer.lr_schedule.init=0.1,0.2"], None),
    ],
)
def test_runs_that_one_program_could_train_say_so(overrides: list[str], words: str | None) -> None:
    message = describe_parallel_runs(list(combinations(overrides)))
    assert (message is None) == (words is None)
    assert words is None or (message is not None and message.endswith(words))


def test_flags_are_those_of_every_job() -> None:
    assert split_arguments(["-m", "a=1", "--config-dir", "x", "b=2"]) == (["a=1", "b=2"], ["--config-dir", "x"])


def test_names_of_own_parts_are_shown_as_they_are_written() -> None:
    jobs = list(combinations(["optimizer=adam,my_parts:sgd", "title='a b',c"]))
    assert [setting["optimizer"] for _, setting in jobs[::2]] == ["adam", "my_parts:sgd"]
    assert jobs[0][1]["title"] == "'a b'"


@pytest.mark.parametrize(
    ("arguments", "is_launched"),
    [
        (["-m", "seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], True),
        (["-m", "seed=0,1", "hydra/launcher=joblib", "hydra.sweep.dir=here"], True),
        (["-m", "seed=0,1", "hydra/launcher=joblib", "hydra/sweeper=optuna"], False),
        (["seed=0", "hydra/launcher=joblib"], False),
        (["-m", "seed=0,1"], False),
    ],
)
def test_a_launcher_may_start_the_runs_of_a_sweep(arguments: list[str], is_launched: bool) -> None:
    assert is_launched_sweep(arguments) is is_launched
    of_launcher, others = split_launcher(arguments)
    assert sorted([*of_launcher, *others]) == sorted(arguments)
    assert all("launcher" in argument for argument in of_launcher)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("it is wrong"),
        OSError("it is wrong"),
        ConfigCompositionException("it is wrong"),
        OverrideParseException("a", "it is wrong"),
        MissingConfigException("it is wrong"),
        ConfigAttributeError("it is wrong"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_a_composition_name_the_setting(error: Exception) -> None:
    with raises_naming(ValueError, "agent.nope=1: ", "it is wrong"), naming_setting({"agent.nope": "1"}):
        raise error


def test_other_errors_are_passed_on() -> None:
    with pytest.raises(KeyError), naming_setting({"seed": "1"}):
        raise KeyError("seed")

"""Settings on the command line: the run that they select, and their effect on a stored run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from evorl.assembly import workflow_from_config
from evorl.cli.arguments import names_a_run
from evorl.cli.composition import compose_config
from evorl.cli.overrides import changed_spec, read_changes, stored_run_settings
from evorl.config.gate import scope
from evorl.config.values import dotted_keys
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun
from evorl.training.preparation import refuse_excessive_sizes
from tests.support.errors import raises_naming

PPO = "evorl.algorithms.ppo:PPOWorkflow"
STORED = {
    "total_timesteps": 1,
    "optimizer": {"name": "adam", "learning_rate": 0.1},
    "learner": {"actor_optimizer": {"name": "adam"}},
    "env": {"name": "a"},
}


def test_a_stored_run_is_changed() -> None:
    arguments = ["resume=x", "total_timesteps=2e3", "optimizer=sgd", "learner.actor_optimizer=radam", "+env.size=3"]
    assert read_changes(dotted_keys(STORED), arguments, allowed=None) == {
        "total_timesteps": 2000.0,
        "optimizer.name": "sgd",
        "learner.actor_optimizer.name": "radam",
        "env.size": 3,
    }
    assert read_changes(dotted_keys(STORED), ["optimizer={name: ars}"], allowed=None) == {"optimizer": {"name": "ars"}}
    assert read_changes(dotted_keys(STORED), ['+title="a,b"'], allowed=None) == {"title": "a,b"}


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("agent=sac", ("agent is determined", "run folder")),
        ("inner=sac", ("inner is determined", "run folder")),
        ("optimiser=sgd", ("setting of the run", "'optimiser'", "'optimizer'")),
        ("~total_timesteps", ("setting of the run", "total_timesteps")),
        ("total_timesteps=1,2", ("total_timesteps=1,2", "one value", "stored run")),
        ("total_timesteps=range(3)", ("total_timesteps=range(3)", "one value")),
        ("total_timesteps=interval(1,2)", ("total_timesteps=interval(1,2)", "one value")),
        ("+title=a,b", ("+title=a,b", "quote", '+title="a,b"')),
    ],
)
def test_what_a_stored_run_has_not_is_refused(argument: str, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        read_changes(dotted_keys(STORED), [argument], allowed=None)


def test_a_schedule_of_a_stored_run_accepts_other_entries() -> None:
    stored = {**STORED, "optimizer": {"learning_rate": {"start": 1e-3, "end": 0.0}}}
    changes = read_changes(dotted_keys(stored), ["optimizer.learning_rate.steps=100"], allowed=None)
    assert changes == {"optimizer.learning_rate.steps": 100}
    for argument in ("optimizer.steps=100", "steps=100", "optimizer.learning_rate.end.steps=100"):
        with raises_naming(ValueError, "setting of the run", argument.partition("=")[0]):
            read_changes(dotted_keys(stored), [argument], allowed=None)


@pytest.mark.parametrize("argument", ["env.name=Acrobot-v1", "env.library=mjx", "best_over=2"])
@scope()  # later tests may load code
def test_a_stored_run_keeps_its_environment_and_score(argument: str, tmp_path: Path) -> None:
    env = {"name": "CartPole-v1", "library": "gymnax"}
    folder = RunFolder.create(tmp_path, {"workflow": PPO, "env": env}, "own")
    with raises_naming(ValueError, argument, "run folder"):
        changed_spec(folder, False, [argument])
    assert changed_spec(folder, False, ["env.name=CartPole-v1", "best_over=1"])[0].env == env
    folder = RunFolder.create(tmp_path, {"workflow": "mine:Mine", "env": {"name": "mine:Env-v0"}}, "foreign")
    renamed = ["workflow=mine:Renamed", "env.name=mine:Renamed-v0"]
    assert changed_spec(folder, False, renamed)[0].env == {"name": "mine:Renamed-v0"}


def test_which_run_is_meant() -> None:
    assert names_a_run(["tau=1", "resume=latest"], "resume")
    assert not names_a_run(["resume=null", "run=x"], "resume")
    assert stored_run_settings(["run=x", "env=hopper", "seed=3"]) == StoredRun(run="x")
    with raises_naming(ValueError, "-m does not apply", "stored run"):
        stored_run_settings(["-m", "run=x"])
    with raises_naming(ValueError, "trust=true,false", "one value"):
        stored_run_settings(["run=x", "trust=true,false"])


VALUES = ["abc", "", -1, 0.5, float("nan"), float("inf"), 10**400, None, True, [], [1], {}, {"a": 1}, 1e300]


@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=ppo", "env=cartpole"],
        ["agent=r2d2", "env=gymnasium/CartPole-v1"],
        ["agent=erl/erl", "learner=sac", "env=pendulum"],
    ],
)
def test_no_wrong_value_of_any_setting_ends_in_a_traceback(overrides: list[str]) -> None:
    base: Any = OmegaConf.to_container(compose_config(overrides))
    sentences: list[str] = []
    for number, key in enumerate(dotted_keys(base)):
        if key in ("replay.load", "learner.replay.load", "agent.network"):
            continue
        some = [VALUES[(5 * number + shift) % len(VALUES)] for shift in (0, 4)]
        for value in VALUES if key in ("env.library", "env.name", "env.factory", "workflow") else some:
            config = OmegaConf.create(base)
            try:
                OmegaConf.update(config, key, value, merge=False)
                spec = RunSpec.from_config(config)
                refuse_excessive_sizes(spec)
                workflow_from_config(spec.workflow_config()).env.close()
            except ValueError as error:
                sentences.append(str(error))
            except Exception as error:
                pytest.fail(f"{key}={value!r}: {type(error).__name__}: {error}")
    assert len(sentences) > 50
    assert not [sentence for sentence in sentences if "\n" in sentence or len(sentence) > 2000]

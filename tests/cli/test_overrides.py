"""Settings of a run: options of a stored run pass Hydra, and Weights & Biases takes a flag or a mapping."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from evorl.cli.composition import compose_config
from evorl.cli.errors import dotted_keys
from evorl.cli.init_from import warm_start_from
from evorl.cli.overrides import (
    apply_overrides,
    check_run_settings,
    checkpoint_rules,
    names_a_run,
    run_settings,
    wandb_settings,
)
from evorl.cli.size_limits import refuse_hopeless_sizes
from evorl.cli.stored_run import build_workflow, check_folders


def _config(**changes: Any) -> Any:
    recorders = {"progress": True, "tensorboard": True, "wandb": changes.pop("wandb", False)}
    return OmegaConf.create(
        {"seed": 0, "checkpoints_kept": 3, "compilation_cache": True, "recorders": recorders, **changes}
    )


STORED = {
    "total_timesteps": 1,
    "optimizer": {"name": "adam", "learning_rate": 0.1},
    "learner": {"actor_optimizer": {"name": "adam"}},
    "env": {"name": "a"},
}


def test_a_stored_run_is_changed() -> None:
    settings = OmegaConf.create(STORED)
    arguments = ["resume=x", "total_timesteps=2e3", "optimizer=sgd", "learner.actor_optimizer=radam", "+env.size=3"]
    given = apply_overrides(settings, arguments, allowed=None)
    assert given == {"total_timesteps", "optimizer.name", "learner.actor_optimizer.name", "env.size"}
    assert settings == {
        "total_timesteps": 2000.0,
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "learner": {"actor_optimizer": {"name": "radam"}},
        "env": {"name": "a", "size": 3},
    }
    apply_overrides(settings, ["optimizer={name: ars}"], allowed=None)
    assert settings.optimizer == {"name": "ars"}


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("agent=sac", "agent is taken from the run folder"),
        ("inner=sac", "inner is taken from the run folder"),
        ("optimiser=sgd", "there is no setting of the run 'optimiser'. Did you mean 'optimizer'"),
        ("~total_timesteps", "there is no setting of the run"),
    ],
)
def test_what_a_stored_run_has_not_is_refused(argument: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        apply_overrides(OmegaConf.create(STORED), [argument], allowed=None)


def test_which_run_is_meant() -> None:
    usual = OmegaConf.create({"resume": None, "run": None, "runs_folder": "runs", "trust": False, "seed": 0})
    assert names_a_run(["tau=1", "resume=latest"], "resume")
    assert not names_a_run(["resume=null", "run=x"], "resume")
    settings = run_settings(["run=x", "env=hopper", "seed=3"], usual)
    assert settings == {"resume": None, "run": "x", "runs_folder": "runs", "trust": False}
    with pytest.raises(ValueError, match="-m does not go with a run folder"):
        run_settings(["-m", "run=x"], usual)


def test_wandb_is_a_flag_or_a_mapping() -> None:
    assert wandb_settings(_config(wandb=False)) is None
    assert wandb_settings(_config(wandb=None)) is None
    on = wandb_settings(_config(wandb=True))
    assert on is not None
    assert list(on) == ["config"]
    assert on["config"]["seed"] == 0
    named = wandb_settings(_config(wandb={"project": "p", "mode": "online"}))
    assert named is not None
    assert (named["project"], named["mode"]) == ("p", "online")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": 2**32}, "seed must be a whole number"),
        ({"checkpoints_kept": 0}, "checkpoints_kept must be a positive whole number"),
        ({"best_checkpoints_kept": 0}, "best_checkpoints_kept must be a positive whole number"),
        ({"best_over": 1.5}, "best_over must be a positive whole number"),
        (
            {"checkpoint_seconds": -1},
            "checkpoint_seconds must be a number of at least 0, got -1. It is a number of seconds, 0 for never",
        ),
        (
            {"render_interval": -1},
            "render_interval must be a number of at least 0, got -1. It is a number of environment steps",
        ),
        ({"render_interval": True}, "render_interval must be a number of at least 0, got True. It is"),
        ({"compilation_cache": 3}, "compilation_cache must be true, false or a folder, got 3"),
        ({"wandb": "online"}, "recorders.wandb must be true, false or a mapping"),
        ({"wandb": {"mod": "online"}}, "here is no key of recorders.wandb 'mod'. Did you mean 'mode'"),
    ],
)
def test_nonsense_is_refused(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_run_settings(_config(**changes))


def test_rules_of_checkpoints_are_those_of_before_where_nothing_is_said() -> None:
    assert checkpoint_rules(_config()) == {"best_to_keep": 1, "score_over": 1, "seconds": 0}
    config = _config(best_checkpoints_kept=3.0, best_over=5, checkpoint_seconds=60)
    check_run_settings(config)
    assert checkpoint_rules(config) == {"best_to_keep": 3, "score_over": 5, "seconds": 60}


def test_whole_floats_pass() -> None:
    config = _config(checkpoints_kept=2.0)
    check_run_settings(config)
    assert config.checkpoints_kept == 2


VALUES = ["abc", "", -1, 0.5, float("nan"), float("inf"), 10**400, None, True, [], [1], {}, {"a": 1}, 1e300]
# What a run is built from is checked while it is built; these belong to the run itself.
REFUSED = {
    "seed": [value for value in VALUES if value is not None] + [None],
    "title": [-1, 0.5, True, [], {"a": 1}, 10**400],
    "trust": ["abc", "", -1, None, 3, [], {}],
    "runs_folder": ["", None, 3, [], {}],
    "compilation_cache": ["", 3, None, [], {}],
    "deterministic": ["abc", 1, None, []],
    "eval_at_start": ["abc", 1, None, []],
    "checkpoints_kept": [0, 0.5, None, True, "a", 10**400],
    "best_over": [0, 0.5, None, True, "a", 10**400],
    "checkpoint_seconds": [-1, float("nan"), float("inf"), "a", None, True, 10**400],
    "render_interval": [-1, float("nan"), float("inf"), "a", None, True, 10**400],
    "recorders": ["abc", 3, [1], {"a": 1}],
    "init_from": [3, True, [1], {"which": -1}, {"which": "first"}, {"parts": 3}, {"run": 3}],
}


def check(config: Any) -> None:
    """Check a config as a training does before it builds anything."""
    check_folders(config)
    check_run_settings(config)
    warm_start_from(config, None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_settings_of_the_run_are_checked_by_type_and_range(name: str, value: Any) -> None:
    config = compose_config(())
    OmegaConf.update(config, name, value, merge=False, force_add=True)
    with pytest.raises(ValueError, match=name):
        check(config)


@pytest.mark.parametrize(("text", "seed"), [("1e3", 1000), ("+7", 7), ("4_294_967_295", 2**32 - 1)])
def test_a_seed_may_be_written_as_any_whole_number(text: str, seed: int) -> None:
    config = compose_config([f"seed={text}"])
    check(config)
    assert config.seed == seed
    assert type(config.seed) is int


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
        for value in (VALUES[(5 * number + shift) % len(VALUES)] for shift in (0, 4)):
            config = OmegaConf.create(base)
            try:
                OmegaConf.update(config, key, value, merge=False)
                check(config)
                refuse_hopeless_sizes(config)
                build_workflow(config).env.close()
            except ValueError as error:
                sentences.append(str(error))
            except Exception as error:
                pytest.fail(f"{key}={value!r}: {type(error).__name__}: {error}")
    assert len(sentences) > 50
    assert not [sentence for sentence in sentences if "\n" in sentence or len(sentence) > 2000]

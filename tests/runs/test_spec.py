"""Settings of a run: defaults, checks, kinds and plain form."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from evorl.cli.composition import compose_config
from evorl.cli.settings import run_comments
from evorl.runs.spec import RunKind, RunSpec
from evorl.runs.spec_parts import CheckpointSettings
from tests.support.config_files import composed
from tests.support.errors import raises_naming


@pytest.mark.parametrize("overrides", [["agent=ppo"], ["agent=erl/erl", "learner=sac", "env=pendulum", "seed=7"]])
def test_a_composed_config_is_kept_whole(overrides: list[str]) -> None:
    config = OmegaConf.to_container(composed(*overrides), resolve=True)
    spec = RunSpec.from_config(config)
    assert spec.as_config() == config
    assert RunSpec.from_config(spec.as_config()) == spec


def test_the_defaults_are_those_of_the_command_line() -> None:
    config: Any = OmegaConf.to_container(compose_config(), resolve=True)
    defaults = RunSpec().as_config()
    assert {key: config[key] for key in defaults} == defaults


def test_every_setting_has_a_comment() -> None:
    comments = run_comments()
    nested = {"init_from": RunSpec().init_from, "recorders": RunSpec().recorders, "evaluation": RunSpec().evaluation}
    inner = {f"{name}.{key}" for name in nested for key in RunSpec().as_config()[name]}
    assert {key for key in RunSpec.keys() | inner if not comments.get(key)} == set()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, RunKind.TRAINING),
        ({"sweep": {"discount": [0.9, 0.99]}}, RunKind.SWEEP),
        ({"search": {"trials": 3}}, RunKind.SEARCH),
        ({"parameters": {"mode": "fifo"}}, RunKind.PARAMETER_SERVER),
        ({"env": {"library": "remote", "name": "simulator"}}, RunKind.REMOTE),
    ],
)
def test_the_kind_follows_from_the_settings(config: dict[str, Any], kind: RunKind) -> None:
    assert RunSpec.from_config(config).kind is kind


def test_a_name_alone_is_a_mapping_of_the_environment() -> None:
    assert RunSpec(workflow={"env": "CartPole-v1"}).env == {"name": "CartPole-v1"}
    assert RunSpec(workflow={"env": {"library": "brax"}}).env == {"library": "brax"}
    assert RunSpec().env == {}


def test_a_run_is_of_one_kind() -> None:
    with raises_naming(ValueError, "sweep and search"):
        assert RunSpec.from_config({"sweep": {"a": [1]}, "search": {"trials": 1}}).kind


def test_changed_settings_are_checked_and_leave_the_others() -> None:
    spec = RunSpec.from_config({"seed": 1, "agent": {"epsilon": {"start": 1.0}}})
    changed = spec.changed({"agent.epsilon.start": 0.5, "num_seeds": 3, "recorders.wandb": True})
    assert changed.workflow == {"agent": {"epsilon": {"start": 0.5}}}
    assert (changed.seed, changed.num_seeds, changed.recorders.wandb) == (1, 3, True)
    assert spec.workflow == {"agent": {"epsilon": {"start": 1.0}}}
    with raises_naming(ValueError, "num_seeds", "got 0"):
        spec.changed({"num_seeds": 0})


def test_a_name_changes_the_name_of_a_part_and_keeps_its_settings() -> None:
    """``optimizer: rmsprop`` in a sweep is short for ``optimizer.name``, as on the command line."""
    spec = RunSpec.from_config({"optimizer": {"name": "adam", "learning_rate": 2.5e-3}, "agent": {"cell": {"size": 8}}})
    changed = spec.changed({"optimizer": "rmsprop", "agent.cell": "gru"})
    assert changed.workflow["optimizer"] == {"name": "rmsprop", "learning_rate": 2.5e-3}
    assert changed.workflow["agent"] == {"cell": "gru"}  # no part with a name: replaced


def test_the_workflow_is_built_from_its_keys_and_few_of_the_run() -> None:
    config = RunSpec.from_config({"seed": 3, "trust": True, "agent": {"a": 1}}).workflow_config()
    assert set(config) == RunSpec.keys("builds") | {"agent"}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"seed": 1.5}, ("seed", "integer", "got 1.5")),
        ({"seed": 2**32}, ("seed", "integer", f"got {2**32}")),
        ({"seed": 2**32 - 1, "num_seeds": 2}, (f"seed={2**32 - 1}", "num_seeds=2", "smaller seed")),
        ({"seed": 2**32 - 9, "num_seeds": 10}, ("num_seeds=10",)),
        ({"checkpoints_kept": 0}, ("checkpoints_kept", "got 0")),
        ({"best_checkpoints_kept": 0}, ("best_checkpoints_kept", "got 0")),
        ({"best_over": 1.5}, ("best_over", "got 1.5")),
        (
            {"checkpoint_seconds": -1},
            ("checkpoint_seconds", "at least 0, got -1", "0 disables"),
        ),
        (
            {"render_interval": -1},
            ("render_interval", "at least 0, got -1", "environment steps"),
        ),
        ({"render_interval": True}, ("render_interval", "at least 0, got True")),
        ({"compilation_cache": 3}, ("compilation_cache", "folder, got 3")),
        ({"recorders": {"wandb": "online"}}, ("recorders.wandb", "true, false", "'online'")),
        ({"recorders": {"wandb": {"mod": "online"}}}, ("key of recorders.wandb", "'mod'", "'mode'")),
    ],
)
def test_nonsense_is_refused(changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        RunSpec.from_config(changes)


@pytest.mark.parametrize("value", [False, None])
def test_wandb_is_off(value: Any) -> None:
    assert RunSpec.from_config({"recorders": {"wandb": value}}).recorders.wandb is False


def test_whole_floats_are_whole_numbers() -> None:
    assert RunSpec.from_config({"seed": 2**32 - 10, "num_seeds": 10}).num_seeds == 10
    spec = RunSpec.from_config({"checkpoints_kept": 2.0, "best_over": 5, "checkpoint_seconds": 60})
    assert spec.checkpoints == CheckpointSettings(checkpoints_kept=2, best_over=5, checkpoint_seconds=60.0)
    assert type(spec.checkpoints.checkpoints_kept) is int


VALUES = ["abc", "", -1, 0.5, float("nan"), float("inf"), 10**400, None, True, [], [1], {}, {"a": 1}, 1e300]
# Parts of a run are checked while they are built; these settings belong to the run itself.
REFUSED = {
    "seed": [value for value in VALUES if value is not None] + [None],
    "title": [-1, 0.5, True, [], {"a": 1}, 10**400],
    "trust": ["abc", "", -1, None, 3, [], {}],
    "runs_folder": ["", None, 3, [], {}],
    "compilation_cache": ["", 3, None, [], {}],
    "deterministic": ["abc", 1, None, []],
    "precision": ["abc", "bfloat16", "HIGH", 1, None, []],
    "eval_at_start": ["abc", 1, None, []],
    "checkpoints_kept": [0, 0.5, None, True, "a", 10**400],
    "best_over": [0, 0.5, None, True, "a", 10**400],
    "checkpoint_seconds": [-1, float("nan"), float("inf"), "a", None, True, 10**400],
    "render_interval": [-1, float("nan"), float("inf"), "a", None, True, 10**400],
    "stop": ["abc", 3, [1], {"a": 1}, {"at": "high"}, {"patience": 0}, {"patience": 1.5}, {"hours": 0}],
    "recorders": ["abc", 3, [1], {"a": 1}],
    "init_from": [3, True, [1], {"which": -1}, {"which": "first"}, {"parts": 3}, {"run": 3}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_settings_of_the_run_are_checked_by_type_and_range(name: str, value: Any) -> None:
    config = composed()
    OmegaConf.update(config, name, value, merge=False, force_add=True)
    with raises_naming(ValueError, name):
        RunSpec.from_config(config)


@pytest.mark.parametrize(("text", "seed"), [("1e3", 1000), ("+7", 7), ("4_294_967_295", 2**32 - 1)])
def test_a_seed_may_be_written_as_any_whole_number(text: str, seed: int) -> None:
    spec = RunSpec.from_config(compose_config([f"seed={text}"]))
    assert spec.seed == seed
    assert type(spec.seed) is int

"""Untrusted run folders: no command or function executes code named by their configs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import evorl
from evorl.algorithms.ppo import PPOWorkflow
from evorl.assembly import workflow_from_config
from evorl.cli.config_tree import config_folder
from evorl.config import gate
from evorl.config.gate import ForeignCodeError
from evorl.envs import create_env
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from tests.strangers.conftest import Refused
from tests.support.errors import raises_naming
from tests.support.stranger_code import StrangerCode, stranger_code

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "train": ("resume=",),
    "serve": ("resume=",),
    "evaluate": ("run=",),
    "save-replay": ("run=",),
    "render": ("run=",),
    "export": ("run=", "format=numpy"),
    "play": ("run=",),
    "act": ("run=", "bind=127.0.0.1:0"),
}
NAMES: Mapping[str, dict[str, Any]] = {
    "pettingzoo": {"env": {"library": "pettingzoo", "name": "os:system", "command": "COMMAND"}},
    "pettingzoo in one text": {"env": "pettingzoo/os:system"},
    "gymnasium": {"env": {"library": "gymnasium", "name": "stranger:Env-v0"}},
    "gymnasium in one text": {"env": "gymnasium/stranger:Env-v0"},
    "gymnasium in processes": {"env": {"library": "gymnasium", "name": "stranger:3D-v0", "vectorization": "async"}},
    "pettingzoo, a package of data sets": {
        "env": {"library": "pettingzoo", "name": "minari:delete_dataset", "dataset_id": "theirs"}
    },
    "gymnasium, a package of data sets": {"env": {"library": "gymnasium", "name": "minari:Env-v0"}},
    "a recurrent cell": {"agent": {"network": {"recurrent": {"name": "stranger:make"}}}},
    "an activation in a layer": {"agent": {"network": {"torso": [{"dense": {"activation": "stranger:make"}}]}}},
    "factory": {"env": {"factory": "os:system", "command": "COMMAND"}},
    "factory of evorl": {"env": {"factory": "evorl.cli.main:train"}},
    "goal_task": {"env": {"library": "gymnasium", "name": "FetchReach-v4", "goal_task": "stranger:make"}},
    "goal_setter": {"env": {"library": "goal", "name": "bit_flip", "goal_setter": "stranger:Anything"}},
    "goal_setter with settings": {
        "env": {"library": "goal", "name": "bit_flip", "goal_setter": {"name": "stranger:Anything"}}
    },
    "goal_setter within another": {
        "env": {
            "library": "goal",
            "name": "bit_flip",
            "goal_setter": {"name": "chained", "first": {"name": "stranger:make"}},
        }
    },
    "workflow": {"workflow": "stranger.Anything"},
    "workflow in evorl": {"workflow": "evorl.cli.main.train"},
    "inner workflow": {"inner": {"workflow": "stranger.Anything"}},
    "learner's environment": {"learner": {"env": {"factory": "stranger:make"}}},
    "optimizer": {"optimizer": {"name": "stranger:make"}},
    "network": {"agent": {"network": {"torso": "stranger:make"}}},
    "sweep": {"sweep": {"env.factory": ["stranger:make"]}},
    "search": {"search": {"over": {"env.goal_setter": ["stranger:make"]}, "trials": 1}},
    "programs": {"compilation_cache": "compiled"},
    "a program of EnvPool": {"env": {"library": "envpool", "name": "CartPole-v1", "base_path": "./vizdoom"}},
    "a file of MuJoCo": {"env": {"library": "gymnasium", "name": "Ant-v5", "xml_file": "../ant.xml"}},
    "trust": {"trust": True, "env": {"factory": "stranger:make"}},
}


def filled(node: Any, command: str) -> Any:
    """Return a config with ``COMMAND`` replaced by the command."""
    if isinstance(node, dict):
        return {name: filled(value, command) for name, value in node.items()}
    return command if node == "COMMAND" else node


def store(root: Path, changes: Mapping[str, Any], name: str = "theirs") -> Path:
    """Create a run folder of PPO on CartPole with an attacker's changes."""
    config = {
        key: value
        for key, value in OmegaConf.load(config_folder() / "config.yaml").items()
        if key not in ("defaults", "hydra")
    }
    config |= {"compilation_cache": False, "workflow": "evorl.algorithms.ppo.PPOWorkflow"}
    config |= {"env": {"library": "gymnax", "name": "CartPole-v1"}, "devices": 1}
    return RunFolder.create(root, {**config, **changes}, name).path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_executes_what_a_config_names(
    command: str, name: str, tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    folder = store(tmp_path, filled(NAMES[name], stranger.command))
    before = sorted(tmp_path.rglob("*"))
    which, *others = COMMANDS[command]
    message = refused(command, f"{which}{folder}", *others)
    if command == "serve":  # serve accepts only runs with remote simulators, and checks nothing else here
        assert "evorl train resume=" in message
    else:
        assert "outside evorl" in message
        assert "trust=true" in message
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", NAMES)
def test_no_function_executes_what_a_config_names(name: str, tmp_path: Path, stranger: StrangerCode) -> None:
    folder = store(tmp_path, filled(NAMES[name], stranger.command))
    readers: tuple[Callable[[], Any], ...] = (
        lambda: evorl.load_policy(folder),
        lambda: evorl.render(run=folder),
        lambda: evorl.export_policy(run=folder, format="numpy"),
        lambda: evorl.train(resume=str(folder)),
        RunFolder(folder).load_config,
    )
    for read in readers:
        with raises_naming(RunFolderError, "execute code", "outside evorl"):
            read()


# The config reader detects neither: Gymnasium's wrapper would call it, MuJoCo would read a file of this name.
@pytest.mark.parametrize("part", ["workflow", "copy", "merged", "environment", "class"])
def test_a_workflow_built_in_a_notebook_passes_the_gate(
    part: str, tmp_path: Path, stranger: StrangerCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.xml").write_text("<mujoco/>")
    folder = store(tmp_path, {"env": {"library": "gymnasium", "name": "Ant-v5", "xml_file": "theirs.xml"}})
    config = RunFolder(folder).load_config()
    builders: dict[str, Callable[[], Any]] = {
        "workflow": lambda: workflow_from_config(config),
        "copy": lambda: workflow_from_config(copy.deepcopy(config)),
        "merged": lambda: workflow_from_config(OmegaConf.merge(config, {"seed": 3})),
        "environment": lambda: create_env(config.env),
        "class": lambda: PPOWorkflow.build_from_config(config),
    }
    with raises_naming(ForeignCodeError, "env.xml_file=theirs.xml", "the config in "):
        builders[part]()


def test_names_that_a_notebook_changes_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = stranger_code(tmp_path, monkeypatch)
    config = RunFolder(store(tmp_path, {})).load_config()
    config.env = {"factory": "stranger:make"}
    with raises_naming(ValueError, "code of the stranger"):
        workflow_from_config(config)
    assert code.mark.exists()
    assert not gate.is_restricted()


# Only the place that would load the name knows it, and rejects it independently of the config reader.
@pytest.mark.parametrize("name", [name for name in NAMES if "env" in NAMES[name]])
def test_the_place_that_loads_refuses_too(name: str, stranger: StrangerCode) -> None:
    config = filled(NAMES[name]["env"], stranger.command)
    with gate.scope():
        gate.distrust("a test")
        with pytest.raises((ForeignCodeError, ImportError)) as raised:
            create_env(config, parallel=1)
    assert "would execute code" in str(raised.value) or "not installed" in str(raised.value)


def test_one_name_that_the_user_gives_brings_in_no_other(
    tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    both = {"env": {"factory": "stranger:make"}, "workflow": "stranger.Anything"}
    folder = store(tmp_path, both)
    message = refused("evaluate", f"run={folder}", "workflow=stranger.Anything")
    assert "env.factory=stranger:make" in message
    assert "workflow" not in message.partition("If you trust")[0]


@pytest.mark.parametrize(
    ("env", "given"),
    [
        ({"factory": "stranger:make"}, "env.factory=stranger:make"),
        (
            {"library": "gymnasium", "name": "CartPole-v1", "wrappers": ["a", {"name": "b", "f": "stranger:make"}]},
            "env.wrappers=[...]",
        ),
    ],
)
def test_the_setting_that_a_message_proposes_can_be_given(
    env: dict[str, Any], given: str, tmp_path: Path, refused: Refused
) -> None:
    folder = store(tmp_path, {"env": env})
    message = refused("evaluate", f"run={folder}")
    assert f"add {given} to" in message.replace("'", "")
    message = refused("evaluate", f"run={folder}", given.replace("[...]", "[stranger:wrapper]"))
    assert "has no effect here" not in message
    assert "no setting" not in message


def test_what_the_user_gives_or_trusts_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    code = stranger_code(tmp_path, monkeypatch)
    folder = store(tmp_path, {"env": {"factory": "stranger:make"}})
    for argument in ("trust=true", "env.factory=stranger:make"):
        assert "code of the stranger" in refused("evaluate", f"run={folder}", argument)
    assert code.mark.exists()
    assert not gate.is_restricted()


def test_a_folder_is_no_place_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes in an untrusted folder import nothing from there, such as a ``json.py``."""
    import subprocess
    import sys

    from evorl.ops.processes import without_working_directory

    mark = tmp_path / "mark"
    (tmp_path / "json.py").write_text(f"open({str(mark)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    assert without_working_directory() == ["-P"]
    with gate.scope():
        gate.distrust("a test")
        subprocess.run([sys.executable, "-c", "import json"], check=True)
    assert not mark.exists()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert without_working_directory() == []

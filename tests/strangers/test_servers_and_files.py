"""Untrusted servers, episodes, exported policies and apps: none of their code is executed, and nothing written
elsewhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.episodes.saved_episode import FORMAT, SavedEpisode
from evorl.export.artifacts import policy_graph
from evorl.export.numpy_file import numpy_text
from evorl.runs.files import RunFolderError
from evorl.runs.replay_file import ReplayFileError, read_replay_facts
from evorl.runs.run_state import read_state
from tests.strangers.conftest import Refused
from tests.strangers.test_run_folders import NAMES, filled, store
from tests.support.errors import missing_parts, raises_naming
from tests.support.portable import VERSIONS, portable_function
from tests.support.stranger_code import StrangerCode

CONFIG = {"workflow": "evorl.algorithms.a2c.A2CWorkflow", "env": {"library": "gymnax", "name": "CartPole-v1"}}
DEEP = "[" * 100_000


class HostileServer:
    """Parameter server with an untrusted config, in place of the client that would fetch it."""

    worker_config: Mapping[str, Any]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> HostileServer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def config(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.worker_config))


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_executes_nothing_that_a_server_names(
    name: str, stranger: StrangerCode, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    HostileServer.worker_config = {**CONFIG, **filled(NAMES[name], stranger.command)}
    monkeypatch.setattr("evorl.cli.work.ParameterClient", HostileServer)
    message = refused("work", "127.0.0.1:7000")
    assert not missing_parts(message, "127.0.0.1:7000", "code outside evorl")
    assert "set trust=true" in message


def test_a_worker_looks_nothing_up_for_a_server(
    stranger: StrangerCode, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    HostileServer.worker_config = {**CONFIG, "title": "${oc.env:HOME}"}
    monkeypatch.setattr("evorl.cli.work.ParameterClient", HostileServer)
    assert "interpolations" in refused("work", "127.0.0.1:7000")


@pytest.mark.parametrize("seed", [None, [1], {}, "x", 1.5, -1, 10**400, True])
def test_a_seed_that_is_none_is_one_sentence(
    seed: Any, stranger: StrangerCode, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    HostileServer.worker_config = {**CONFIG, "seed": seed, "compilation_cache": False, "devices": 1}
    monkeypatch.setattr("evorl.cli.work.ParameterClient", HostileServer)
    assert "seed must be" in refused("work", "127.0.0.1:7000")


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(NAMES[name].get("env"), dict)])
def test_an_episode_names_nothing_that_is_executed(
    name: str, tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    env = filled(NAMES[name]["env"], stranger.command)
    np.savez(tmp_path / "episode.npz", allow_pickle=False)
    about = {"format": FORMAT, "env": env, "arrays": {}, "length": 1, "return": 1.0}
    (tmp_path / "episode.json").write_text(json.dumps(about))
    message = refused("show-episode", f"episode={tmp_path / 'episode.npz'}")
    assert "outside evorl" in message


@pytest.mark.parametrize(
    ("about", "part"),
    [
        (DEEP, "corrupted"),
        ("null", "description of an episode"),
        ("7", "description of an episode"),
        ('{"format": 1}', "description of an episode"),
        (f'{{"format": {json.dumps(FORMAT)}, "env": {{}}, "arrays": {{"a": 1}}}}', "description does not match"),
    ],
)
def test_a_damaged_episode_is_one_sentence(about: str, part: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "episode.npz", allow_pickle=False, a=np.zeros(1))
    (tmp_path / "episode.json").write_text(about)
    with raises_naming(RunFolderError, tmp_path / "episode.", part):
        SavedEpisode.load(tmp_path / "episode.npz")


def test_deep_nesting_is_no_traceback(tmp_path: Path) -> None:
    for name in ("replay.json", "state.json"):
        (tmp_path / name).write_text(DEEP)
    with raises_naming(ReplayFileError, "replay.json", "JSON"):
        read_replay_facts(tmp_path / "replay.npz")
    assert read_state(tmp_path / "state.json", tmp_path / "run.log").state == "stopped"


def test_a_pickled_array_is_not_read(tmp_path: Path, stranger: StrangerCode) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return eval, (f"open({str(stranger.mark)!r}, 'w')",)

    np.savez(tmp_path / "episode.npz", a=np.asarray([Payload()], dtype=object))
    (tmp_path / "episode.json").write_text(json.dumps({"format": FORMAT, "env": {}, "arrays": {}}))
    with raises_naming(RunFolderError, "episode.npz", "corrupted"):
        SavedEpisode.load(tmp_path / "episode.npz")


def module_of(title: str) -> dict[str, Any]:
    """Execute the NumPy file of a small policy with a title, and return its names."""
    policy = portable_function(lambda x: 2 * x, (3,))
    module: dict[str, Any] = {}
    exec(numpy_text(policy, policy_graph(policy), {**VERSIONS, **policy.describe()}, title), module)
    return module


@pytest.mark.parametrize(
    "title",
    [
        '"""; open("MARK", "w"); """',
        '\\"""; open("MARK", "w"); """',
        '"\n""" + open("MARK", "w") + """',
        "@ABOUT@ @BODY@",
        "\\",
        "\\N{x}",
        '"',
    ],
)
def test_a_title_stays_in_the_docstring_of_an_exported_policy(title: str, stranger: StrangerCode) -> None:
    """An untrusted folder name in the title cannot leave the docstring of an exported policy."""
    plain, policy = module_of(title="A policy."), module_of(title.replace("MARK", str(stranger.mark)))
    assert policy.keys() == plain.keys()
    assert "A policy." in plain["__doc__"]
    assert policy["__doc__"].splitlines()[1:] == plain["__doc__"].splitlines()[1:]
    stranger.assert_not_executed()


APP = """\
version: VERSION
agent: reinforce
environment: {run: [python, app.py], name: x, obs_space: {shape: [1]}, action_space: {n: 2}}
"""


def app_of(folder: Path, training: Mapping[str, Any], **more: Any) -> Path:
    from evorl.distribution import installed_version

    folder.mkdir()
    text = APP.replace("VERSION", installed_version())
    entries = {"training": training, **more}
    (folder / "app.yaml").write_text(text + "".join(f"{k}: {json.dumps(v)}\n" for k, v in entries.items()))
    return folder


@pytest.mark.parametrize(
    "training",
    [
        {"+hydra.callbacks.x": {"_target_": "stranger.make"}},
        {"hydra": {"callbacks": {"x": {"_target_": "stranger.make"}}}},
        {"hydra.run.dir": "/elsewhere"},
        {"title": "${oc.env:HOME}"},
        {"optimizer": {"options": {"x,+hydra.callbacks.y": {"_target_": "stranger.make"}, "z": "${oc.env:HOME}"}}},
        {"agent": {"network": {"torso": "../../stranger"}}},
        {"~seed": 1},
        {"--config-dir": "theirs"},
    ],
)
@pytest.mark.parametrize("command", [("config", "-e", "gymnasium"), ("run", "server")])
def test_the_training_of_an_app_is_settings(
    training: dict[str, Any],
    command: tuple[str, ...],
    tmp_path: Path,
    stranger: StrangerCode,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(app_of(tmp_path / "app", training))
    assert "app.yaml contains " in refused(*command)


@pytest.mark.parametrize(
    "training",
    [{"env": {"goal_setter": "stranger:make"}}, {"env": {"factory": "stranger:make"}}, {"workflow": "stranger.W"}],
)
def test_the_training_of_an_app_names_no_code(
    training: dict[str, Any],
    tmp_path: Path,
    stranger: StrangerCode,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(app_of(tmp_path / "app", training))
    message = refused("run", "server")
    assert not missing_parts(message, "training in app.yaml", "code outside evorl")
    assert "stranger" in message


@pytest.mark.parametrize("name", ["app.yaml.checked", "app.yaml"])
def test_a_link_in_an_app_is_not_written_through(
    name: str, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = app_of(tmp_path / "app", {})
    target = tmp_path / "profile"
    if name == "app.yaml":
        (folder / name).rename(target)
    else:
        target.write_text("mine")
    (folder / name).symlink_to(target)
    before = target.read_text()
    monkeypatch.chdir(folder)
    assert "is a symbolic link" in refused("config", "-e", "gymnasium")
    assert target.read_text() == before


def test_control_characters_are_shown_by_every_command(
    tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evorl.cli import commands

    escape = "\x1b]0;owned\x07"
    folder = store(
        tmp_path / "runs", {"env": {"library": "gymnax", "name": f"{escape}\nrun"}, "title": escape}, f"a{escape}"
    )
    message = refused("train", f"resume={folder}")
    assert "\x1b" not in message
    assert "\\x1b]0;owned\\x07" in message
    (folder / "metrics.csv").write_text("iterations,timesteps,eval/episode_return\n1,1000,1.0\n")
    monkeypatch.setattr(sys, "argv", ["evorl", "runs", str(tmp_path / "runs")])
    commands.main()
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\\x1b]0;owned\\x07\\nrun" in printed


def test_control_characters_are_shown_by_a_process_of_its_own(tmp_path: Path) -> None:
    folder = store(tmp_path, {"env": {"factory": "\x1b[2J:make"}}, "run")
    code = "from evorl.cli.commands import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "evaluate", f"run={folder}"], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"\x1b" not in done.stdout + done.stderr
    assert rb"\x1b[2J" in done.stderr

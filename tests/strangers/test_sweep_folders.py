"""Untrusted sweeps and searches: command lines contain only settings, and trials get the search's trust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.sweep_folder import SweepFolder
from tests.strangers.conftest import Refused
from tests.strangers.test_run_folders import store
from tests.support.errors import missing_parts, raises_naming
from tests.support.file_server import file_server
from tests.support.run_folders import with_checkpoint
from tests.support.stranger_code import StrangerCode

SETTINGS = {"discount": 0.9, "eval_interval": 64, "total_timesteps": 64, "num_envs": 2}
JOB = ["agent=ppo", "env=cartpole"]


def sweep_of(root: Path, *words: str, flags: tuple[str, ...] = ()) -> Path:
    return SweepFolder.create(root, flags, [([*JOB, *words], {"seed": "0"})]).path


@pytest.mark.parametrize(
    "word",
    [
        "+hydra.callbacks.x={_target_: stranger.make}",
        "++hydra.callbacks.x={_target_: stranger.make}",
        "hydra.callbacks={x: {_target_: stranger.make}}",
        "hydra.run.dir=/elsewhere",
        "hydra.sweep.dir=/elsewhere",
        "hydra.output_subdir=../elsewhere",
        "hydra.searchpath=[file:///elsewhere]",
        "hydra/launcher=joblib",
        "hydra/job_logging=stranger",
        "hydra.job_logging.handlers.x={class: stranger.make}",
        "+experiment=x",
        "~seed",
        "title=${oc.env:HOME}",
        "title='${oc.env:HOME}'",
        "title=${oc.decode:${oc.env:HOME}}",
        r"title=$\{oc.env:HOME\}",
        r"title={a: [$\{oc.env:HOME\}]}",
        r"title=str($\{oc.env:HOME\})",
        r"agent=.\./stranger",
        "agent=../../stranger",
        "agent='../../stranger'",
        "env=..\\\\stranger",
        "agent@hydra.callbacks=x",
        "--config-dir",
        "--info",
        "",
    ],
)
def test_a_command_line_is_settings_only(word: str, tmp_path: Path, stranger: StrangerCode, refused: Refused) -> None:
    folder = sweep_of(tmp_path / "runs", word)
    before = sorted(tmp_path.rglob("*"))
    message = refused("train", f"resume={folder}")
    assert "such as seed=1" in message
    assert repr(word)[:40] in message
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("given", [("--config-dir", "theirs"), ("-cd", "theirs"), ("--multirun",), ("+x=1",)])
def test_flags_are_of_the_users_own_command_line(
    given: tuple[str, ...], tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    assert "such as seed=1" in refused("train", f"resume={sweep_of(tmp_path, flags=given)}")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("env=pettingzoo/os:system", "os:system"),
        ("env=gymnasium/stranger:Env-v0", "stranger:Env-v0"),
        ("env.goal_setter=stranger:make", "stranger:make"),
        ("compilation_cache=programs", "programs"),
    ],
)
def test_settings_name_no_code(word: str, name: str, tmp_path: Path, stranger: StrangerCode, refused: Refused) -> None:
    message = refused("train", f"resume={sweep_of(tmp_path, word)}")
    assert "outside evorl" in message
    assert name in message


@pytest.mark.parametrize(
    "word",
    [
        "env={folder}/theirs",
        "env=file://{folder}/theirs",
        "env=pkg://stranger/theirs",
        "env=/pkg/stranger",
        "env={{_target_: stranger.make}}",
        "agent={{workflow: stranger.make}}",
        "agent.factory=stranger:make",
        "env.factory=stranger:make",
        "searchpath=[{folder}]",
        "defaults=[theirs]",
        "_target_=stranger.make",
        "seed=1\n--multirun",
    ],
)
def test_other_words_reach_no_code_or_file(word: str, tmp_path: Path, stranger: StrangerCode, refused: Refused) -> None:
    """Settings whose values look like addresses, paths or targets raise an error."""
    (tmp_path / "theirs.yaml").write_text("factory: stranger:make\n")
    folder = sweep_of(tmp_path / "runs", word.format(folder=tmp_path))
    assert refused("train", f"resume={folder}")


def test_nothing_is_downloaded(tmp_path: Path, stranger: StrangerCode, refused: Refused) -> None:
    with file_server() as server:
        message = refused("train", f"resume={sweep_of(tmp_path, f'init_from.run={server.address}/a.zip')}")
    assert f"init_from.run={server.address}/a.zip" in message
    assert server.requests == []


@pytest.mark.parametrize("trust", ["perhaps", "3", "no"])
def test_trust_of_a_sweep_is_true_or_false(
    trust: str, tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    folder = sweep_of(tmp_path, "+hydra.callbacks.x={_target_: stranger.make}")
    assert not missing_parts(refused("train", f"resume={folder}", f"trust={trust}"), "trust", "true or false")


def damaged(**changes: Any) -> str:
    job = {"overrides": JOB, "setting": {"seed": "0"}, "folder": "0-seed_0", "state": "waiting"}
    return json.dumps({"flags": [], "jobs": [{**job, **changes}]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"flags": []}',
        '{"jobs": []}',
        '{"flags": [], "jobs": [], "more": 1}',
        '{"flags": "--config-dir", "jobs": []}',
        '{"flags": [1], "jobs": []}',
        '{"flags": [], "jobs": {}}',
        '{"flags": [], "jobs": [null]}',
        '{"flags": [], "jobs": [[]]}',
        '{"flags": [], "jobs": [{}]}',
        '{"flags": [], "jobs": [' + ", ".join(["{}"] * 100_001) + "]}",
        damaged(more=1),
        damaged(overrides="agent=ppo"),
        damaged(overrides=[None]),
        damaged(overrides=[["agent=ppo"]]),
        damaged(setting=["seed"]),
        damaged(setting={"seed": 0}),
        damaged(setting=None),
        damaged(folder=None),
        damaged(folder=""),
        damaged(folder="."),
        damaged(folder=".."),
        damaged(folder="../elsewhere"),
        damaged(folder="/elsewhere"),
        damaged(folder="a\u0000b"),
        damaged(folder="\u001b]0;title\u0007"),
        damaged(state="lost"),
        damaged(state=["waiting"]),
        damaged(state={}),
        damaged(timesteps="1"),
        damaged(timesteps=-1),
        damaged(timesteps=True),
        damaged(best_return="1"),
        damaged(best_return=10**400),
        damaged(last_return=[1.0]),
        damaged().replace("waiting", "wait\\ud800ing"),
        damaged()[:-20],
        "\ufeff" + damaged(),
    ],
)
def test_a_damaged_file_is_one_sentence(text: str, tmp_path: Path, stranger: StrangerCode, refused: Refused) -> None:
    (tmp_path / "sweep.json").write_text(text, encoding="utf-8")
    assert not missing_parts(refused("train", f"resume={tmp_path}"), "sweep.json", "describe a sweep")


def test_bytes_that_are_no_text_are_one_sentence(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "sweep.json").write_bytes(b"\xff\xfe{}")
    assert not missing_parts(refused("train", f"resume={tmp_path}"), "sweep.json", "describe a sweep")


def test_two_jobs_have_two_folders(tmp_path: Path) -> None:
    path = SweepFolder.create(tmp_path, [], [(JOB, {}), (JOB, {})]).path
    file = path / "sweep.json"
    file.write_text(file.read_text().replace('"folder": "1"', '"folder": "0"'))
    with raises_naming(RunFolderError, "2 runs", "'0'"):
        SweepFolder.open(path)


@pytest.mark.parametrize("name", ["sweep.json", "0-seed_0"])
def test_links_lead_nowhere(name: str, tmp_path: Path, stranger: StrangerCode, refused: Refused) -> None:
    folder = sweep_of(tmp_path / "theirs")
    mine = store(tmp_path, {}, "mine")
    target = mine if name == "0-seed_0" else mine / "sweep.json"
    if name == "sweep.json":
        (folder / name).rename(target)
    (folder / name).symlink_to(target)
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    assert "is a symbolic link" in refused("train", f"resume={folder}")
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


def search_of(root: Path, **changes: Any) -> Path:
    """Create a search with an unfinished trial, whose run has a checkpoint and an untrusted config."""
    from evorl.sweeps.optuna_study import OptunaStudy

    folder = store(root, {"search": {"over": {"discount": [0.9, 0.99]}, "trials": 2}, **SETTINGS, **changes}, "search")
    OptunaStudy(folder / "study.log", {"discount": [0.9, 0.99]}, 0).next_trial()
    return folder


@pytest.mark.parametrize("env", [{"factory": "os:system"}, {"library": "pettingzoo", "name": "os:system"}])
@pytest.mark.parametrize("trust", [(), ("trust=false",)])
def test_a_trial_is_trusted_as_its_search_is(
    env: dict[str, Any], trust: tuple[str, ...], tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    pytest.importorskip("optuna")
    folder = search_of(tmp_path)
    with_checkpoint(RunFolder(store(folder, {"env": {**env, "command": stranger.command}}, "trial_0000")))
    message = refused("train", f"resume={folder}", *trust)
    assert not missing_parts(message, "trial_0000", "would execute code", "outside evorl")
    assert "os:system" in message


def test_a_search_resumes_no_other_run_and_trusts_none(
    tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    """``resume`` and ``trust`` of a stored config are ignored."""
    pytest.importorskip("optuna")
    other = store(tmp_path, {"env": {"factory": "os:system", "command": stranger.command}}, "another")
    folder = search_of(tmp_path, resume=str(other), trust=True, run=str(other))
    with_checkpoint(RunFolder(store(folder, {"env": {"factory": "os:system"}}, "trial_0000")))
    message = refused("train", f"resume={folder}")
    assert "trial_0000 would execute code" in message
    assert str(other) not in message


def test_what_a_study_proposes_passes_the_gate(tmp_path: Path, stranger: StrangerCode, refused: Refused) -> None:
    """Trial settings from Optuna's journal pass the gate for code."""
    pytest.importorskip("optuna")
    from evorl.sweeps.optuna_study import OptunaStudy

    path = "env.goal_setter"
    env = {"library": "goal", "name": "bit_flip", "goal_setter": "own"}
    folder = store(tmp_path, {"env": env, "search": {"over": {path: ["own"]}, "trials": 1}, **SETTINGS}, "search")
    OptunaStudy(folder / "study.log", {path: ["stranger:make"]}, 0).next_trial()
    assert "env.goal_setter=stranger:make would execute code" in refused("train", f"resume={folder}")

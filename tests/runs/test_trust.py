"""Contents allowed in a stored config: plain data, and code of this package only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evorl.runs.files import RunFolderError
from evorl.runs.trust import (
    as_arguments,
    foreign_names,
    needs_trust,
    read_stored_config,
    refuse_composed_code,
    refuse_foreign_code,
)
from tests.support.errors import raises_naming


def stored(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_stored_config(path)


def test_plain_data_is_read_as_it_stands(tmp_path: Path) -> None:
    config = stored(tmp_path, 'rate: 1e-3\nname: "1e-3"\nlist: [1, null, true]\nempty: {}\nlabel: µ\n')
    assert dict(config) == {"rate": 1e-3, "name": "1e-3", "list": [1, None, True], "empty": {}, "label": "µ"}


@pytest.mark.parametrize(
    "text",
    [
        "name: ${oc.env:EVORL_SECRET}",
        "a: {b: [1, 'x ${oc.env:EVORL_SECRET,none}']}",
        "name: ${custom:1}",
        "seed: 1\nother: ${seed}",
        "resolver: oc.env\nname: ${${resolver}:EVORL_SECRET}",
        "${oc.env:EVORL_SECRET}: 1",
    ],
)
def test_nothing_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("EVORL_SECRET", "hunter2")
    with raises_naming(RunFolderError, "config.yaml", "interpolations") as raised:
        stored(tmp_path, text)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: [1", ("config.yaml", "valid YAML")),
        ("[" * 1000, ("nesting beyond 50 levels",)),
        ("a: 1\na: 2", ("config.yaml", "valid YAML")),
        ("- 1\n- 2", ("config.yaml", "mapping")),
        ("a: !!python/object/apply:os.system [exit]", ("line 1", "tags")),
        ("a: !!python/object/apply:pathlib.Path [x]", ("line 1", "tags")),
        ("a: &a [1]\nb: *a", ("line 2", "aliases")),
    ],
)
def test_more_than_plain_data_is_refused(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    with raises_naming(RunFolderError, *parts):
        stored(tmp_path, text)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"a: \xff\xfe\n")
    with raises_naming(RunFolderError, "config.yaml", "cannot be read"):
        read_stored_config(tmp_path / "config.yaml")
    with raises_naming(RunFolderError, "missing.yaml", "cannot be read"):
        read_stored_config(tmp_path / "missing.yaml")


FOREIGN = {
    "env": {"factory": "os:system"},
    "workflow": "helper.W",
    "inner": {"workflow": "evorl.algorithms.ppo.PPOWorkflow"},
    "learner": {"workflow": "evorlution.W", "env": {"factory": "evorl.cli.main:train"}},
    "compilation_cache": "programs",
    "recorders": {
        "mlflow": {"uri": "http://elsewhere", "experiment": "x"},
        "own": ["theirs:Recorder", {"name": "theirs:make", "file": "curve.txt"}],
    },
    "agent": {"name": "os.system"},
    "title": "os:system",
    "serve": {"bind": "localhost:7001", "token": "env:TOKEN"},
    "replay": {"load": "minari:mujoco/hopper/medium-v0"},
    "layers": [{"type": "stranger:Layer"}],
    "eval_env": {"env": {"library": "gymnasium", "name": "ALE/Pong-v5", "xml_file": "./ant.xml"}},
}


def test_names_of_code_are_found_at_any_depth() -> None:
    assert foreign_names(FOREIGN) == {
        "env.factory": "os:system",
        "workflow": "helper.W",
        "learner.workflow": "evorlution.W",
        "learner.env.factory": "evorl.cli.main:train",
        "compilation_cache": "programs",
        "recorders.mlflow.uri": "http://elsewhere",
        "recorders.own.0": "theirs:Recorder",
        "recorders.own.1.name": "theirs:make",
        "layers.0.type": "stranger:Layer",
        "eval_env.env.xml_file": "./ant.xml",
    }
    assert foreign_names({"workflow": "evorl.algorithms.sac.SACWorkflow", "compilation_cache": True}) == {}


def test_what_the_user_gave_is_trusted() -> None:
    config = {"env": {"factory": "mine:make"}, "workflow": "mine.W"}
    with raises_naming(RunFolderError, "env.factory=mine:make workflow=mine.W", "trust"):
        refuse_foreign_code(config, Path("run"))
    with raises_naming(RunFolderError, "evorl: workflow=mine.W."):
        refuse_foreign_code(config, Path("run"), {"env.factory"})
    with raises_naming(RunFolderError, "recorders.own.0=theirs:R", "add 'recorders.own=[...]'"):
        refuse_foreign_code({"recorders": {"own": ["theirs:R"]}}, Path("run"))
    refuse_foreign_code({"recorders": {"own": ["theirs:R"]}}, Path("run"), {"recorders.own"})
    with pytest.raises(RunFolderError):
        refuse_foreign_code(config, Path("run"), {"env.fact", "work"})
    refuse_foreign_code(config, Path("run"), {"env", "workflow"})


def test_names_are_quoted_for_a_shell() -> None:
    assert as_arguments({"env.factory": "os:system; rm -r ~"}) == "'env.factory=os:system; rm -r ~'"


@pytest.mark.parametrize(
    "word",
    [
        "seed=1",
        "optimizer.learning_rate=1e-3",
        "a={b: [1, 'x y']}",
        "agent=ec/openes",
        "x=",
        "title='a:b'",
        "compilation_cache=true",
    ],
)
def test_settings_are_composed(word: str) -> None:
    refuse_composed_code([word], "a file")
    assert not needs_trust(word)


@pytest.mark.parametrize(
    "word",
    [
        *("+a=1", "--cfg", "a=${b}", "env.factory=my:Walk", "env=my:Walk", "env={factory: walk}", "optimizer=my:sgd"),
        *("recorders.own=['my:Recorder']", "compilation_cache=programs", "env.xml_file='./an ant.xml'"),
        *("init_from.run=https://example.org/policy.zip", "init_from={run: 'https://example.org/policy.zip'}"),
    ],
)
def test_a_resume_confirms_what_is_not_plain_or_names_code(word: str) -> None:
    assert needs_trust(word)


@pytest.mark.parametrize("word", ["+a=1", "hydra.verbose=true", "a=${b}", "agent=../x", "--cfg", "a", 3, None])
def test_more_than_settings_is_refused(word: object) -> None:
    with raises_naming(RunFolderError, "a file", repr(str(word)), "Leave it out."):
        refuse_composed_code(["seed=1", word], "a file", "Leave it out.")

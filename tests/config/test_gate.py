"""The gate for code: allowed names, and restrictions in threads and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from evorl.config import gate
from evorl.config.gate import ForeignCodeError, admit, admit_arguments, distrust, grant, is_restricted, scope
from evorl.config.names import load_class, load_named
from tests.support.errors import raises_naming

TEXT = "os:system"
PROBE = "from evorl.config.gate import admit\nadmit('os:system', 'env.name')\nprint('admitted')"


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert not is_restricted()
    assert gate.VARIABLE not in os.environ
    assert "PYTHONSAFEPATH" not in os.environ


def test_what_users_write_themselves_is_admitted() -> None:
    admit(TEXT, "env.name")
    assert load_named(TEXT, "env.factory") is os.system


def test_a_source_that_is_not_trusted_names_nothing() -> None:
    with scope():
        distrust("the config in runs/theirs")
        with raises_naming(ForeignCodeError, "env.name=os:system", "the config in runs/theirs", "trust=true"):
            admit(TEXT, "env.name")
        with pytest.raises(ForeignCodeError):
            load_named("no_such_module:f", "env.factory")
        with pytest.raises(ForeignCodeError):
            load_class("no_such_module.C", "workflow")
    admit(TEXT, "env.name")


def test_what_evorl_ships_for_a_setting_is_admitted() -> None:
    with scope():
        distrust("a test")
        assert load_class("evorl.algorithms.ppo.PPOWorkflow", "workflow", "evorl.algorithms").__name__ == "PPOWorkflow"
        for text in ("evorl.algorithms_of_mine.C", "evorl.algorithms", "evorl.cli.main.train", "xevorl.algorithms.C"):
            with pytest.raises(ForeignCodeError):
                load_class(text, "workflow", "evorl.algorithms")


def test_what_the_user_gives_is_admitted_and_nothing_like_it() -> None:
    with scope():
        distrust("a test")
        grant({"env": {"factory": "os:getcwd", "n": 3}, "more": ["a:b"]})
        admit("os:getcwd", "env.factory")
        admit("a:b", "env.factory")
        for text in ("os:getcwdb", "os:get", "os", TEXT):
            with pytest.raises(ForeignCodeError):
                admit(text, "env.factory")


def test_a_grant_is_for_its_own_scope() -> None:
    with scope():
        grant(TEXT)
    with scope():
        distrust("a test")
        with pytest.raises(ForeignCodeError):
            admit(TEXT, "env.factory")


def test_a_scope_within_another_is_a_part_of_it() -> None:
    with scope():
        with scope():
            distrust("a test")
        assert is_restricted()


def test_a_restriction_ends_where_the_scope_fails() -> None:
    with pytest.raises(KeyError), scope():
        distrust("a test")
        raise KeyError


def test_a_restriction_holds_in_threads_that_begin_before_or_after() -> None:
    refused: list[bool] = []
    go = threading.Event()

    def work() -> None:
        go.wait(60)
        with pytest.raises(ForeignCodeError):
            admit(TEXT, "env.factory")
        refused.append(True)

    before = threading.Thread(target=work)
    before.start()
    with scope():
        distrust("a test")
        after = threading.Thread(target=work)
        after.start()
        go.set()
        for thread in (before, after):
            thread.join()
    assert refused == [True, True]


def probe() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)


def test_processes_inherit_a_restriction_and_what_was_given() -> None:
    with scope():
        distrust("the config in runs/theirs")
        done = probe()
        assert done.returncode == 1
        assert "the config in runs/theirs" in done.stderr
        grant(TEXT)
        assert probe().stdout == "admitted\n"
    assert probe().stdout == "admitted\n"


@pytest.mark.parametrize("value", ["{", "7", "[[1, 2]", '["a", "b"]', '{"a": 1}'])
def test_a_process_that_cannot_read_its_restrictions_admits_nothing(value: str) -> None:
    with pytest.raises(StopIteration):
        next(opened for opened in gate._inherited(value) if not opened.refuses(TEXT))
    assert any(opened.refuses(TEXT) for opened in gate._inherited(value))


def test_restrictions_are_carried_to_processes_that_inherit_no_variables() -> None:
    with scope():
        assert gate.carried() == ""
        distrust("a test")
        grant("a:b")
        assert json.loads(gate.carried()) == [[["a test"], ["a:b"]]]
        (opened,) = gate._inherited(gate.carried())
    assert opened.refuses(TEXT)
    assert not opened.refuses("a:b")


@pytest.mark.parametrize(
    "arguments",
    [
        {"vzd_path": "./vizdoom"},
        {"xml_file": "..\\ant.xml"},
        {"a": [{"b": "stranger:Env-v0"}]},
        ["/etc/passwd"],
        {"game": "pyproject.toml"},  # an existing file
    ],
)
def test_arguments_of_other_libraries_name_neither_code_nor_files(
    arguments: object, request: pytest.FixtureRequest
) -> None:
    admit_arguments(arguments)
    with scope(), pytest.MonkeyPatch.context() as context:
        context.chdir(request.config.rootpath)
        distrust("a test")
        with raises_naming(ForeignCodeError, "env."):
            admit_arguments(arguments)


def test_plain_arguments_pass() -> None:
    with scope():
        distrust("a test")
        admit_arguments({"render_mode": "rgb_array", "n": 3, "map": ["SFFG", ""], "x": None, "long": "a" * 5000})


@pytest.mark.parametrize(
    ("text", "is_code"),
    [
        ("os:system", True), ("a.b:c", True), ("stranger:3D-v0", True), ("evil-module:f", True), (":f", False),
        ("os:", False), ("relu", False),
        ("minari:mujoco/hopper/medium-v0", True), ("C:\\data", False), ("C:/data", False),
    ],
)  # fmt: skip
def test_the_form_of_names(text: str, is_code: bool) -> None:
    assert gate.names_code(text) is is_code

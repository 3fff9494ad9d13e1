from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from evorl.config.gate import ForeignCodeError, distrust, grant, scope
from evorl.config.names import did_you_mean, explain_missing_package, load_class, load_named, name_of, no_such
from tests.support.errors import raises_naming


def test_the_nearest_name_is_suggested() -> None:
    assert did_you_mean("rellu", ["relu", "tanh"]) == " Did you mean 'relu'?"
    assert did_you_mean("xyz", ["relu", "tanh"]) == ""
    assert did_you_mean(3, {"tanh": 1}) == ""


def test_what_there_is_is_listed() -> None:
    assert no_such("cell", "lsmt", ("gru", "lstm")) == (
        "unknown cell 'lsmt'. Did you mean 'lstm'? Available: gru, lstm."
    )
    assert no_such("cell", None, ["gru"]) == "unknown cell None. Available: gru."


def _import_what_is_missing(*packages: str) -> None:
    with explain_missing_package("robots", *packages):
        importlib.import_module("not_there.inside")


def test_a_package_that_is_missing_is_told_with_the_line_that_installs_it() -> None:
    with raises_naming(ImportError, "robots", "pip install not_there"):
        _import_what_is_missing("not_there")
    with raises_naming(ImportError, "not-there", "pip install 'not-there[all]>=2'"):
        _import_what_is_missing("not_there", "not-there[all]>=2")
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there'"):
        _import_what_is_missing("there")


_BROKEN = {
    "import os\nimport not_installed_xyz\n": ["ModuleNotFoundError", "not_installed_xyz", "line 2"],
    "from json import nothing_like_this\n": ["ImportError", "nothing_like_this", "line 1"],
    "x = 1\ndef f(:\n    pass\n": ["SyntaxError", "line 2"],
    "raise ValueError('a\\nb')\n": ["ValueError: a b", "line 1"],
    "{}['a']\n": ["KeyError: 'a'", "line 1"],
    "import sys\nsys.exit(3)\n": ["SystemExit: 3", "line 2"],
}


@pytest.mark.parametrize("text", _BROKEN)
@pytest.mark.parametrize(
    "read", [lambda path: load_named(f"{path}:f", "part"), lambda path: load_class(f"{path}.f", "part")]
)
def test_a_module_that_fails_at_its_import_is_named_with_the_error(
    text: str, read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{list(_BROKEN).index(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with raises_naming(ValueError, "part=", name, f"{name}.py", *_BROKEN[text]):
        read(name)


def test_a_module_that_does_not_exist_is_missed() -> None:
    with raises_naming(ValueError, "part=no_such.module:f", "'no_such'", "PYTHONPATH"):
        load_named("no_such.module:f", "part")


@pytest.mark.parametrize(
    "read",
    [
        lambda: load_named("no_such.module:f", "part"),
        lambda: load_named("json:Decoder", "part"),
        lambda: load_class("no_such.module.F", "part"),
        lambda: load_class("json.Decoder", "part"),
    ],
)
def test_a_name_that_was_moved_after_a_run_has_a_way_out(read: Any) -> None:
    """A stored run names its user's classes, which may since have been renamed."""
    with raises_naming(ValueError, "renamed or moved", "new name", "config.yaml"):
        read()


@pytest.mark.parametrize(
    "read", [lambda: load_named("__main__:MyLayer", "part"), lambda: load_class("__main__.MyLayer", "part")]
)
def test_a_class_of_another_session_is_explained(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_naming(
        ValueError, "part=", "__main__", "this program does not define MyLayer", "my_parts.py", "use my_parts"
    ):
        read()
    monkeypatch.setattr(sys.modules["__main__"], "MyLayer", type("MyLayer", (), {}), raising=False)
    assert read().__name__ == "MyLayer"


def test_a_long_list_of_names_is_cut_at_a_name() -> None:
    names = [f"name-{number}" for number in range(1_000)]
    message = no_such("thing", "zzz", names)
    assert len(message) < 1_100
    listed, _, others = message.partition("Available: ")[2].removesuffix(" others.").rpartition(" and ")
    assert listed.split(", ") == names[: len(listed.split(", "))]
    assert len(listed.split(", ")) + int(others) == 1_000


@pytest.mark.parametrize(
    "text", ["admit('os:system', 'inner')", "\ndef __getattr__(name):\n    admit('os:system', name)"]
)
def test_a_rejection_by_the_gate_keeps_its_type(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"rejected_{len(text)}"
    (tmp_path / f"{name}.py").write_text(f"from evorl.config.gate import admit\n{text}\n")
    for load, path in ((load_class, f"{name}.Part"), (load_named, f"{name}:part")):
        with scope():
            distrust("a test")
            grant([path])
            with raises_naming(ForeignCodeError, "os:system", "trust=true"):
                load(path, "part")


def test_a_part_of_a_spawned_process_has_the_name_that_its_program_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that multiprocessing spawned, the main module is called __mp_main__, which no later process has."""
    module = types.ModuleType("__mp_main__")
    exec("class Walk: pass", vars(module))
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, module)
    assert name_of(vars(module)["Walk"]) == "__main__:Walk"

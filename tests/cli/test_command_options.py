"""Options as name=value: parsing, and errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli.command_options import Option, describe_options, read_options, whole
from evorl.cli.command_table import COMMANDS
from tests.support.errors import raises_naming

OPTIONS = {
    "run": Option(None, "a run folder", text=True),
    "to": Option("here", "where it goes"),
    "frames": Option(50, "at most", whole(1, 1000)),
    "metrics": Option({}, "by name"),
}


def test_text_is_read_as_it_stands_and_the_rest_as_yaml() -> None:
    given, unnamed = read_options(["run=2026-01-31", "frames=1e1", "to=null"], OPTIONS, "evorl draw")
    assert given == {"run": "2026-01-31", "to": "null", "frames": 10, "metrics": {}}
    assert type(given["frames"]) is int
    assert unnamed == []
    assert read_options(["run=null"], OPTIONS, "evorl draw")[0]["run"] is None


def test_entries_of_a_mapping_are_given_together_or_each_for_itself() -> None:
    def metrics(*arguments: str) -> object:
        return read_options(arguments, OPTIONS, "evorl draw")[0]["metrics"]

    assert metrics("metrics={loss: true, a.b: 1}") == {"loss": True, "a.b": 1}
    assert metrics("metrics.loss=true", "metrics.a.b=1") == {"loss": True, "a.b": 1}
    assert metrics("metrics={a: 1}", "metrics.loss=false") == {"a": 1, "loss": False}
    with raises_naming(ValueError, "metrics.loss", "twice", "True and False"):
        metrics("metrics.loss=true", "metrics.loss=false")
    with raises_naming(ValueError, "metrics=7", "mapping"):
        metrics("metrics=7", "metrics.loss=false")
    with raises_naming(ValueError, "option of evorl draw", "'frames.a'"):
        metrics("frames.a=1")


def test_what_has_no_name_is_kept_where_there_may_be_some() -> None:
    given, unnamed = read_options(["runs/a=1", "frames=7", "b"], OPTIONS, "evorl draw", unnamed="run")
    assert unnamed == ["runs/a=1", "b"]
    assert given["frames"] == 7


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("b", ("'b' is not an option", "name=value", "evorl draw --help")),
        ("frame=1", ("option of evorl draw", "'frame'", "'frames'")),
        ("frames=[", ("frames=[", "cannot be read")),
    ],
)
def test_what_cannot_be_is_refused_in_words(argument: str, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        read_options([argument], OPTIONS, "evorl draw")
    with raises_naming(ValueError, "to", "twice", "'a' and 'b'"):
        read_options(["to=a", "to=b"], OPTIONS, "evorl draw")
    with raises_naming(ValueError, "'--fast' is not an option"):
        read_options(["--fast"], OPTIONS, "evorl draw", unnamed="run")


def test_a_tilde_in_a_path_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"to": Option(None, "file", path=True), "title": Option(None, "text", text=True)}
    arguments, _ = read_options(["to=~/a.gif", "title=~/a"], options, "evorl draw")
    assert arguments == {"to": str(tmp_path / "a.gif"), "title": "~/a"}
    assert read_options(["to=null"], options, "evorl draw")[0]["to"] is None
    assert read_options(["to=1e3"], options, "evorl draw")[0]["to"] == "1e3"


PATHS = {
    "act": {"cert", "key", "policy", "runs_folder"},
    "work": {"cert", "profile_dir"},
    "render": {"runs_folder", "to"},
    "show-episode": {"episode", "runs_folder", "to"},
    "watch": {"cert", "key", "metrics_folder", "runs_folder"},
    "report": {"csv", "runs_folder", "to"},
    "export": {"runs_folder", "to"},
    "pack": {"runs_folder", "to"},
    "play": {"runs_folder", "to"},
    "check-client": {"to"},
    "generate": {"file"},
    "config": {"file"},
    "run": {"file"},
}


@pytest.mark.parametrize("command", [name for name, command in COMMANDS.items() if command.options])
def test_files_and_folders_are_paths(command: str) -> None:
    options = COMMANDS[command].options
    assert {name for name, option in options.items() if option.path} == PATHS.get(command, set())


def test_help_shows_defaults_as_they_are_given() -> None:
    assert describe_options(OPTIONS) == (
        "  run=null    a run folder\n  to=here     where it goes\n  frames=50   at most\n  metrics={}  by name\n"
    )


def test_a_flag_is_answered_by_the_option_that_is_meant() -> None:
    options = {"run_name": Option("x", "a run")}
    assert read_options([], options, "evorl test") == ({"run_name": "x"}, [])
    for arguments, form in ((["--run-name", "b"], "run_name=b"), (["--run-name=b"], "run_name=b"), (["--x"], "name=")):
        with raises_naming(ValueError, arguments[0], form, "evorl test --help"):
            read_options(arguments, options, "evorl test")

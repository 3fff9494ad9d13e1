"""``evorl check-client``: output, exit status and test vectors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from evorl.cli.client_check import check_client_from_arguments
from tests.support.doc_pages import ROOT
from tests.support.errors import assert_names, raises_naming

ECHO = f"'{sys.executable}' '{ROOT / 'examples' / 'remote' / 'echo.py'}' {{address}}"


def test_a_line_for_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    check_client_from_arguments(["bind=127.0.0.1:0", f"command={ECHO}", "only=init,answer-int4-zero"])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["init", "passed"],
        ["answer-int4-zero", "passed"],
        ["All", "2", "checks", "passed."],
    ]


def test_a_failed_check_is_printed_with_both_sides_and_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "client.py"
    program.write_text(
        "import socket, sys, time\n"
        "host, port = sys.argv[1].rsplit(':', 1)\n"
        "socket.create_connection((host, int(port))).sendall(b'hello')\n"
        "time.sleep(1)\n"
    )
    command = f"command='{sys.executable}' '{program}' {{address}}"
    with raises_naming(ValueError, "1 of 1", "init"):
        check_client_from_arguments(["bind=127.0.0.1:0", command, "only=init"])
    line = capsys.readouterr().out
    assert_names(line, "FAILED", "{'command': 'init'}", "not RLX")


def test_a_client_that_does_not_connect(capsys: pytest.CaptureFixture[str]) -> None:
    with raises_naming(ValueError, "without connecting", "0 of 1"):
        check_client_from_arguments(["bind=127.0.0.1:0", f"command='{sys.executable}' -c 1", "only=init"])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["only=answer-int5"], ["only=answer-int5", "'answer-"]),
        (["only=init", "skip=init"], ["leave no check"]),
        (["seconds=0"], ["seconds", "got 0"]),
        (["bind=0.0.0.0:7001"], ["0.0.0.0", "127.0.0.1"]),
        (["to=x.json"], ["to=x.json", "vectors"]),
        (["vector"], ["vector", "vectors"]),
        (["bind=127.0.0.1:0", "command=' '"], ["client cannot be started"]),
    ],
)
def test_arguments_that_cannot_be(arguments: list[str], parts: list[str]) -> None:
    with raises_naming(ValueError, *parts):
        check_client_from_arguments(arguments)


def test_vectors_are_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_client_from_arguments(["vectors"])
    printed = json.loads(capsys.readouterr().out)
    monkeypatch.setenv("HOME", str(tmp_path))
    check_client_from_arguments(["vectors", "to=~/v.json"])
    assert json.loads((tmp_path / "v.json").read_text()) == printed
    assert {"messages", "refused"} <= printed.keys()

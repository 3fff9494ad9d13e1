"""A process in a separate process group."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

from evorl.apps.child import Child
from evorl.apps.prefixed_log import PrefixedLog
from tests.support.apps import still_alive
from tests.support.errors import raises_naming
from tests.support.waiting import wait_until

GRANDCHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid)
time.sleep(600)
"""


def start(code: str, stream: io.StringIO, tmp_path: Path, **variables: str) -> Child:
    return Child("name", [sys.executable, "-c", code], tmp_path, variables, PrefixedLog(stream))


def printed_lines(stream: io.StringIO) -> list[str]:
    return [line.partition("| ")[2] for line in stream.getvalue().splitlines()]


def test_what_it_says_is_logged_and_how_it_ended_is_known(tmp_path: Path) -> None:
    stream = io.StringIO()
    code = "import os, sys; print(os.environ['X'], os.getcwd()); print('é', file=sys.stderr); sys.exit(3)"
    child = start(code, stream, tmp_path, X="here")
    assert child.wait(time.monotonic() + 20.0)
    child.end()
    assert child.status == 3
    assert child.failed
    assert printed_lines(stream) == [f"here {os.path.realpath(tmp_path)}", "é"]


def test_whatever_it_started_ends_with_it(tmp_path: Path) -> None:
    stream = io.StringIO()
    child = start(GRANDCHILD, stream, tmp_path)
    wait_until(lambda: printed_lines(stream), 20.0)
    child.request_end()
    assert child.wait(time.monotonic() + 20.0)
    child.end()
    assert not child.failed
    assert still_alive([child.process.pid, int(printed_lines(stream)[0])]) == []


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with raises_naming(ValueError, "name", "no-such-program-here x", "No such file"):
        Child("name", ["no-such-program-here", "x"], tmp_path, {}, PrefixedLog(io.StringIO()))


def test_the_last_version_of_an_overwritten_line_is_logged(tmp_path: Path) -> None:
    stream = io.StringIO()
    code = r"import sys; sys.stdout.buffer.write(b'10 %\r50 %\r100 %\nwindows\r\n\xff\r\xc3\xa9')"
    child = start(code, stream, tmp_path)
    child.wait(time.monotonic() + 20.0)
    child.end()
    assert printed_lines(stream) == ["100 %", "windows", "é"]
    assert child.process.stdout is not None
    assert child.process.stdout.closed

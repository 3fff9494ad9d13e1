"""An untrusted module, and commands as a user runs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evorl.cli import commands
from tests.support.stranger_code import StrangerCode, stranger_code

Refused = Callable[..., str]


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StrangerCode]:
    """Create code that must not be executed by the end of the test."""
    code = stranger_code(tmp_path, monkeypatch)
    yield code
    code.assert_not_executed()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that runs ``evorl``, asserts that it fails with one error (possibly of a sweep), and returns
    it.
    """

    def refused(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["evorl", *arguments])
        with pytest.raises(SystemExit) as end:
            commands.main()
        assert end.value.code == 1
        printed = capsys.readouterr().err
        assert printed.startswith("Error: ")
        lines = printed.splitlines()
        assert len(lines) == 1 or (len(lines) == 2 and lines[0].startswith("Error: 1 run failed")), printed
        return printed

    return refused

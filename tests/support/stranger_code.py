"""Untrusted code in a folder on Python's path: importing or calling it leaves a marker file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evorl.config import gate

_MODULE = '''
from pathlib import Path

Path({mark!r}).touch()


class Anything:
    """Whatever is expected: a workflow, a goal setter, a factory."""

    def __init__(self, *arguments, **options):
        raise ValueError("The code of the stranger was called.")

    @classmethod
    def build_from_config(cls, config):
        cls()


make = Anything
'''


class StrangerCode:
    """A module ``stranger`` and a program ``touch`` that create a marker file.

    Args:
        folder: a folder on Python's module path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, folder / "mark"
        (folder / "stranger.py").write_text(_MODULE.format(mark=str(self.mark)), encoding="utf-8")

    @property
    def command(self) -> str:
        """A command line that creates the marker."""
        return f"touch {self.mark}"

    def assert_not_executed(self) -> None:
        """Assert that no marker exists, the module was not imported, and the process is no longer restricted."""
        assert not self.mark.exists(), "the stranger's code was executed"
        assert "stranger" not in sys.modules, "the stranger's module was imported"
        assert not gate.is_restricted(), "a restriction outlives the command"


def stranger_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StrangerCode:
    """Create the module in a folder below ``folder``, on Python's path."""
    (folder / "modules").mkdir()
    monkeypatch.syspath_prepend(folder / "modules")
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return StrangerCode(folder / "modules")
